"""Context parallelism in two levels (a2a+p2p): heads traded among neighbours, keys and values around a ring of their groups."""

from __future__ import annotations

import numpy as np
import pytest

from builders import Document, dense_model, job_of, row_of, rows_of
from cost_models.hardware.groups import groups
from cost_models.layers.attention_core import layer_attention_s
from cost_models.layers.communication import cp_comm
from cost_models.step.group_calls import group_calls
from planner.rules import reasons
from planner.schemas import Constraints
from planner.strategies.axes import build_space
from planner.strategies.told import strategy_dict

SEQ = 8192
MODEL = dense_model(2, hidden_size=2048, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
JOB = job_of(MODEL, num_nodes=2, seq_length=SEQ, global_batch_size=32)
LEVELS = {"cp": 16, "cp_comm": "a2a+p2p", "micro_batch_size": 1}


def codes(strategy: Document, model: Document = MODEL, **training: object) -> list[str]:
    job = job_of(model, **{"num_nodes": 2, "seq_length": SEQ, "global_batch_size": 32, **training})
    return [reason["code"] for reason in reasons(job, row_of(job, **{**LEVELS, **strategy}), 0)]


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_heads_are_traded_inside_and_keys_sent_around(inner: int) -> None:
    """A rank's 512 tokens hold 16 query heads, 8 + 8 of keys and values, and the output's 16, each of 128 bf16, however many ranks trade
    them. The ring has 16 / inner ranks, of which one hop is hidden by its share of attention; backward trades the output twice
    and sends gradients along. Megatron's create_hierarchical_groups makes the first level of neighbours.
    """
    rows = row_of(JOB, **LEVELS, cp_a2a_size=inner)
    placed = groups(rows, JOB.cluster)
    hop_s, one_s, back_s = (
        float(JOB.calibration.collective_s(op, np.array([size]), placement=where).seconds[0])
        for op, size, where in (
            ("send_recv", 512 * 16 * 128 * 2.0, placed.cp_ring),
            ("all_to_all", 512 * 48 * 128 * 2.0, placed.cp_a2a),
            ("all_to_all", 512 * 64 * 128 * 2.0, placed.cp_a2a),
        )
    )
    assert (float(placed.cp_a2a.ranks[0]), float(placed.cp_ring.ranks[0])) == (inner, 16 / inner)
    attention_s = np.array([hop_s])
    found = cp_comm(JOB, rows, tokens=np.array([512.0]), placements=placed, attention_s=(attention_s, 2 * attention_s))
    steps, hidden = 16 / inner - 1, inner / 16
    assert found.forward[0] == pytest.approx(one_s + steps * (1 - hidden) * hop_s)
    assert found.backward[0] == pytest.approx(back_s + steps * (2 - 2 * hidden) * hop_s)


def test_the_inner_level_is_the_largest_that_heads_and_the_node_leave() -> None:
    """8 key-value heads on nodes of 8: all 8 of a node's ranks with tp 1, 4 with tp 2, none of more ranks than heads."""
    assert [row_of(JOB, **{**LEVELS, "tp": tp, "cp": cp}).cp_a2a_size[0] for tp, cp in ((1, 16), (2, 8))] == [8, 4]
    two_heads = job_of({**MODEL, "num_key_value_heads": 2}, num_nodes=2, seq_length=SEQ, global_batch_size=32)
    assert row_of(two_heads, **LEVELS).cp_a2a_size[0] == 2


def test_attention_runs_in_fewer_and_larger_steps_than_in_a_ring_of_all() -> None:
    """Its two levels lie between all-to-all, one step, and the ring of all 16 ranks, in every part that a step of attention has."""
    long = job_of({**MODEL, "num_key_value_heads": 16}, num_nodes=2, seq_length=131072, global_batch_size=32)
    given = [{"cp_comm": "a2a"}, *({"cp_comm": "a2a+p2p", "cp_a2a_size": n} for n in (8, 4, 2)), {"cp_comm": "p2p"}]
    rows = rows_of(long, *({**LEVELS, **each} for each in given))
    found = layer_attention_s(long, long.model.layer_kinds[0], rows)
    assert (np.diff(found.forward_s) > 0).all()
    assert (np.diff(found.backward_s) > 0).all()


def test_each_level_makes_its_own_calls() -> None:
    calls = [call for call in group_calls(JOB, row_of(JOB, **LEVELS, cp_a2a_size=4)) if call.group == "cp"]
    assert {(call.op, float(call.placement.ranks[0])) for call in calls} == {("all_to_all", 4.0), ("send_recv", 4.0)}


@pytest.mark.parametrize(
    ("strategy", "training", "model", "code"),
    [
        ({}, {}, {}, None),
        ({"cp_a2a_size": 2}, {}, {}, None),
        ({"cp_a2a_size": 16}, {}, {}, "context-parallel-levels"),
        ({"cp_a2a_size": 3}, {}, {}, "context-parallel-levels"),
        ({"cp": 2}, {}, {}, "context-parallel-levels"),
        ({"cp_comm": "p2p", "cp_a2a_size": 4}, {}, {}, "context-parallel-levels"),
        ({"cp_a2a_size": 8, "tp": 2, "cp": 8}, {}, {}, "context-parallel-heads"),
        ({}, {"mean_document_length": 1024}, {}, "context-parallel-comm-unsupported"),
        ({}, {}, {"sliding_window": 1024}, "context-parallel-comm-unsupported"),
        ({}, {"framework": "torchtitan"}, {}, "context-parallel-comm-unsupported"),
    ],
)
def test_what_two_levels_need(strategy: Document, training: Document, model: Document, code: str | None) -> None:
    found = codes(strategy, {**MODEL, **model}, **training)
    assert found == [] if code is None else code in found


def test_a_listed_transport_is_searched_with_its_own_inner_level() -> None:
    listed = {"fixed": {"cp": 16, "tp": 1, "pp": 1}, "allowed": {"cp_comm": ["p2p", "a2a+p2p"]}}
    space = build_space(JOB, Constraints.model_validate(listed))
    rows = space.expand(space.base()).rows
    sizes = {strategy_dict(rows, n)["cp_comm"]: strategy_dict(rows, n).get("cp_a2a_size") for n in range(len(rows))}
    assert sizes == {"p2p": None, "a2a+p2p": 8}
