"""Prints the environment with which Accelerate's launcher would start the ranks of each configuration, a line of JSON each.

    python ask_accelerate.py PACKAGES FILE...

A process of its own, because transformers looks for Accelerate once and then behaves differently. A refusal is printed as a text.
"""

from __future__ import annotations

import json
import sys

sys.path += [sys.argv[1], f"{sys.argv[1]}/accelerate-1.15.0"]

from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

for path in sys.argv[2:]:
    words = ["--config_file", path, "--machine_rank", "0", "--main_process_ip", "node-0", "train.py"]
    try:
        arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
        told = prepare_multi_gpu_env(arguments)
    except (ValueError, TypeError, AttributeError) as error:
        told = str(error)
    sys.stdout.write(f"{json.dumps(told)}\n")
