"""The revision of the models in this installation: a digest of all sources and data that determine an answer.

Two installations of the same product version may price a strategy differently, for example a checkout before and after a formula
was corrected. A stored answer is therefore returned again only to a request of the same revision.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_PACKAGES = ("cost_models", "planner")
_SUFFIXES = frozenset({".py", ".json"})
# Digits that are shown: 48 bits, so that two revisions of one service never collide in practice.
_SHOWN = 12


@lru_cache(maxsize=1)
def model_revision() -> str:
    """The first 12 hexadecimal digits of the SHA-256 over every source and data file of the cost models and the planner.

    Only content counts, not the time or place of the installation, so that all copies of a release have the same revision.
    """
    # A wheel holds the packages under one name, with imports that say so, and keeps the revision of the sources that it was made of.
    kept = Path(__file__).with_name("revision.txt")
    return kept.read_text(encoding="utf-8") if kept.exists() else content_revision(Path(__file__).parent.parent)


def content_revision(root: Path) -> str:
    """The revision of the packages that lie under `root`."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for file in sorted(path for path in (root / package).rglob("*") if path.suffix in _SUFFIXES):
            content = file.read_bytes()
            # With the length in front, moving bytes from the end of one file to the start of the next changes the digest.
            digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:_SHOWN]
