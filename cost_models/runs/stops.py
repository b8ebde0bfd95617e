"""How much of a run failures and checkpoints leave for training, and how often it should be saved.             [T-8] [T-9]

All quantities are seconds of one run, as plain numbers: T_f between two failures, T_r from a failure until training goes on, T_s
for which saving a checkpoint stops training, T_c of training from the end of one save to the beginning of the next.
"""

from __future__ import annotations

import math

from cost_models.specs.run import MOST_SPARES


def young_interval_s(*, between_s: float, save_s: float) -> float:
    """Seconds of training between two saves that lose the least time to first order. [T-8]

        T_c = sqrt(2 T_f T_s)

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974).
    """
    return math.sqrt(2.0 * between_s * save_s)


def optimal_interval_s(*, between_s: float, recovery_s: float, save_s: float) -> float:
    """Seconds of training between two saves at which a run is available the longest share of its time. [T-8]

        T_c = sqrt(2 (T_f + T_r) T_s + T_s²)

    Source: Saxena et al. 2024 (arXiv 2410.18124), whose interval begins with the save before it and is longer by T_s.
    """
    return math.sqrt(2.0 * (between_s + recovery_s) * save_s + save_s**2)


def goodput(*, interval_s: float, save_s: float, between_s: float, recovery_s: float, unsafe_s: float = 0.0) -> float:
    """Share of a run's time that trains what no failure undoes, 0...1. [T-8]

        T_c / (T_c + T_s) · T_f / (T_f + T_r + T_c / 2 + T_w)

    A failure costs the recovery and on average half an interval that is trained again. It holds while both are short beside T_f.

    Args:
        interval_s: T_c, seconds of training between two saves.
        save_s: T_s, seconds for which a save stops training; 0 where it does not.
        between_s: T_f, mean seconds between failures.
        recovery_s: T_r, seconds from a failure until training goes on.
        unsafe_s: T_w, seconds behind a save until storage holds it; a failure in them goes back to the save before.
    """
    # The two losses are independent to first order, so their shares multiply.
    saved = interval_s / (interval_s + save_s) if save_s else 1.0
    return saved * between_s / (between_s + recovery_s + interval_s / 2.0 + unsafe_s)


def ready_fraction(*, in_repair: float, spares: int) -> float:
    """Share of a run's time for which a node stands ready for every one that is broken, above 0 to 1. [T-9]

        1 - B(s + 1, a),  B(0, a) = 1,  B(k, a) = a B(k - 1, a) / (k + a B(k - 1, a))

    Nodes fail while the run trains, and it waits once s + 1 of them are in repair: Erlang's loss formula, for any distribution of
    the time of repair.

    Args:
        in_repair: a, nodes that fail during one repair: mean seconds of a repair over mean seconds between failures.
        spares: s, nodes that stand ready beside those in use.
    """
    # Of the sum over factorials, which overflows from 171 spares on, the recursion is the stable form.
    blocked = 1.0
    for lines in range(1, spares + 1):
        blocked = in_repair * blocked / (lines + in_repair * blocked)
    # 1 - B would be 0 where nearly all of the time is spent waiting, and a run that never ends has no number of days.
    return (spares + 1.0) / (spares + 1.0 + in_repair * blocked)


def fewest_spares(*, in_repair: float, waiting: float) -> int:
    """Smallest number of spare nodes with which a run waits for repairs for at most this share of its time. [T-9]"""
    blocked, spares = in_repair / (1.0 + in_repair), 0
    while blocked > waiting and spares < MOST_SPARES:
        spares += 1
        blocked = in_repair * blocked / (spares + 1.0 + in_repair * blocked)
    return spares
