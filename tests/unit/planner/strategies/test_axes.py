"""Which values each axis takes: divisors of what it splits, whole nodes, what the request fixes or lists."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from builders import Document, job_of, tiny_model, with_experts
from cost_models.errors import SearchBudgetError
from cost_models.strategies.fields import RECOMPUTE_MODULES
from planner.schemas import Constraints
from planner.strategies.axes import build_space, searched_values
from planner.strategies.degrees import Columns, build_degrees
from planner.strategies.space import Space


def model(num_layers: int = 6) -> Document:
    """Six heads and sizes that divide by six, so that degrees need not be powers of two."""
    return tiny_model(num_layers, hidden_size=384, num_attention_heads=6, intermediate_size=768)


MOE = with_experts(model(), num_experts=4, top_k=1, expert_intermediate_size=256)


def space(framework="megatron", *, given=None, nodes=2, gpus=6, seq=1024, batch=12, **constraints) -> Space:
    job = job_of(
        given or model(),
        framework,
        num_nodes=nodes,
        cluster={"gpus_per_node": gpus},
        seq_length=seq,
        global_batch_size=batch,
    )
    return build_space(job, Constraints.model_validate(constraints))


def rows(found: Space, *names: str) -> set[tuple[int, ...]]:
    every = everything(found)
    return set(zip(*(every[name].tolist() for name in names), strict=True))


def everything(found: Space) -> Columns:
    return found.degrees.rows(np.arange(len(found.degrees)))


def test_every_combination_on_whole_nodes_and_no_other() -> None:
    """Brute force over all degrees: products that fill 6 or 12 GPUs, batches that divide."""
    found = space("deepspeed", fixed={"cp": 1})
    expected = {
        (tp, pp, dp, micro)
        for tp, pp, dp, micro in product((1, 2, 3, 6), range(1, 7), (1, 2, 3, 4, 6, 12), (1, 2, 3, 4, 6, 12))
        if tp * pp * dp in (6, 12) and 12 % (dp * micro) == 0
    }
    assert rows(found, "tp", "pp", "dp", "micro_batch_size") == expected
    assert found.degrees.sizes.sum() >= len(expected)


def test_context_degrees_divide_the_sequence_and_leave_256_tokens() -> None:
    """1024 tokens: 2 and 4. 1542 = 6 x 257: whether an odd share can be cut in two, as a zigzag does, is for the rules to say."""
    assert rows(space(), "cp") == {(1,), (2,), (4,)}
    assert rows(space(seq=768), "cp") == {(1,), (2,), (3,)}
    assert rows(space(seq=1542), "cp") == {(1,), (2,), (3,), (6,)}


@pytest.mark.parametrize(
    ("framework", "version", "given", "tried"),
    [
        ("megatron", "0.16", {}, {False, True}),
        ("megatron", "0.16", MOE, {True}),  # megatron/training/arguments.py refuses it without
        ("torchtitan", "0.3", MOE, {False, True}),
        ("fsdp", "2.11", MOE, {False, True}),
        ("deepspeed", "0.19", {}, {False}),  # it has none
        ("megatron-deepspeed", "2022", {}, {False}),
        ("megatron-deepspeed", "2023", {}, {False, True}),
    ],
)
def test_sequence_parallelism_is_tried_both_ways_where_no_rule_decides(framework, version, given, tried) -> None:
    job = job_of(
        tiny_model() | given, framework, num_nodes=1, seq_length=1024, global_batch_size=8, framework_version=version
    )
    found = build_space(job, Constraints())
    assert {sp for tp, sp in rows(found, "tp", "sequence_parallel") if tp > 1} == tried


def test_expert_degrees_divide_the_experts_and_fit_the_ranks() -> None:
    found = rows(space(given=MOE, gpus=4), "tp", "cp", "dp", "ep", "etp")
    for tp, cp, dp, ep, etp in found:
        assert 4 % ep == 0
        assert etp in {1, tp}
        assert (tp * cp * dp) % (ep * etp) == 0
    for tp, cp, dp in {row[:3] for row in found}:
        tried = {(ep, etp) for ep in (1, 2, 4) for etp in (1, tp) if (tp * cp * dp) % (ep * etp) == 0}
        assert {row[3:] for row in found if row[:3] == (tp, cp, dp)} == tried


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    assert rows(space(), "tp", "sequence_parallel") >= {(1, False), (2, False), (2, True)}
    assert (1, True) not in rows(space(), "tp", "sequence_parallel")


def test_fixed_and_listed_values_replace_the_candidates() -> None:
    found = space(fixed={"tp": 2, "micro_batch_size": 1}, allowed={"pp": [1, 3], "zero": [1, 0]})
    assert rows(found, "tp") == {(2,)}
    assert rows(found, "pp") == {(1,), (3,)}
    assert found.zeros == (1, 0)


@pytest.mark.parametrize(
    ("constraints", "worlds"),
    [
        ({}, {6, 12, 18}),
        ({"allow_idle_gpus": False}, {18}),
        ({"num_nodes": {"min": 2}}, {12, 18}),
        ({"num_nodes": {"max": 2}}, {6, 12}),
        ({"num_nodes": {"max": 2}, "allow_idle_gpus": False}, {12}),
    ],
)
def test_gpus_come_in_whole_nodes(constraints, worlds) -> None:
    found = space(nodes=3, batch=36, fixed={"cp": 1}, **constraints)
    assert {tp * pp * dp for tp, pp, dp in rows(found, "tp", "pp", "dp")} == worlds


def test_layers_that_do_not_divide_are_split_where_the_framework_can_be_told() -> None:
    """7 layers on 2 stages: Megatron takes a list, nanotron splits by its own rule, FSDP refuses."""
    seven = model(7)
    for framework, expected in (("megatron", True), ("nanotron", True), ("fsdp", False)):
        found = space(framework, given=seven, fixed={"cp": 1})
        assert ((2,) in rows(found, "pp")) == expected
        for pp, pairs in found.layout_index.items():
            for vpp, layout in pairs:
                assert (found.layouts.table[layout].pp, found.layouts.table[layout].vpp) == (pp, vpp)
                assert sum(found.layouts.table[layout].layers) == 7


def test_listed_splits_are_the_only_ones() -> None:
    found = space(allowed={"layers_per_stage": [[4, 2], [2, 4], [1, 2, 3]]}, fixed={"vpp": 1})
    assert {pp: [found.layouts.table[layout].layers for _, layout in pairs] for pp, pairs in found.layout_index.items()} == {
        2: [(4, 2), (2, 4)], 3: [(1, 2, 3)],
    }  # fmt: skip


def test_counts_per_stage_fix_the_stages() -> None:
    found = space(fixed={"recompute_per_stage": [1, 0, 2]})
    assert rows(found, "pp") == {(3,)}
    assert {layout.recompute_per_stage for layout in found.layouts.table} == {(1, 0, 2)}
    assert found.recompute_modes == (2,)


def test_the_report_speaks_the_contract_s_names() -> None:
    found = searched_values(
        space(
            fixed={"tp": 2, "cp": 1, "grad_sync": "each", "schedule": "1f1b", "layers_per_stage": [4, 2]},
            allowed={
                "overlap": {"p2p": [False]},
                "recompute_modules": [["core_attn", "mlp"]],
                "cp_comm": ["a2a", "p2p"],
            },
        )
    )
    assert found["tp"] == [2]
    assert found["recompute"] == ["none", "selective", "full"]
    assert found["grad_sync"] == ["each"]
    assert found["schedule"] == ["1f1b"]
    assert found["cp_comm"] == ["a2a", "p2p"]
    assert found["overlap.p2p"] == [False]
    assert found["recompute_modules"] == [["core_attn", "mlp"]]
    assert [4, 2] in found["layers_per_stage"]


def test_equal_requests_have_equal_spaces() -> None:
    one, other = space(given=MOE), space(given=MOE)
    for name, column in everything(one).items():
        assert column.tolist() == everything(other)[name].tolist()
    assert one.layouts.table == other.layouts.table


@pytest.mark.parametrize(
    ("given", "stages", "text"),
    [
        # 20,000 numbers of stages with each of the batch's 1,344 divisors are 26.9 M.
        ({"tp": [1], "cp": [1]}, 20_000, "20,000 combinations of tp, pp, cp with 1344 values of dp are"),
        # Of each mesh, some 10,000 micro-batches and expert degrees, of few meshes: more than 10^9, held as their factors.
        ({"tp": [6], "cp": [1], "etp": [1, 2, 3, 6], "dp": [1, 2, 3, 4, 6, 12, 24, 48], "sequence_parallel": [True, False]},
         40_000, "3,020,651,136 combinations of tp, pp, cp, dp, ep, etp, micro_batch_size, sequence_parallel are"),
    ],
)  # fmt: skip
def test_more_combinations_than_memory_holds_are_refused_before_they_are_made(given, stages, text) -> None:
    """735,134,400 has more divisors than any smaller number."""
    model = with_experts(tiny_model(6, hidden_size=384, num_attention_heads=6), num_experts=240, top_k=1)
    job = job_of(model, num_nodes=32768, seq_length=8192, global_batch_size=735_134_400)
    with pytest.raises(SearchBudgetError, match=f"^{text} too many to search") as caught:
        build_degrees(job, Constraints(), given, stages=np.arange(1, stages + 1), worlds=np.arange(1, 2**18 + 1))
    assert "micro_batch_size" in caught.value.hint


def test_blocks_hold_every_mesh_once_and_the_first_a_bit_of_everything() -> None:
    found = space(given=MOE, nodes=16, gpus=8, batch=384).degrees
    meshes = np.arange(len(found))
    largest = found.sizes.max()
    blocks = found.blocks(meshes, most_rows=found.sizes.sum() // 4)
    assert len(blocks) >= 4
    assert sorted(np.concatenate(blocks).tolist()) == meshes.tolist()
    for name in ("tp", "pp", "cp"):
        assert set(found.mesh[name][blocks[0]].tolist()) == set(found.values(name))
    for block in blocks[1:]:
        assert found.sizes[block].sum() < found.sizes.sum() // 4 + largest
        assert (np.diff(found.group[block]) >= 0).all()
    assert [block.tolist() for block in found.blocks(meshes, most_rows=1_000_000)] == [meshes.tolist()]


def test_more_choices_than_a_table_holds_are_refused() -> None:
    """127 sets of modules, 3 ways of each of two knobs and 2 of each of five, for each number of stages."""
    modules = [list(some) for count in range(1, 8) for some in combinations(RECOMPUTE_MODULES, count)]
    switches = ("grad_reduce", "param_gather", "tp_comm", "p2p")
    with pytest.raises(SearchBudgetError, match="choices for each combination of degrees"):
        space(allowed={
            "recompute_modules": modules, "cp_comm": ["p2p", "a2a", "allgather"], "grad_sync": ["last", "each"],
            "schedule": ["1f1b", "gpipe", "zb-h1"], "overlap": {name: [True, False] for name in switches},
        })  # fmt: skip


def test_virtual_stages_are_tried_where_layers_do_not_divide() -> None:
    """13 layers on 4 stages: 3 or 4 a stage, so 1 to 4 chunks; 16 chunks are more than 13 layers and the two ends fill."""
    found = space(given=model(13), fixed={"pp": 4, "cp": 1})
    assert {vpp: found.layouts.table[layout].layers for vpp, layout in found.layout_index[4]} == {
        1: (3, 4, 3, 3),
        2: (1, 2, 2, 2, 2, 2, 1, 1),
        3: (1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1),
    }
    assert [vpp for vpp, _ in space(given=model(14), fixed={"pp": 4, "cp": 1}).layout_index[4]] == [
        1, 2, 3, 4,
    ]  # fmt: skip
    restricted = space("nanotron", given=model(13), fixed={"pp": 4})
    assert [vpp for vpp, _ in restricted.layout_index[4]] == [1]


def test_chunks_without_layers_are_the_ends() -> None:
    found = space(given=model(14), fixed={"pp": 4, "vpp": 4, "cp": 1})
    split = found.layouts.table[found.layout_index[4][0][1]].layers
    assert split == (0, *[1] * 14, 0)


@pytest.mark.parametrize(
    ("framework", "allowed", "field", "named"),
    [
        # accelerate waits for the last micro-batch by default; a search reduces in each unless it is told to try both.
        ("fsdp", {}, "grad_sync", ["each"]),
        ("fsdp", {"grad_sync": ["each", "last"]}, "grad_sync", ["each", "last"]),
        ("torchtitan", {}, "grad_sync", None),
        # DeepSpeed overlaps stage 3 alone by default; a search overlaps wherever it can.
        ("deepspeed", {}, "overlap.grad_reduce", [True]),
        ("deepspeed", {"overlap": {"grad_reduce": [False]}}, "overlap.grad_reduce", [False]),
        ("megatron", {}, "overlap.grad_reduce", None),
    ],
)
def test_what_a_search_settles_is_named(framework, allowed, field, named) -> None:
    assert searched_values(space(framework, allowed=allowed)).get(field) == named
