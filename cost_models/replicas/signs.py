"""How often optimizers that exchange signs send whole gradients, and how often signs. [C-44]"""

from __future__ import annotations

VARIANCE_UPDATES = 16
"""Updates of the variance after which 0/1 Adam doubles the steps between two. Source: DeepSpeed zoadam.py, default of var_update_scaler."""


def variance_updates(steps: int) -> int:
    """Of so many first steps, those in which 0/1 Adam updates its variance, for which gradients pass whole. [C-44]

    It does so at multiples of an interval that begins as one step and doubles after every sixteen updates.

    Source: DeepSpeed runtime/fp16/onebit/zoadam.py (var_interval, var_counter), 0.19.6.
    """
    found, step, interval = 0, 0, 1
    while True:
        # The next multiple of the interval behind the last update; intervals double a few times alone, so that this is a short walk.
        step = (step // interval + 1) * interval
        if step > steps:
            return found
        found += 1
        if found % VARIANCE_UPDATES == 0:
            interval *= 2
