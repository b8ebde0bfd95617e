"""What takes long to make and is only read, made once by all processes of a run of the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

FOLDER_VARIABLE = "MADE_ONCE_BY_TESTS"
"""Names the folder that the processes of a run share; `conftest.py` makes and removes it."""


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by `make` in whichever process comes first; the others wait for it.

    What is in it is shared: a test that changes it takes a copy. If `make` fails, the folder is emptied and the next process tries.
    """
    shared = Path(os.environ[FOLDER_VARIABLE])
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
