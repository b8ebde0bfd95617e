"""Writes a measured figure to benchmarks/results/NAME.json with the commit, the date and the machine on which it was measured.

A file keeps the newest measurement of each machine, so that a figure is never compared with one from another machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def record(name: str, *, value: float, unit: str, goal: str, **details: Any) -> Path:
    """Writes and prints the figure, and returns its file.

    Args:
        name: what was measured, which is also the name of the file.
        value: the figure, in `unit`.
        unit: such as "strategies/s".
        goal: the bound that the figure is held against, such as ">= 500000".
        details: anything that says how it was measured.
    """
    # Four digits: more of a measured figure is noise, and would make every rerun a difference to look at.
    machine = machine_description()
    entry = {
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "goal": goal,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine,
        "details": details,
    }
    path = RESULTS / f"{name}.json"
    others = json.loads(path.read_text()) if path.exists() else []
    kept = [other for other in others if other["machine"] != machine]
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*kept, entry], indent=2) + "\n")
    print(f"{name}: {value:,.4g} {unit} (goal {goal})")
    return path


def commit(root: Path = ROOT) -> str:
    """The checked-out commit of a working tree, with a + if tracked sources differ from it."""
    # Results do not count as a difference: the first benchmark of a series would otherwise mark all that follow.
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return head + ("+" if changed else "")


def machine_description() -> dict[str, Any]:
    """The facts that decide how fast this machine runs our code."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
