"""The commands of the Dockerfile's first stage, run one by one in a folder instead of an image."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def context(folder: Path) -> list[str]:
    """Copies what .dockerignore lets through, and returns the names at the top.

    The file excludes everything (`*`), then names what comes along (`!NAME`), and what inside that does not (`**/NAME`).
    """
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    inside = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    for pattern in (line.removeprefix("!") for line in lines if line.startswith("!")):
        for path in ROOT.glob(pattern):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns(*inside))
            else:
                shutil.copy(path, target)
    return sorted(path.name for path in folder.iterdir())


def build(folder: Path) -> dict[str, Any]:
    """Runs every RUN of the build stage with its folders below `folder`; `srv/meshwright/bin` then holds the programs.

    Returns:
        What was run and what came of it; the wheel is made twice and must have the same bytes.
    """
    stage = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1]
    commands = re.findall(r"^RUN ((?:.*\\\n)*.*)$", stage, re.MULTILINE)
    source = folder / "src"
    source.mkdir(parents=True)
    names = context(source)
    # The system's python for the image's: unlike the one that runs this, any user may run it.
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder / "python"], check=True)
    shell = []
    for command in commands:
        # Only the folders are others; a bare `pip` or `python` is the image's, here that of the environment just made.
        line = re.sub(r"(?<![\w.])/(srv|wheels)\b", rf"{folder}/\1", command.replace("\\\n", " "))
        shell.append(" ".join(line.split()))
    path = f"{folder}/python/bin:/usr/bin:/bin"
    for line in shell:
        subprocess.run(
            ["sh", "-c", line], cwd=source, env={"PATH": path, "HOME": str(folder)}, check=True, stdout=sys.stderr
        )
    (wheel,) = (folder / "wheels").iterdir()
    again = next(word for word in shell[-1].split(" && ") if "pip wheel" in word).replace("/wheels", "/again")
    subprocess.run(
        ["sh", "-c", again], cwd=source, env={"PATH": path, "HOME": str(folder)}, check=True, stdout=sys.stderr
    )
    (second,) = (folder / "again").iterdir()
    assert wheel.read_bytes() == second.read_bytes(), "a wheel has the same bytes each time"
    return {
        "context": names,
        "commands": [line.replace(str(folder), "") for line in shell],
        "wheel": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
