"""What `plan` claims of requests that fix a part and leave the rest open, against every strategy that a user could write.

Unlike the jobs of `test_plan_brute_force.py` these leave whole axes to the search, so that values which it never tries show, too.
"""

from __future__ import annotations

import pytest
from brute_force_partly_fixed import fitting, judged_partly_fixed, partly_fixed_request

from meshwright import plan


def contradicted(seed: int, *, most_rows: int) -> str:
    request, strategies = partly_fixed_request(seed, most_rows=most_rows)
    findings = judged_partly_fixed(request, plan(request), fitting(request, strategies))
    return "\n".join(f"{each.kind}: {each.text}; {each.better_s} s: {each.strategy}" for each in findings)


@pytest.mark.parametrize("seed", range(20))
def test_partly_fixed_requests(seed: int) -> None:
    assert contradicted(seed, most_rows=400) == ""


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 300))
def test_partly_fixed_requests_of_more_rows(seed: int) -> None:
    assert contradicted(seed, most_rows=1500) == ""
