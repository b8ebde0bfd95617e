"""What a collective and a computation cost each other while they run side by side. [O-2]

It comes from a profile's overlap samples, which say how much longer each takes beside the other. Both are rates, as if the two
shared the device evenly from start to end; that a collective also waits for room when it starts is part of what was measured.
How either changes with the size of the message or of the product was not measured and is not modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import OverlapSample
from cost_models.constants import INTERFERENCE
from cost_models.operations import OPS, Op
from cost_models.strategies.tensors import summed
from cost_models.terms import Tier

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Beside:
    """What one operation and a computation beside it cost each other."""

    lost_fraction: float
    """Seconds that the computation loses for each second that the collective takes alone."""
    hidden_fraction: float
    """Seconds of the collective, as it takes alone, that are done during one second of computation."""
    tier: Tier


NOMINAL_BESIDE = Beside(INTERFERENCE.value, 1.0, Tier.NOMINAL)


def beside_of(document: CalibrationDocument | None) -> Mapping[Op, Beside]:
    """What every operation costs beside computation: measured where the document has samples of it, else nominal."""
    samples: dict[Op, list[OverlapSample]] = defaultdict(list)
    for sample in document.overlap if document is not None else ():
        samples[sample.op].append(sample)
    return {op: _measured(samples[op]) if samples[op] else NOMINAL_BESIDE for op in OPS}


def _measured(samples: list[OverlapSample]) -> Beside:
    """What one operation's samples say, their medians, as rates of losing and hiding. [O-2]

        lost = c (1 + d) / (1 + c),  hidden = (1 + c) / (1 + d) - c

    c and d are the fractions by which computation and collective are slower beside each other. While both run, one
    second of computation takes 1 + c, in which (1 + c) / (1 + d) seconds of the collective are done; that is hidden,
    less the c by which the computation is longer. A collective of one second takes 1 + d, in which (1 + d) / (1 + c)
    seconds of computation are done; that is lost = (1 + d) c / (1 + c) less than alone. Neither is worse than running
    one after the other.
    """
    # Medians, because single samples scatter widely at the power limit.
    compute = median(s.compute_slowdown_fraction for s in samples)
    collective = median(s.communication_slowdown_fraction for s in samples)
    lost = compute * (1.0 + collective) / (1.0 + compute)
    hidden = (1.0 + compute) / (1.0 + collective) - compute
    # Samples can suggest worse than that where both were disturbed; running one after the other is always possible.
    return Beside(min(lost, 1.0), max(hidden, 0.0), Tier.MEASURED)


def beside_s(compute_s: Floats, parts: Mapping[Op, Floats], *, each: Mapping[Op, Beside]) -> Floats:
    """Seconds that collectives add to a computation beside them, two rows: what it always loses, and what sticks out beyond. [O-2]

        lost = sum i L min(1, C / sum L),  out = max(0, sum L - h C - lost)

    Args:
        compute_s: C, seconds of the computation alone.
        parts: L, link seconds of the collectives alone, by operation; they follow one another.
        each: what each operation loses and hides, i and h; several operations weigh theirs by L.
    """
    link_s = summed(parts.values())
    first = each[next(iter(parts))]
    # Without a profile all operations share the nominal values, and the weighted mean below would only add rounding.
    if all(each[op] == first for op in parts):
        lost_s, hidden_s = first.lost_fraction * np.minimum(compute_s, link_s), first.hidden_fraction * compute_s
    else:
        whole = np.maximum(link_s, 1e-30)
        lost_s = summed(each[op].lost_fraction * seconds for op, seconds in parts.items())
        lost_s = lost_s * np.minimum(1.0, compute_s / whole)
        shares = summed(each[op].hidden_fraction * seconds for op, seconds in parts.items())
        hidden_s = shares / whole * compute_s
    return np.stack([lost_s, np.maximum(link_s - hidden_s - lost_s, 0.0)])
