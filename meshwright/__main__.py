"""`python -m meshwright` and the console script: the command line, safe from folders named like our packages.

Python puts the current folder first on the path for `-m`; a user's own `app/` or `profiler.py` there would be imported
in place of ours, so that entry is dropped unless it is the checkout this very file belongs to.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

ALLOCATIONS_PER_COLLECTION = 200_000
"""New objects between two searches for unreachable cycles, 700 by default. Imports make some 300,000 objects that stay, and looking
through them again and again took a tenth of the time of a short command."""


def drop_working_folder(path: list[str]) -> list[str]:
    """The import path without the current folder in front, unless this package was imported from it."""
    home = Path(__file__).resolve().parent.parent
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the folder was removed, so nothing in it can get in the way
        return path
    if path and Path(path[0] or ".").resolve() == here != home:
        return path[1:]
    return path


def main() -> None:
    """Runs the command line and exits with its code."""
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    # With -P or PYTHONSAFEPATH Python has not put the current folder there, and the first entry is not ours to drop.
    if not sys.flags.safe_path:
        sys.path[:] = drop_working_folder(sys.path)
    try:
        from app.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C while modules were still being imported
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
