"""What base rows stand for: every ZeRO stage, shard group, split, recomputation and listed knob, once each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders import job_of, row_of, tiny_model
from cost_models.strategies.fields import Recompute, RecomputeMethod, Schedule
from cost_models.strategies.strategy import ARRAY_FIELDS
from planner.rules import violations
from planner.schemas import Constraints
from planner.strategies.axes import build_space
from planner.strategies.repetitions import lean_modes
from planner.strategies.space import Space


def space(framework="megatron", *, model=None, nodes=1, gpus=4, fixed=None, allowed=None, **training) -> Space:
    given = {"seq_length": 512, "global_batch_size": 8} | training
    job = job_of(model or tiny_model(), framework, num_nodes=nodes, cluster={"gpus_per_node": gpus}, **given)
    return build_space(job, Constraints.model_validate({"fixed": fixed or {}, "allowed": allowed or {}}))


ONE = {"tp": 1, "pp": 2, "cp": 1, "dp": 2, "micro_batch_size": 1}
NO_EXTRAS = {"zero": 0, "recompute": "none", "vpp": 1}


def expanded(found: Space) -> list[dict]:
    rows = found.expand(found.base()).rows
    return [{name: getattr(rows, name)[index].item() for name in ARRAY_FIELDS} for index in range(len(rows))]


def test_a_base_row_stands_for_every_combination() -> None:
    """vpp 1 (chunks of 2 layers: none, core_attn, mlp, both, block 1, every) and vpp 2 (chunks of 1: no block), 4 ZeRO stages."""
    found = space(fixed=ONE)
    rows = expanded(found)
    assert len(rows) == 4 * 6 + 4 * 5 == found.mesh_sizes[0]
    counted = Counter((row["vpp"], row["zero"]) for row in rows)
    assert counted == {(1, zero): 6 for zero in range(4)} | {(2, zero): 5 for zero in range(4)}
    assert len({tuple(row.items()) for row in rows}) == len(rows)


def test_what_follows_from_the_searched_fields() -> None:
    for row in expanded(space(fixed=ONE)):
        assert row["num_micro_batches"] == 8 / (2 * 1)
        assert row["schedule"] == (Schedule.INTERLEAVED if row["vpp"] > 1 else Schedule.ONE_F_ONE_B)
        assert row["grad_sync_each"] == (row["zero"] >= 2)
        assert row["zero_shard_size"] == row["zero_param_shard_size"] == 2
        assert row["recompute_modules"] in ((1, 2, 3) if row["recompute"] == Recompute.SELECTIVE else (0,))
        assert row["overlap_p2p"] == (row["vpp"] > 1)
        assert row["overlap_param_gather"] == (row["zero"] >= 1)
        assert not row["overlap_tp_comm"]  # there is one tensor-parallel rank


@pytest.mark.parametrize(
    ("framework", "training"),
    [
        ("megatron", {"transformer_impl": "transformer-engine"}), ("megatron", {"transformer_impl": "local"}),
        ("torchtitan", {"compile": True}), ("torchtitan", {"compile": False}),
        ("deepspeed", {}), ("megatron-deepspeed", {}), ("nanotron", {}), ("fsdp", {}),
    ],
)  # fmt: skip
def test_tensor_parallel_collectives_are_overlapped_only_where_the_rules_allow_it(framework, training) -> None:
    """Megatron and torchtitan overlap wherever they can: what is searched breaks no rule, and neither would more of it."""
    found = space(framework, fixed={"tp": 2, "dp": 2, "pp": 1, "cp": 1}, **training)
    rows = found.expand(found.base()).rows
    counted = violations(found.job, rows).counts(None)
    assert not counted.get("overlap-unsupported", 0)
    if framework in ("megatron", "torchtitan"):
        more = rows.take(~rows.overlap_tp_comm)
        more = replace(more, overlap_tp_comm=np.ones(len(more), np.bool_))
        assert violations(found.job, more).counts(None).get("overlap-unsupported", 0) == len(more)


def test_tensor_parallel_collectives_between_nodes_are_not_overlapped() -> None:
    """Four ranks on nodes of two GPUs; two ranks stay inside a node."""
    between, inside = (space(fixed={"tp": tp, "pp": 1, "cp": 1}, nodes=2, gpus=2) for tp in (4, 2))
    assert not between.expand(between.base()).rows.overlap_tp_comm.any()
    assert inside.expand(inside.base()).rows.overlap_tp_comm.any()


def sizes_of(found: Space) -> Counter:
    return Counter((row["zero"], row["zero_shard_size"]) for row in expanded(found))


def test_state_is_sharded_over_every_divisor_of_the_replicas() -> None:
    """8 replicas: all of them, or groups of 2 and 4, inside a node and across; nothing to shard without ZeRO, by one alone."""
    one = {**ONE, "pp": 1, "tp": 1, "dp": 8, "recompute": "none"}
    found = space(nodes=2, fixed=one)
    assert sizes_of(found) == {(0, 8): 1} | {(zero, size): 1 for zero in (1, 2, 3) for size in (2, 4, 8)}
    assert found.groups.shards == [2, 4]
    assert found.mesh_sizes.tolist() == [10]
    assert sizes_of(space(fixed={**one, "dp": 4})) == {(0, 4): 1} | {(z, size): 1 for z in (1, 2, 3) for size in (2, 4)}
    two_replicas = space(fixed={**one, "tp": 2, "dp": 2, "sequence_parallel": True})
    assert sizes_of(two_replicas) == {(zero, 2): 1 for zero in (0, 1, 2, 3)}


def test_fsdp_shards_whole_context_parallel_groups() -> None:
    """dp 4 x cp 2: groups of 2 and 4 hold whole cp groups; with cp 4 a group of 2 is part of one. Megatron takes any divisor."""
    one = {**ONE, "pp": 1, "tp": 1, "recompute": "none", "zero": 3}
    wide = {**one, "dp": 2, "cp": 4}
    assert sizes_of(space("torchtitan", nodes=2, fixed={**one, "dp": 4, "cp": 2})) == {
        (3, size): 1 for size in (2, 4, 8)
    }
    assert sizes_of(space("torchtitan", nodes=2, fixed=wide)) == {(3, size): 1 for size in (4, 8)}
    assert sizes_of(space("megatron", nodes=2, fixed=wide)) == {(3, size): 1 for size in (2, 4, 8)}


def test_a_request_that_lists_sizes_gets_those_alone() -> None:
    one = {**ONE, "pp": 1, "tp": 1, "dp": 8, "recompute": "none", "zero": 1}
    assert sizes_of(space(nodes=2, fixed=one, allowed={"zero_shard_size": [8, 2]})) == {(1, 8): 1, (1, 2): 1}


def test_knobs_multiply() -> None:
    allowed = {"cp_comm": ["p2p", "a2a"], "overlap": {"grad_reduce": [True, False]}}
    rows = expanded(space(fixed={**ONE, **NO_EXTRAS}, allowed=allowed))
    assert Counter((row["cp_comm"], row["overlap_grad_reduce"]) for row in rows) == {
        (0, True): 1, (0, False): 1, (1, True): 1, (1, False): 1,
    }  # fmt: skip


FULL, EVERY, BLOCK, UNIFORM = Recompute.FULL, RecomputeMethod.EVERY, RecomputeMethod.BLOCK, RecomputeMethod.UNIFORM


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ({"recompute": "full"}, [(FULL, BLOCK, 1), (FULL, EVERY, 0)]),
        ({"recompute": "full", "recompute_num_layers": 2}, [(FULL, BLOCK, 2)]),
        ({"recompute": "full", "recompute_method": "block"}, [(FULL, BLOCK, 1), (FULL, BLOCK, 2)]),
        ({"recompute": "full", "recompute_method": "uniform"}, [(FULL, UNIFORM, 1)]),
        ({"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 2}, [(FULL, UNIFORM, 2)]),
        ({"recompute_per_stage": [1, 0]}, [(FULL, EVERY, 0)]),
    ],
)
def test_fixed_recomputation_is_what_is_searched(fixed, expected) -> None:
    found = space(fixed={**ONE, "vpp": 1, "zero": 0, **fixed})
    rows = expanded(found)
    assert [(row["recompute"], row["recompute_method"], row["recompute_num_layers"]) for row in rows] == expected
    assert found.layouts.table[rows[0]["layout"]].recompute_per_stage == (fixed.get("recompute_per_stage") and (1, 0))


def test_a_family_differs_in_full_recomputation_alone_and_comes_in_rising_work() -> None:
    found = space(fixed={**ONE, "pp": 1, "dp": 4})
    expansion = found.expand(found.base())
    for family in np.unique(expansion.family):
        rows = expansion.rows.take(expansion.family == family)
        for name in set(ARRAY_FIELDS) - {"recompute", "recompute_method", "recompute_num_layers", "recompute_modules"}:
            assert len(set(getattr(rows, name).tolist())) == 1, name
        full = rows.take(rows.recompute == FULL)
        assert full.recompute_num_layers.tolist() == [1, 2, 3, 0]


def test_gathering_beside_forward_goes_with_reducing_beside_backward() -> None:
    """A fixed grad_reduce alone means what it means in a given strategy: without it nothing is gathered beside forward either."""
    for given in (False, True):
        rows = expanded(
            space("deepspeed", fixed={**ONE, "pp": 1, "dp": 4, "zero": 3, "overlap": {"grad_reduce": given}})
        )
        assert {row["overlap_param_gather"] for row in rows} == {given}
        asked = row_of(space("deepspeed").job, tp=1, dp=2, zero=3, overlap={"grad_reduce": given})
        assert asked.overlap_param_gather.tolist() == [given]


def test_pairs_build_the_same_strategies_as_the_whole() -> None:
    found = space(fixed={"tp": 1})
    base = found.base()
    whole, pairs = found.expand(base), found.every_pair(base)
    assert len(pairs.origin) == found.multiplicity(base).sum() == len(whole.rows)
    some = np.array([0, 5, len(pairs.origin) - 1])
    few = found.expand(base, pairs.take(some))
    for name in ARRAY_FIELDS:
        assert getattr(few.rows, name).tolist() == getattr(whole.rows, name)[some].tolist()


def test_splits_with_equal_stages_count_once() -> None:
    """12 equal layers: every vpp holds the same. Alternating kinds: chunks of one layer give a stage one kind alone."""
    equal = space(model=tiny_model(12), fixed={"pp": 2})
    assert equal.splits.different == {2: ((1, 0),)}
    types = ["sliding_attention", "full_attention"] * 6
    mixed = space(model=tiny_model(12, sliding_window=128, layer_types=types), fixed={"pp": 2})
    assert [vpp for vpp, _ in mixed.splits.different[2]] == [
        1,
        2,
        6,
    ]  # chunks of 6, 3 and 1; those of 2 are as those of 6
    assert mixed.splits.most_vpp[2] == 6


def test_the_leanest_choice_is_without_virtual_stages() -> None:
    found = space(fixed={"pp": 2, "tp": 1})
    lean = found.leanest(found.base(), zero=1, modes=lean_modes(found))
    assert set(lean.vpp.tolist()) == {1.0}
    assert set(lean.zero.tolist()) == {1}
    assert set(lean.recompute_method.tolist()) == {EVERY}


def test_an_empty_space_is_empty_everywhere() -> None:
    found = space(fixed={"tp": 3})
    assert len(found.base()) == 0
    assert found.mesh_sizes.tolist() == []
    assert len(found.expand(found.base()).rows) == 0


def test_what_deepspeed_can_overlap_is_switched_on_although_it_is_off_by_default() -> None:
    """overlap_comm is false below stage 3, can reduce gradients in the backward of stages 1 to 3, and gathers in stage 3."""
    rows = expanded(space(framework="deepspeed", fixed={**ONE, "pp": 1, "dp": 4, "recompute": "none"}))
    found = {(row["zero"], row["overlap_grad_reduce"], row["overlap_param_gather"]) for row in rows}
    assert found == {(0, False, False), (1, True, False), (2, True, False), (3, True, True)}
    piped = expanded(space(framework="deepspeed", fixed={**ONE, "recompute": "none", "zero": 1}))
    assert {row["overlap_grad_reduce"] for row in piped} == {False}
