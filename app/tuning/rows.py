"""From a ranked plan to the row that a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.launch_plan import row_of_plan


def trial_row(response: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The evaluate row of a ranked plan, with an id that says its rank.

    Raises:
        InvalidInputError: the response has no plan of this rank.
    """
    return {"id": f"plan-{rank}", **row_of_plan(response, rank)}
