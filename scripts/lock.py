"""The exact packages of the container images, with the hashes of their files: `docker/*.lock`, made from pyproject.toml by uv.

    python -m scripts.lock write [YYYY-MM-DD]   resolves anew, with what the registry had on that day (default: a week ago)
    python -m scripts.lock check                resolves again as of the day in each file, which must give the same bytes

The day makes a resolution repeatable. A week leaves time for a bad release to be noticed and withdrawn.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker"
DAY = re.compile(r"as of (\d{4}-\d{2}-\d{2})")
PYTHON = "3.11"
"""Of both base images."""
# The image that it is built on brings PyTorch with CUDA, and a copy from the registry would be one for another CUDA.
_BROUGHT = ("torch",)


def inputs(project: dict[str, Any]) -> dict[str, list[str]]:
    """The requirements of each lock file, by its name, from a parsed pyproject.toml."""
    base, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    return {
        "build": project["build-system"]["requires"],
        "requirements": [*base, *extras["postgres"], *extras["otel"]],
        "profiler": [*base, *(line for line in extras["profiler"] if _name(line) not in _BROUGHT)],
    }


def resolved(requirements: Sequence[str], *, day: str) -> str:
    """The text of a lock file: every package that these requirements need, as of this day, at midnight in UTC.

    Raises:
        subprocess.CalledProcessError: uv says why on stderr.
    """
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
        "--python-platform", "linux", "--python-version", PYTHON, "--exclude-newer", f"{day}T00:00:00Z", "-",
    ]  # fmt: skip
    made = subprocess.run(  # noqa: S603 - uv of this environment, with the options above
        command, input="\n".join(requirements), capture_output=True, text=True, check=False, cwd=FOLDER
    )
    if made.returncode:
        sys.stderr.write(made.stderr)
        made.check_returncode()
    return f"# Made by `python -m scripts.lock write` as of {day}; do not edit.\n{made.stdout}"


def main() -> int:
    """Exit code: 1 where `check` finds a file that is not what its input gives."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    action, *given = sys.argv[1:]
    a_week_ago = (datetime.now(UTC) - timedelta(days=7)).date().isoformat()
    stale = 0
    for name, requirements in inputs(project).items():
        file = FOLDER / f"{name}.lock"
        if action == "write":
            file.write_text(resolved(requirements, day=given[0] if given else a_week_ago), encoding="utf-8")
            continue
        kept = file.read_text(encoding="utf-8")
        named = DAY.search(kept)
        if named is None or resolved(requirements, day=named[1]) != kept:
            print(f"{file.relative_to(ROOT)} is not what pyproject.toml gives: run python -m scripts.lock write")
            stale = 1
    return stale


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
