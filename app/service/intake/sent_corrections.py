"""A tenant's corrections on their way to an answering process, which neither loads the storage nor fits anything."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import lru_cache

from cost_models.corrections import Correction, CorrectionSet

NOTHING = b""
"""What is sent for a tenant whose runs teach nothing."""


@lru_cache(maxsize=256)
def sent(corrections: tuple[Correction, ...]) -> bytes:
    """The corrections as bytes, for `received`."""
    # Without the ids of the runs and the sentences, which no prediction needs and which make most of it.
    return pickle.dumps([replace(each, sources=(), reason="") for each in corrections]) if corrections else NOTHING


@lru_cache(maxsize=64)
def received(told: bytes) -> CorrectionSet:
    """What was sent: the same object for the same bytes, since cost models keep what they have computed for it."""
    listed = pickle.loads(told) if told else ()  # noqa: S301 - both processes are ours
    return CorrectionSet(listed, asked_for=False)
