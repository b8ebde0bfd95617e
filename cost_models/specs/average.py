"""A moving average of the weights that is kept beside them (`training.ema`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AverageDevice = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Average:
    """Where the average of every trained parameter lies, and how slowly it follows."""

    device: AverageDevice
    decay: float
    """Share of itself that it keeps at each step, between 0 and 1; it costs nothing."""
