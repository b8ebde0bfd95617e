"""Interleaved chunks of unequal times, by hand, and what they make of a step."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, rows_of
from cost_models.step.interleaving import fills_rounds, interleaved_s
from cost_models.step.stage_costs import stage_costs
from cost_models.step.stages import chunk_passes_s, groups_of_unlike_chunks
from cost_models.step.total import step_time

MICRO_BATCHES = 8


def two_ranks_s(layers: list[int], *, micro_batches: int = 2) -> float:
    """Two ranks of two chunks; a layer's forward takes 1 and its backward 2."""
    forward = np.array(layers, float)[:, None]
    return float(
        interleaved_s(forward, 2 * forward, pp=2, vpp=2, num_micro_batches=np.array([float(micro_batches)]))[0]
    )


def test_equal_chunks() -> None:
    """Two micro-batches of 6 and half of the other stage's 6."""
    assert two_ranks_s([1, 1, 1, 1]) == 2 * 6 + 3


def test_a_heavy_second_chunk_is_waited_for() -> None:
    """Layers [1, 1 | 3, 3]: both stages have work for 24, and the step takes 33, not 30.

    Rank 0: F 0-1, 1-2, 2-5, 5-8. Rank 1: F 1-2, 2-3, then F 5-8, B 8-14, F 14-17, B 17-23. Rank 0: B 14-20, 23-29. Rank 1: B 23-25,
    29-31. Rank 0: B 29-31, 31-33.
    """
    assert two_ranks_s([1, 1, 3, 3]) == 33


def test_a_stage_with_room_to_spare_hides_the_bubble() -> None:
    """Layers [1, 1 | 3, 1]: rank 0 is never idle. The other stage's time over the chunks would make it 27.

    Rank 0: F 0-1, 1-2, 2-5, 5-8, and B 8-14, 14-20, 20-22, 22-24, since rank 1 ends B at 8, 11, 16 and 22.
    """
    assert two_ranks_s([1, 1, 3, 1]) == 24


def test_rounds_that_are_multiplied_add_the_work_of_their_micro_batches() -> None:
    """Rank 0 is never idle in the long run either: 2 more micro-batches take 2 times its 12."""
    assert two_ranks_s([1, 1, 3, 1], micro_batches=2000) - two_ranks_s([1, 1, 3, 1], micro_batches=1998) == 24


def test_micro_batches_fill_rounds() -> None:
    """Four ranks: 10 make two rounds of 5, 11 no equal ones, 3 one short round, and 2.5 are none at all."""
    found = fills_rounds(np.array([4.0, 8.0, 10.0, 11.0, 3.0, 2.5, 0.0]), pp=np.full(7, 4.0))
    assert found.tolist() == [True, True, True, False, True, False, False]


def job_and_rows(*splits: list[int], **each: object):
    asked = job_of(dense_model(8), num_nodes=1, seq_length=2048, global_batch_size=2 * MICRO_BATCHES)
    given = [{"tp": 2, "pp": 2, "dp": 2, "vpp": 2, "layers_per_stage": split, **each} for split in splits]
    return asked, rows_of(asked, *given)


@pytest.mark.parametrize(
    "recompute",
    [{}, {"recompute": "full"}, {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 2}],
)
@pytest.mark.parametrize("split", [[1, 1, 3, 3], [3, 3, 1, 1], [0, 4, 4, 0], [2, 3, 2, 1]])
def test_a_step_holds_what_the_events_take(split, recompute) -> None:
    """The slowest stage's terms, the same but for the bubble, and what the events take beyond them."""
    asked, rows = job_and_rows(split, **recompute)
    (which,) = groups_of_unlike_chunks(rows)
    forward_VN, backward_VN = chunk_passes_s(rows, stage_costs(asked, rows), which)
    events = interleaved_s(forward_VN, backward_VN, pp=2, vpp=2, num_micro_batches=rows.num_micro_batches)
    slowest = (forward_VN + backward_VN).reshape(2, 2).sum(axis=0).max()
    time = step_time(asked, rows)
    assert time.terms_s["pp_bubble"][0] == pytest.approx(events[0] - MICRO_BATCHES * slowest)
    assert sum(time.terms_s.values())[0] == pytest.approx(time.total_s[0])


def test_chunks_add_up_to_the_stages_of_the_even_split() -> None:
    """Moving a layer from one chunk to the other of the same stage changes the bubble and nothing else."""
    asked, rows = job_and_rows([2, 2, 2, 2], [1, 1, 3, 3])
    time = step_time(asked, rows)
    others = {name: seconds for name, seconds in time.terms_s.items() if name not in ("pp_bubble", "jitter")}
    assert all(seconds[0] == pytest.approx(seconds[1]) for seconds in others.values())
    assert time.terms_s["pp_bubble"][1] > 1.3 * time.terms_s["pp_bubble"][0]


def test_kinds_of_layers_make_chunks_unlike() -> None:
    """Two dense layers before six of experts: the first chunk of two layers is unlike the others, though none holds more."""
    moe = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 1024, "first_dense_layers": 2}
    found = {}
    for name, fields in (("dense", {}), ("moe", {"moe": moe})):
        asked = job_of(dense_model(8, **fields), num_nodes=1, seq_length=2048, global_batch_size=16)
        rows = rows_of(asked, {"tp": 2, "pp": 2, "dp": 2, "vpp": 2})
        found[name] = len(groups_of_unlike_chunks(rows))
    assert found == {"dense": 0, "moe": 1}
