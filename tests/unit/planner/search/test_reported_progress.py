"""What a search reports: the bound is what no strategy undercuts, and the best plan is a strategy, too."""

from __future__ import annotations

import math

import pytest

import meshwright
from planner.search.progress import Progress, progress_of


@pytest.mark.parametrize(
    ("best_s", "rest_s", "bound_s"),
    [(None, 2.0, 2.0), (None, math.inf, None), (3.0, 2.0, 2.0), (3.0, 4.0, 3.0), (3.0, math.inf, 3.0)],
)
def test_a_bound_is_never_above_the_best(best_s: float | None, rest_s: float, bound_s: float | None) -> None:
    assert progress_of(7.0, best_s=best_s, rest_s=rest_s) == Progress(7.0, best_s, bound_s)


def test_no_part_of_a_search_reports_a_bound_above_its_best() -> None:
    """The search of open splits looks only at splits that may beat the best listed one, and so bounds them alone."""
    reports: list[Progress] = []
    request = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 2},
        "training": {"seq_length": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron"},
        "include": ["open_splits"],
    }
    meshwright.plan(request, on_progress=reports.append)
    assert reports
    assert all(each.bound_s <= each.best_s for each in reports if each.best_s and each.bound_s)
