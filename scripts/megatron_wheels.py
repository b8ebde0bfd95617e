"""Downloads the wheels of megatron-core whose own argument parsers the tests of launch files ask, and unpacks them.

    python -m scripts.megatron_wheels

They land in `.oracles/megatron/<release>`, 2 MB each, outside every environment: the wheels ask for Python 3.12 and CUDA, and
nothing of them is imported but by `tests/oracle/launch/megatron_parser.py` in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RELEASES = ("0.17.0", "0.18.0", "0.19.2")
"""The releases with `megatron/training` in their wheel, newest patch of each that was read."""
FOLDER = Path(__file__).resolve().parent.parent / ".oracles" / "megatron"


def fetch(release: str) -> None:
    """Unpacks one release, unless it is there."""
    target = FOLDER / release
    if (target / "megatron" / "training" / "arguments.py").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - pip of this environment, with a name of the table above
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-requires-python",
             "--only-binary", ":all:", "--dest", folder, f"megatron-core=={release}"],
            check=True,
        )  # fmt: skip
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


if __name__ == "__main__":
    for each in RELEASES:
        fetch(each)
