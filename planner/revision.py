"""Which prices this installation computes: a digest of the sources and data that every answer follows from.

Two installations of one product version may price a strategy differently, for example a checkout before and after a formula
was mended. A stored answer is returned again only to a request of the same revision.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_PACKAGES = ("cost_models", "planner")
_SUFFIXES = frozenset({".py", ".json"})
_SHOWN = 12


@lru_cache(maxsize=1)
def model_revision() -> str:
    """The first 12 hexadecimal digits of the SHA-256 over every source and data file of the cost models and the planner.

    Content alone counts, not the time or place of the installation, so that every copy of a release has the same revision.
    """
    return content_revision(Path(__file__).parent.parent)


def content_revision(root: Path) -> str:
    """The revision of the packages that lie under `root`."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted(path for path in (root / package).rglob("*") if path.suffix in _SUFFIXES):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:_SHOWN]
