"""When the bound on open splits may count on the slowest stage's passes to hide communication, and when everything hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import dense_model, job_of, row_of
from planner.splits.bounds import split_bound_s, whole_layers_s
from planner.splits.model import slowest_allowed_s, split_numbers

# A network so slow that the reduction of the gradients outlasts what a stage's passes can hide.
JOB = job_of(dense_model(8), num_nodes=4, cluster={"nic_gbit_per_s": 1, "nics_per_node": 1}, global_batch_size=96)


def saved_s(micro_batch_size: int, vpp: int, *, waits_s: float = 0.0) -> float:
    """What overlapping the reduction takes off the bound of a strategy whose layers wait so long for the host."""
    found = []
    for overlapped in (False, True):
        given = {"micro_batch_size": micro_batch_size, "vpp": vpp, "overlap": {"grad_reduce": overlapped, "p2p": False}}
        rows = row_of(JOB, pp=2, dp=16, zero=0, **given)
        numbers = split_numbers(JOB, rows)
        waiting = replace(numbers, waits_JN=np.full_like(numbers.waits_JN, waits_s))
        found.append(float(split_bound_s(JOB, rows, waiting)[0]))
    return found[0] - found[1]


@pytest.mark.parametrize(
    ("micro_batch_size", "vpp", "hides_by_itself", "hides_with_waits"),
    [
        # 6, 3 and 2 micro-batches, a second more of the slowest stage costs 5, 2 and 1; it hides at most 0.9, and as much again
        # where passes wait for the host.
        (1, 1, True, True),
        (2, 1, True, True),
        (3, 1, True, False),
        # Of one micro-batch it costs nothing, with two chunks half a second: nothing can be counted on.
        (6, 1, False, False),
        (6, 2, False, False),
        # Of two with two chunks 1.5 s.
        (3, 2, True, False),
    ],
)
def test_a_longer_stage_must_cost_more_than_it_hides(
    micro_batch_size: int, vpp: int, *, hides_by_itself: bool, hides_with_waits: bool
) -> None:
    """Where it does, only what fits into the slowest stage's passes is hidden; else the bound hides the whole reduction."""
    everything_s = saved_s(6, 1)
    assert everything_s > 0.5
    limited = [saved_s(micro_batch_size, vpp, waits_s=waits_s) < 0.5 * everything_s for waits_s in (0.0, 1e-6)]
    assert limited == [hides_by_itself, hides_with_waits]


def test_the_longest_stage_of_a_limit() -> None:
    """t of 2 (t) + 12 s with three micro-batches, over two chunks 2.5 t + 6 s; with one micro-batch the limit itself."""
    every = [row_of(JOB, pp=2, dp=16, micro_batch_size=size, zero=0, vpp=vpp) for size, vpp in ((2, 1), (2, 2), (6, 1))]
    found = [float(slowest_allowed_s(rows, np.array([12.0]), np.array([30.0]))[0]) for rows in every]
    assert found == pytest.approx([9.0, 9.6, 30.0])
    assert slowest_allowed_s(every[0], np.array([12.0]), np.array([np.inf])).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("layers", "pp", "first_s", "last_s", "least_s"),
    [
        (12, 4, 0.0, 0.0, 0.3),  # three each; 12 x 0.1 / 4 / 0.1 is a little more than 3
        (13, 4, 0.0, 0.0, 0.4),  # one stage has four
        (12, 4, 0.0, 0.1, 0.4),  # 13 layers' worth: three, three, three and an end
        (12, 4, 0.25, 0.0, 0.4),  # four, four and four beside an end of two and a half
        (6, 2, 0.05, 0.25, 0.45),  # four beside the short end, two beside the long one
        (2, 2, 0.9, 0.0, 0.9),  # an end that outlasts all layers
    ],
)
def test_whole_layers_find_their_places(layers, pp, first_s, last_s, least_s) -> None:
    """Layers of 0.1 s."""
    given = (np.array([value]) for value in (0.1, float(pp), first_s, last_s))
    assert whole_layers_s(*given, float(layers))[0] == pytest.approx(least_s)
