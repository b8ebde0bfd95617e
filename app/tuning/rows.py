"""From a ranked plan to the row that a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.launch_plan import row_of_plan


def trial_row(response: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The evaluate row of a ranked plan, without the answers that a response adds to its strategy.

    Raises:
        InvalidInputError: the response has no plan of this rank.
    """
    return row_of_plan(response, rank)
