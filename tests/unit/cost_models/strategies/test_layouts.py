"""Which layers each stage holds, and which stages stand for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.strategies.layouts import Layout, build_layouts

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100}


def dense(layers: int):
    return resolve_model({**SIZES, "num_layers": layers})


def first_two_dense(layers: int):
    moe = {"num_experts": 4, "top_k": 1, "expert_intermediate_size": 64, "first_dense_layers": 2}
    return resolve_model({**SIZES, "num_layers": layers, "moe": moe})


def slots_of(layers: tuple[int, ...], *, recompute: tuple[int, ...] | None = None) -> list[int]:
    layout = Layout(len(layers), 1, layers, recompute_per_stage=recompute)
    return build_layouts([layout], model=dense(sum(layers))).slot_stage_LK[0].tolist()


def test_virtual_stages_go_round_the_ranks() -> None:
    """Counts 1 2 3 2 in model order: rank 0 holds layer 0 and layers 3-5, rank 1 layers 1-2 and 6-7; layers 0-1 are dense."""
    layouts = build_layouts([Layout(2, 2, (1, 2, 3, 2))], model=first_two_dense(8))
    assert layouts.layers_LKJ[0].tolist() == [[1, 3], [1, 3]]
    assert layouts.largest_chunk_layers_LK[0].tolist() == [3, 2]
    assert layouts.held_LS[0].tolist() == [4, 4]
    assert layouts.has_embedding_LK[0].tolist() == [True, False]
    assert layouts.has_head_LK[0].tolist() == [False, True]


def test_without_virtual_stages_the_first_layers_are_on_the_first_stage() -> None:
    layouts = build_layouts([Layout(4, 1, (2, 2, 2, 2))], model=first_two_dense(8), all_stages=True)
    assert layouts.layers_LKJ[0].tolist() == [[2, 0], [0, 2], [0, 2], [0, 2]]


def test_equal_middle_stages_are_one_slot() -> None:
    assert slots_of((2,) * 8) == [0, 1, 7]
    assert slots_of((2, 2)) == [0, 1]
    assert slots_of((2,)) == [0]


def test_a_middle_stage_stays_only_where_no_earlier_one_holds_as_much() -> None:
    """4 | 4 5 3 5 4 3 | 4: stage 2 holds more than stage 1; stages 3-6 no more than stage 2."""
    assert slots_of((4, 4, 5, 3, 5, 4, 3, 4)) == [0, 1, 2, 7]


def test_a_middle_stage_goes_where_an_earlier_one_holds_as_much_of_one_kind_and_more_of_another() -> None:
    """Both dense layers are on stage 0: stage 1 has none and three with experts, stage 2 none and two, stage 3 as many as stage 1."""
    layouts = build_layouts([Layout(5, 1, (2, 3, 2, 3, 2))], model=first_two_dense(12))
    assert layouts.slot_stage_LK[0].tolist() == [0, 1, 4]


def test_a_middle_stage_that_recomputes_otherwise_stays() -> None:
    """Of equal stages one that recomputes less holds more, one that recomputes more is slower: neither can be left out."""
    assert slots_of((2, 2, 2, 2, 2), recompute=(0, 1, 2, 0, 0)) == [0, 1, 2, 3, 4]
    assert slots_of((2, 2, 2, 2, 2), recompute=(0, 1, 1, 1, 0)) == [0, 1, 4]


def test_a_layout_with_fewer_slots_repeats_its_last() -> None:
    layouts = build_layouts([Layout(1, 1, (8,)), Layout(4, 1, (1, 3, 2, 2))], model=dense(8))
    assert layouts.slot_stage_LK.tolist() == [[0, 0, 0], [0, 1, 3]]
    assert layouts.layers_LKJ[:, :, 0].tolist() == [[8, 8, 8], [1, 3, 2]]
    assert layouts.has_head_LK.tolist() == [[True] * 3, [False, False, True]]
    assert layouts.held_LS.tolist() == [[8, 0, 0, 0], [1, 3, 2, 2]]


def test_recompute_per_stage_is_kept_by_slot_and_limits_every_stage() -> None:
    table = [Layout(2, 1, (3, 1), recompute_per_stage=(2, 0)), Layout(2, 1, (2, 2))]
    layouts = build_layouts(table, model=dense(4))
    assert layouts.recompute_layers_LK.tolist() == [[2, 0], [-1, -1]]
    assert layouts.recompute_limit_LS.tolist() == [[2, 0], [np.inf, np.inf]]


def test_a_layout_knows_its_stages() -> None:
    layout = Layout(2, 2, (1, 2, 3, 2))
    assert [layout.layers_on_stage(stage) for stage in range(2)] == [4, 4]
    assert not layout.is_even
    assert Layout(2, 1, (2, 2)).is_even


def test_a_folded_pipeline_comes_back_to_the_first_stage() -> None:
    """Virtual stages 0 and 3 are on stage 0, 1 and 2 on stage 1; of the 8 layers the first two are dense."""
    layout = Layout(2, 2, (1, 2, 3, 2), folded=True)
    assert [layout.chunks_on_stage(stage) for stage in (0, 1)] == [(1, 2), (2, 3)]
    assert [layout.layers_on_stage(stage) for stage in (0, 1)] == [3, 5]
    layouts = build_layouts([layout, Layout(2, 2, (1, 2, 3, 2))], model=first_two_dense(8))
    assert layouts.layers_LKJ[0].tolist() == [[1, 2], [1, 4]]
    assert layouts.has_head_LK.tolist() == [[True, False], [False, True]]
    assert layouts.chunks(0).tolist() == [[1, 2], [2, 3]]
    assert layouts.largest_chunk_layers_LK[0].tolist() == [2, 3]


def test_counts_must_match_stages_and_model() -> None:
    with pytest.raises(AssertionError):
        Layout(2, 2, (4, 4))
    with pytest.raises(AssertionError):
        build_layouts([Layout(2, 1, (4, 3))], model=dense(8))


def test_stages_of_other_chunks_are_kept_apart() -> None:
    """Both middle stages hold six layers and at most four in a chunk, but the first of each chunk are 2 and 3."""
    layers = (1, 4, 4, 1, 1, 2, 1, 1, 1, 0, 1, 1)
    layout = Layout(4, 3, layers)
    layouts = build_layouts([layout], model=dense(sum(layers)))
    assert np.minimum(layouts.chunks(0), 1).sum(axis=0).tolist() == [3, 2, 3, 3]
    assert layout.layers_on_stage(1) == layout.layers_on_stage(2) == 6
    assert layouts.slot_stage_LK[0].tolist() == [0, 1, 2, 3]


def test_the_layers_before_each_chunk_stand_layout_by_layout() -> None:
    """Stage 0 holds 1 + 3 layers, stage 1 holds 2 + 0; the second layout has one chunk of 4 and one of 2."""
    layouts = build_layouts([Layout(2, 2, (1, 2, 3, 0)), Layout(2, 1, (4, 2))], model=dense(6))
    assert layouts.first_chunk.tolist() == [0, 3]
    assert layouts.layers_before.tolist() == [[0, 0], [1, 2], [4, 2], [0, 0], [4, 2]]


def test_many_chunks_of_one_layout_cost_no_room_in_the_others() -> None:
    """500 stages of 2 chunks and 2 stages of 500 chunks have 3 and 501 rows, not a table of 500 chunks by 500 stages each."""
    layouts = build_layouts([Layout(500, 2, (1,) * 1000), Layout(2, 500, (1,) * 1000)], model=dense(1000))
    assert len(layouts.layers_before) == 3 + 501
    assert layouts.chunks(1).shape == (500, 2)
