"""A trial where PyTorch is not installed: the machine cannot run it, so that nothing is said of the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from builders import dense_model, request_of

ROOT = Path(__file__).resolve().parents[4]
ASKED = """
import json, sys
from cost_models.errors import MeasurementError
from profiler.trial.launch import run_trial
try:
    run_trial(json.loads(sys.argv[1]), deadline_s=60.0, device="cpu")
except MeasurementError as error:
    print(error.message, error.hint, sep="\\n")
"""


def test_pytorch_is_asked_for_before_anything_starts(tmp_path: Path) -> None:
    # An environment with all that is installed here but PyTorch; -S leaves the real one out.
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith("torch"):
            (tmp_path / installed.name).symlink_to(installed)
    row = request_of(dense_model(2), "torchtitan", cluster={"gpus_per_node": 1}, cross_entropy="unfused", compile=False)
    row["training"] |= {"attention_kernel": "sdpa"}
    row["strategy"] = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "micro_batch_size": 1}
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-S", "-c", ASKED, json.dumps(row)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    message, hint = ended.stdout.splitlines()
    assert message == "trials run with PyTorch, which is not installed here"
    assert "pip install" in hint
