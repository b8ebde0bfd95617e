"""Unpacks pinned wheels that the oracles of launch files import, without installing them or what they need.

    python -m scripts.launch_packages FOLDER

Each release of torchtitan and Accelerate gets a folder of its own, and so does DeepSpeed, which is made from its source without its kernels; what
they import from is shared. Needs torch, which DeepSpeed's setup imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RELEASES = ("torchtitan==0.2.2", "torchtitan==0.3.0", "accelerate==1.15.0")
"""Each in a folder of its own: two of torchtitan cannot be one, and transformers behaves differently where it finds Accelerate."""
SHARED = ("tyro==1.0.17", "typeguard==4.6.1", "docstring-parser==0.18.0", "torchdata==0.11.0", "einops==0.8.2", "spmd_types==0.2.3",
          "torch_checkpointing==0.1.1", "hjson==3.1.0", "py-cpuinfo==9.0.0")  # fmt: skip
OF_THIS_PYTHON = ("psutil==7.2.2", "msgpack==1.2.4")
"""Wheels that hold compiled code, so that they must be those of the interpreter that runs the tests."""
DEEPSPEED = "deepspeed==0.19.8"
PURE = ("--only-binary=:all:", "--python-version", "3.12")


def fetch(requirement: str, into: Path, *, options: tuple[str, ...] = PURE) -> None:
    """Unpacks the wheel of a requirement into a folder."""
    unpacked(("download", *options), requirement, into)


def unpacked(command: tuple[str, ...], requirement: str, into: Path) -> None:
    """Unpacks the wheel that a command of pip puts down."""
    with tempfile.TemporaryDirectory() as folder:
        place = "--dest" if command[0] == "download" else "--wheel-dir"
        shared = ["--quiet", "--disable-pip-version-check", "--no-deps", place, folder]
        subprocess.run(  # noqa: S603 - pip, with the pins above
            [sys.executable, "-m", "pip", *command, *shared, requirement],
            check=True,
            env={**os.environ, "DS_BUILD_OPS": "0"},
        )
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)


def put_down(requirement: str, target: Path) -> None:
    """Puts one requirement where it belongs in the folder."""
    own = target / requirement.replace("==", "-")
    if requirement == DEEPSPEED:
        unpacked(("wheel", "--no-build-isolation"), requirement, own)
    elif requirement in OF_THIS_PYTHON:
        fetch(requirement, target, options=("--only-binary=:all:",))
    else:
        fetch(requirement, own if requirement in RELEASES else target)


def main() -> None:
    """Fills the folder; what is there already stays."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in target.glob("**/*.dist-info")}
    # DeepSpeed, which takes longest, is begun first; downloads wait for the network most of their time.
    absent = [
        requirement
        for requirement in (DEEPSPEED, *RELEASES, *OF_THIS_PYTHON, *SHARED)
        if f"{requirement.replace('-', '_').replace('==', '-')}.dist-info" not in there
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda requirement: put_down(requirement, target), absent))


if __name__ == "__main__":
    main()
