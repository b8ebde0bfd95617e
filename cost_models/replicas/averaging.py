"""Traffic of replicas that average their parameters now and then: local SGD, DiLoCo and its streaming form. [C-40]

Closed forms over plain numbers or arrays. Which ranks form a group, and how long their own steps take, is for `step.exchange` to say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def between_islands_s(
    size_bytes: Floats | float, *, islands: Floats | float, link_bytes_per_s: float, latency_s: float
) -> Floats:
    """Seconds to all-reduce `size_bytes` among islands by a ring over their slow links. [C-40]

        t = 2 (R - 1) (latency_s + size_bytes / (R link_bytes_per_s))

    Args:
        size_bytes: what every island holds one copy of, shape (N,).
        islands: R, those that take part, shape (N,); one costs nothing.
        link_bytes_per_s: rate at which one island sends.
        latency_s: of one message.
    """
    size, count = np.asarray(size_bytes, np.float64), np.asarray(islands, np.float64)
    return np.asarray(2.0 * (count - 1.0) * (latency_s + size / (count * link_bytes_per_s)))


def exposed_per_step_s(
    fragment_s: Floats | float, *, step_s: Floats | float, sync_every: int, fragments: int, delay_steps: int
) -> Floats:
    """Mean seconds that a step waits for synchronisations. [C-40]

        (1 / H) f max(0, t_fragment - tau t_step)

    Each of f fragments is synchronised once in H steps, and training goes on for tau steps meanwhile.

    Args:
        fragment_s: seconds to synchronise one fragment, shape (N,).
        step_s: seconds of a step without synchronisation, shape (N,).
        sync_every: H.
        fragments: f.
        delay_steps: tau.

    Source: Douillard et al. 2023 (arXiv 2311.08105) and 2025 (arXiv 2501.18512, streaming).
    """
    waits_s = np.maximum(0.0, np.asarray(fragment_s) - delay_steps * np.asarray(step_s))
    return np.asarray(fragments * waits_s / sync_every)
