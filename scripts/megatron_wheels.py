"""Downloads the wheels of Megatron Core, Megatron-Bridge and NeMo that the tests of launch files ask, and unpacks them.

    python -m scripts.megatron_wheels

They land in `.oracles/megatron/<release>`, `.oracles/bridge/<release>` and `.oracles/nemo/<release>`, 2 to 8 MB each, outside every
environment: the wheels ask for Python 3.12 and CUDA, and nothing of them is imported but by `megatron_parser.py`,
`bridge_container.py` and `nemo_arguments.py` of `tests/oracle/launch`, in processes of their own.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RELEASES = ("0.17.0", "0.18.0", "0.19.2")
"""The releases with `megatron/training` in their wheel, newest patch of each that was read."""
BRIDGE: Mapping[str, tuple[str, str]] = {
    "0.3": ("0.3.1", "0.16.1"), "0.4": ("0.4.2", "0.17.0"), "0.5": ("0.5.1", "0.18.0"), "0.6": ("0.6.2", "0.19.2"),
}  # fmt: skip
"""Megatron-Bridge's releases, each with the Megatron Core that it is tried on."""
NEMO: Mapping[str, tuple[str, str]] = {
    "2.5": ("2.5.0", "0.14.0"),
    "2.6": ("2.6.0", "0.15.3"),
    "2.7": ("2.7.0", "0.16.1"),
}
"""NeMo's releases, likewise."""
DIGESTS: Mapping[str, str] = {
    "megatron_bridge-0.3.1-py3-none-any.whl": "4d9a9ad679bd927a84f923e5239512d72af7fa47331b749a8f275592c2920616",
    "megatron_bridge-0.4.2-py3-none-any.whl": "6f132e19fe8e4a88d7acd65e63182a3f6ff4fbd664d85a436cba44da5e621ce3",
    "megatron_bridge-0.5.1-py3-none-any.whl": "961ad0a3e08678bb7172b9be3356131567e19d9476f3c983fdaa8483be8f5c3b",
    "megatron_bridge-0.6.2-py3-none-any.whl": "bcb7274ab9327167c345aa24b96b95790ce5090df1945d883bdc41065d5649e2",
    "nemo_toolkit-2.5.0-py3-none-any.whl": "605149b8ee57feba2f0ea90f71e59ab3fddb82ff3be9408988cb4a0d2ba95adc",
    "nemo_toolkit-2.6.0-py3-none-any.whl": "0849541927e99fb701fc2b4565a54c42d011dc370cc3c3a6b5d8260f521a751f",
    "nemo_toolkit-2.7.0-py3-none-any.whl": "0c2b2c51930e7fff852c27f6a8a79bf0b8e14e4f59f139aca0a6078aeb8a3a10",
}
"""SHA-256 of the wheels that are the same for every machine; those of Megatron Core hold compiled code."""
_ORACLES = Path(__file__).resolve().parent.parent / ".oracles"
FOLDER = _ORACLES / "megatron"
BRIDGE_FOLDER = _ORACLES / "bridge"
NEMO_FOLDER = _ORACLES / "nemo"


def fetch(package: str, release: str, into: Path) -> None:
    """Unpacks one release, unless it is there.

    Raises:
        ValueError: the wheel is another one than was read.
    """
    target = into / release
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - pip of this environment, with a name of the tables above
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--ignore-requires-python",
             "--only-binary", ":all:", "--dest", folder, f"{package}=={release}"],
            check=True,
        )  # fmt: skip
        wheel = next(Path(folder).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if DIGESTS.get(wheel.name, digest) != digest:
            raise ValueError(f"{wheel.name} has the digest {digest}, not {DIGESTS[wheel.name]}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


def main() -> None:
    """Fills the three folders; what is there already stays."""
    cores = sorted({*RELEASES, *(core for _, core in (*BRIDGE.values(), *NEMO.values()))})
    wanted = [
        *(("megatron-core", each, FOLDER) for each in cores),
        *(("megatron-bridge", each, BRIDGE_FOLDER) for each, _ in BRIDGE.values()),
        *(("nemo-toolkit", each, NEMO_FOLDER) for each, _ in NEMO.values()),
    ]
    # Downloads wait for the network most of their time.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda what: fetch(*what), wanted))


if __name__ == "__main__":
    main()
