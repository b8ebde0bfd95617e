"""Unpacks pinned wheels that the oracles of launch files import, without installing them or what they need.

    python -m scripts.launch_packages FOLDER

Each release of torchtitan gets a folder of its own; what they import from is shared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RELEASES = ("torchtitan==0.2.2", "torchtitan==0.3.0")
SHARED = ("tyro==1.0.17", "typeguard==4.6.1", "docstring-parser==0.18.0", "torchdata==0.11.0", "einops==0.8.2", "spmd_types==0.2.3",
          "torch_checkpointing==0.1.1")  # fmt: skip


def fetch(requirement: str, into: Path) -> None:
    """Unpacks the wheel of a requirement into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.12",
        ]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement], check=True)  # noqa: S603 - pip, with the pins above
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into)


def main() -> None:
    """Fills the folder; what is there already stays."""
    target = Path(sys.argv[1])
    for requirement in (*RELEASES, *SHARED):
        name, version = requirement.split("==")
        into = target / f"{name}-{version}" if requirement in RELEASES else target
        if not any(target.glob(f"**/{name.replace('-', '_')}-{version}.dist-info")):
            fetch(requirement, into)


if __name__ == "__main__":
    main()
