"""How much less memory the card may offer before another listed plan is the best one that fits.

No price depends on the card's memory, so the answer follows from the plans' own numbers. Near-copies are compared here too: one of
them may need less, and is then the best plan that still fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def memory_flips(response: Mapping[str, Any]) -> Document | None:
    """Which listed plan is the best where the card offers less memory; None on pools, whose cards differ.

    A plan fits while the high end of its memory's range is within capacity * (1 - headroom), which is the verdict's rule.

    Returns:
        `capacity_bytes`, `headroom_fraction`, `changes` (`less_bytes`: the card offers more than this less, and then the plan of
        `rank` is the best that fits; nearest first) and `none_fits_from_less_bytes` (where no listed plan fits any more).
    """
    # A plan that is at risk today ranks behind every plan that fits, and is not sure to fit with less.
    fitting = [plan for plan in response["plans"] if plan["evaluation"]["verdict"] == "fits"]
    if not fitting or "pools" in response["request"]["cluster"]:
        return None
    headroom = response["request"]["constraints"]["memory_headroom_fraction"]
    capacity = fitting[0]["evaluation"]["memory"]["capacity_bytes"]
    room = {
        plan["rank"]: capacity - plan["evaluation"]["memory"]["peak_device_range_bytes"][1] / (1.0 - headroom)
        for plan in fitting
    }
    changes, leader = [], fitting[0]["rank"]
    # Plans are listed best first, so that the next one with more room is the best that fits where the leader no longer does.
    for rank, spare in room.items():
        if spare > room[leader]:
            changes.append({"less_bytes": room[leader], "rank": rank})
            leader = rank
    return {
        "capacity_bytes": capacity,
        "headroom_fraction": headroom,
        "changes": changes,
        "none_fits_from_less_bytes": room[leader],
    }
