"""Seconds of a base installation into an empty virtual environment, network and all. Run: python benchmarks/install_time.py."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import ROOT, record

GOAL = "<= 60"


def seconds() -> float:
    """Wall seconds of `python -m venv` and `pip install` of this checkout, without extras."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "install", "--quiet", str(ROOT)]
        subprocess.run(pip, check=True)
        return time.perf_counter() - begin


if __name__ == "__main__":
    record("install_time", value=seconds(), unit="s", goal=GOAL)
