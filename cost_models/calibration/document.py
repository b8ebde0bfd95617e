"""The calibration document, schema 1: what one machine was measured to do, immutable, named by the digest of its content.

Samples are kept as measured. Fits are what the cost models read, with their residual and the range that they hold in. The
digest is computed over the canonical JSON (sorted keys, defaults left out), so that fields added later do not change old ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cost_models.calibration.samples import (
    AttentionSample,
    CollectiveSample,
    Count,
    Device,
    DeviceState,
    Fingerprint,
    Fraction,
    GemmSample,
    Host,
    HostAdamSample,
    MathAttentionSample,
    Measured,
    MemoryFacts,
    MemorySample,
    OverlapSample,
    PairSample,
    Position,
    Positive,
)
from cost_models.operations import Op

SCHEMA_VERSION = 1
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2}))?", re.ASCII)


def _timestamp(text: str) -> str:
    # Kept as it is written, because the document's id is the digest of its text.
    if _RFC_3339.fullmatch(text):
        with suppress(ValueError):
            datetime.fromisoformat(text)
            return text
    raise ValueError(
        f"{text[:60]!r} is not a date or time of RFC 3339, such as 2026-11-27 or 2026-11-27T09:30:00+00:00"
    )


Timestamp = Annotated[str, AfterValidator(_timestamp)]


class CollectiveFit(Measured):
    """Seconds against size for one operation and group, cleaned: medians that never fall with size."""

    op: Op
    """The operation."""
    ranks: Count
    """Number of ranks of the group."""
    ranks_per_node: Count
    """Number of ranks of the group on each node."""
    size_bytes: tuple[Positive, ...]
    """Sizes of the curve, in bytes, rising."""
    time_s: tuple[Positive, ...]
    """Seconds at each size, never falling."""
    residual_fraction: Fraction
    """80th percentile of the errors of leaving one size out and interpolating it, as a share of the time."""
    stride: Count = 1
    """Number of ranks from one member of the group to the next."""
    concurrent_groups: Count = 1
    """Number of such groups that ran at once on the same nodes."""

    @model_validator(mode="after")
    def _is_a_curve(self) -> Self:
        if not self.size_bytes or len(self.size_bytes) != len(self.time_s):
            raise ValueError("size_bytes and time_s must be equally long and not empty")
        if any(b <= a for a, b in pairwise(self.size_bytes)) or any(b < a for a, b in pairwise(self.time_s)):
            raise ValueError("size_bytes must rise and time_s never fall")
        if self.ranks % self.ranks_per_node:
            raise ValueError("ranks_per_node must divide ranks")
        return self


class GemmFit(Measured):
    """How well the interpolated efficiency predicts a shape that was left out, and where the measured shapes lie."""

    dtype: str
    """Type of the factors."""
    residual_fraction: Fraction
    """80th percentile of the errors for a shape that was left out, as a share of its time."""
    m_range: tuple[Position, Position]
    """Smallest and largest number of rows that was measured."""
    n_range: tuple[Position, Position]
    """Smallest and largest number of columns that was measured."""
    k_range: tuple[Position, Position]
    """Smallest and largest number of summed elements that was measured."""


class CalibrationDocument(Measured):
    """One machine's measurements with their fits. It is never edited: a new measurement is a new document."""

    schema_version: Literal[1]
    """Version of this document's form."""
    name: Annotated[str, Field(min_length=1, max_length=120)]
    """What the calibration is called."""
    kind: Literal["reference", "measured"]
    """"reference" means public curves of this GPU, not of the user's machine."""
    fingerprint: Fingerprint
    """The machine and the software that were measured."""
    device: Device
    """Facts of the GPU's data sheet."""
    created_at: Timestamp
    """RFC 3339 date or time of the measurement, or of the compilation of public data."""
    source: str = ""
    """Where the numbers come from."""
    licence: str = ""
    """Licence of data that others published."""
    load: Literal["burst", "sustained"] = "sustained"
    """"burst" means short runs at a boosted clock, to which the sustained-clock constant applies."""
    gemm: tuple[GemmSample, ...] = ()
    """Matrix products."""
    collectives: tuple[CollectiveSample, ...] = ()
    """Collectives."""
    attention: tuple[AttentionSample, ...] = ()
    """Calls of fused attention kernels."""
    math_attention: tuple[MathAttentionSample, ...] = ()
    """Calls of unfused attention."""
    overlap: tuple[OverlapSample, ...] = ()
    """Products and collectives side by side."""
    pairs: tuple[PairSample, ...] = ()
    """Bandwidth between pairs of ranks."""
    devices: tuple[DeviceState, ...] = ()
    """State of every rank's GPU during the measurement."""
    memory_bandwidth: tuple[MemorySample, ...] = ()
    """Bandwidth of the GPU's memory and of copies to and from the host."""
    host_adam: tuple[HostAdamSample, ...] = ()
    """The optimizer on the processors."""
    host: Host = Host()
    """What issuing work costs the processor."""
    memory: MemoryFacts = MemoryFacts()
    """Memory beside the allocator's."""
    collective_fits: tuple[CollectiveFit, ...] = ()
    """Curves that were fitted to the collectives."""
    gemm_fits: tuple[GemmFit, ...] = ()
    """How well the products' efficiency can be interpolated."""
    notes: tuple[str, ...] = ()
    """Sentences about the measurement."""

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def canonical_json(self) -> str:
        """The content that the digest is computed over."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def file_text(self) -> str:
        """The text that is stored: the canonical content with its id in front."""
        return f'{{"id":"{self.id}",{self.canonical_json()[1:]}\n'
