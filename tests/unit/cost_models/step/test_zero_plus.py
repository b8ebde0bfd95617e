"""ZeRO++: what quantised gathers and exchanges move, against the paper's volumes and a count of every byte that crosses a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import UNIT_GPU, job_of, llama_model, row_of, rows_of
from cost_models.evaluate import evaluate
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.step.fsdp_comm import backward_gathers
from cost_models.step.zero_plus import Matrices, exchanged_share, layer_matrices, node_traffic, quantising_s
from planner.rows import evaluate_rows
from planner.rules import reasons

MODEL = llama_model(num_layers=2, vocab_size=128256)
SCALES = 4 / 8000
"""Bytes of scales for each weight."""


def job(num_nodes: int = 8, **given: Any) -> Job:
    fields = {"seq_length": 4096, "global_batch_size": 512, "framework_version": "0.19", **given}
    return job_of(MODEL, "deepspeed", num_nodes=num_nodes, **fields)


def traffic(asked: Job, **strategy: Any) -> tuple[float, float, float, float]:
    """Forward gather, backward gather, reduction and all of a later micro-batch, over the bytes of the parameters."""
    row = row_of(asked, zero=3, **strategy)
    found = node_traffic(asked, row, regathers=backward_gathers(asked, row))
    return (
        float(found.forward_gather[0]),
        float(found.backward_gather[0]),
        float(found.reduction[0]),
        float(found.later[0]),
    )


@pytest.mark.parametrize(
    ("strategy", "volume", "later"),
    [
        ({}, (1, 1, 1), 3),
        ({"zero_param_shard_size": 8}, (1, 0, 1), 1),
        ({"zero_quantized_weights": True}, (0.5 + SCALES / 2, 0.5 + SCALES / 2, 1), 2 + SCALES),
        ({"zero_quantized_gradients": True}, (1, 1, 0.25), 2.25),
        # The paper's 0.75: a quarter of what plain stage 3 moves.
        (
            {"zero_param_shard_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True},
            (0.5 + SCALES / 2, 0, 0.25),
            0.25,
        ),
    ],
)
def test_volumes_between_nodes_are_those_of_the_paper(
    strategy: dict[str, Any], volume: tuple[float, ...], later: float
) -> None:
    *first, after = traffic(job(), **strategy)
    assert first == pytest.approx(volume, rel=1e-12)
    assert after == pytest.approx(later, rel=1e-12)


def test_nothing_crosses_on_one_node() -> None:
    assert traffic(job(num_nodes=1), zero_quantized_weights=True) == (0, 0, 0, 0)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("ranks_per_node", [2, 4, 8])
def test_two_all_to_alls_bring_a_quarter_into_each_node(nodes: int, ranks_per_node: int) -> None:
    """Every nibble is followed from its rank to its owner: first to the rank of its node that collects the owner's place, then across."""
    world = nodes * ranks_per_node
    each = 2  # elements of every owner
    received = np.zeros(nodes)
    for node in range(nodes):
        for owner in range(world):
            if owner // ranks_per_node != node:
                # The node's sum for that owner crosses once, from one of its ranks.
                received[owner // ranks_per_node] += each * 0.5
    parameters_bytes = 2.0 * each * world
    assert received == pytest.approx(np.full(nodes, 0.25 * parameters_bytes * (nodes - 1) / nodes))


def test_tensors_that_the_ranks_do_not_divide_go_whole() -> None:
    """3 x 5 elements on 4 ranks: 2 x 4 does not divide 15, but it divides 16."""
    mixed = Matrices((15.0, 16.0), (2.0, 1.0), (5.0, 4.0))
    assert exchanged_share(mixed, np.array([4.0, 1.0, 8.0])) == pytest.approx([16 / 46, 16 / 46, 16 / 46])
    assert exchanged_share(mixed, np.array([16.0])) == pytest.approx([0.0])


def test_matrices_of_a_layer_are_its_weights() -> None:
    """Llama 3.1 8B: q, k, v, o, gate, up and down have 218,103,808 elements."""
    found = layer_matrices(job(), job().model.distinct_kinds[0], routed=False)
    assert found.total == 218_103_808
    assert sorted(found.elements) == [4096 * 1024, 4096 * 4096, 4096 * 4096, 4096 * 14336, 4096 * 14336]


def test_passes_of_the_device_by_hand() -> None:
    """UNIT_GPU moves 1e12 bytes a second. A gather over 64 ranks: 3 (1 + 1/64) bytes an element; two of them. An exchange: 2.5,
    (1 + 1/8) / 2 and (0.5 + 4 + 2/8) / 8.
    """
    asked = job(gpu=UNIT_GPU)
    row = row_of(asked, zero=3, zero_quantized_weights=True, zero_quantized_gradients=True)
    one = np.ones(1)
    bytes_per_element = 2 * 3 * (1 + 1 / 64) + 2.5 + (1 + 1 / 8) / 2 + (0.5 + 4 + 2 / 8) / 8
    found = quantising_s(asked, row, np.full((1, 1), 1e9), gathers=2 * one, reductions=one)
    rate = asked.calibration.memory_bytes_per_s_effective.value
    assert found[0, 0] == pytest.approx(1e9 * bytes_per_element / rate)


def test_a_batch_with_quantised_rows_prices_the_others_as_before() -> None:
    asked = job()
    plain, both = {"zero": 3}, {"zero": 3, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    mixed = evaluate(asked, rows_of(asked, plain, both, plain))
    alone, quantised = (evaluate(asked, row_of(asked, **each)) for each in (plain, both))
    assert mixed.step_time_s.tolist() == [alone.step_time_s[0], quantised.step_time_s[0], alone.step_time_s[0]]
    assert mixed.terms_s["dp_comm"][0] != mixed.terms_s["dp_comm"][1]


def test_it_pays_where_the_network_is_slow() -> None:
    """Gbit/s 25 for each GPU: gathers and reductions are exposed, of which three quarters no longer cross."""
    slow = {"num_nodes": 8, "nic_gbit_per_s": 25}
    asked = job_of(MODEL, "deepspeed", cluster=slow, seq_length=512, global_batch_size=64)
    every = {"zero_param_shard_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    found = evaluate(asked, rows_of(asked, {"zero": 3}, {"zero": 3, **every}))
    ratio = found.terms_s["dp_comm"][1] / found.terms_s["dp_comm"][0]
    assert 0.2 < ratio < 0.5


@pytest.mark.parametrize(
    ("strategy", "given", "says"),
    [
        ({"zero": 2, "zero_quantized_weights": True}, {}, "zero_quantized_weights needs zero 3, but zero is 2"),
        ({"zero": 3, "zero_quantized_weights": True, "zero_shard_size": 64, "dp": 64}, {"num_nodes": 8}, ""),
        ({"zero": 3, "zero_quantized_weights": True}, {"num_nodes": 3, "global_batch_size": 48}, "a multiple of 8 elements"),
        ({"zero": 3, "cp": 2, "zero_quantized_gradients": True, "tp": 2}, {"num_nodes": 8}, "among all 64 ranks"),
    ],
)  # fmt: skip
def test_what_deepspeed_refuses(strategy: dict[str, Any], given: dict[str, Any], says: str) -> None:
    asked = job(**given)
    found = [
        each for each in reasons(asked, row_of(asked, **strategy), 0) if each["code"] == "zero-quantized-unsupported"
    ]
    assert [says in each["message"] for each in found] == ([True] if says else [])


def test_other_frameworks_have_none_of_it() -> None:
    asked = job_of(MODEL, "torchtitan", num_nodes=2)
    found = reasons(asked, row_of(asked, zero=3, zero_quantized_weights=True), 0)
    assert [each["code"] for each in found] == ["zero-quantized-unsupported"]


def test_an_answer_says_what_is_rounded() -> None:
    asked = {
        "model": MODEL, "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 512, "precision": "bf16", "framework": "deepspeed"},
    }  # fmt: skip
    strategy = {"zero": 3, "micro_batch_size": 1}
    every = {**strategy, "zero_param_shard_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    plain, rounded = evaluate_rows([{**asked, "strategy": strategy}, {**asked, "strategy": every}])
    assert (plain["mathematics"], plain["changes"], "node_traffic" in plain) == ("exact", [], False)
    assert rounded["mathematics"] == "rounded"
    assert ["qwZ" in rounded["changes"][0]["what"], "qgZ" in rounded["changes"][1]["what"]] == [True, True]
    assert all(each["effect"] and each["source"] for each in rounded["changes"])
    assert rounded["node_traffic"]["first"] == pytest.approx(0.75, abs=3e-4)


def test_groups_of_a_node_have_its_ranks() -> None:
    asked = job()
    state = groups(row_of(asked, zero=3), asked.cluster).zero_shard
    assert (state.inside_islands().ranks[0], state.one_per_island().ranks[0]) == (8, 8)
