"""How many places a token's experts lie on, and what a dispatcher that sends once to each of them moves."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from builders import dense_model, job_of, row_of, with_experts
from cost_models.evaluate import evaluate
from cost_models.hardware.groups import groups
from cost_models.layers.communication import ep_comm
from cost_models.specs.model import Moe
from cost_models.strategies.expert_spread import expected_places
from planner.rows import evaluate_rows

PLAIN: dict[str, Any] = {
    "num_shared_experts": 0, "shared_expert_intermediate_size": 0, "shared_expert_gate": False, "router_bias": False,
    "capacity_factor": None,
}  # fmt: skip
DEEPSEEK_V3 = Moe(num_experts=256, top_k=8, expert_intermediate_size=2048, num_groups=8, topk_groups=4, **PLAIN)
UNGROUPED = Moe(num_experts=8, top_k=2, expert_intermediate_size=64, num_groups=1, topk_groups=1, **PLAIN)


def test_deepseek_v3_over_eight_nodes_sends_to_four() -> None:
    """Its router takes 4 of 8 groups, one group a node: 4,096 tokens of 7,168 are 117.4 MB in fp8 and 234.9 MB in bf16."""
    nodes = expected_places(DEEPSEEK_V3, np.array([8.0]))
    assert nodes == pytest.approx([4.0])
    assert 4096 * nodes[0] * 7168 * 1 / 1e6 == pytest.approx(117.4, abs=0.05)
    assert 4096 * nodes[0] * 7168 * 2 / 1e6 == pytest.approx(234.9, abs=0.05)
    assert 2 * 4096 * DEEPSEEK_V3.top_k * 7168 * 2 / 1e6 == pytest.approx(
        939.5, abs=0.05
    )  # a copy per expert, both ways


@pytest.mark.parametrize("places", [1, 2, 4, 8])
def test_every_choice_of_experts_counts_alike(places: int) -> None:
    """All 28 pairs of 8 experts, enumerated."""
    per_place = 8 // places
    pairs = [len({expert // per_place for expert in pair}) for pair in combinations(range(8), 2)]
    found = expected_places(UNGROUPED, np.array([float(places)]))
    assert found == pytest.approx([sum(pairs) / len(pairs)])


@pytest.mark.parametrize(("places", "expected"), [(2, 2 * (1 - 1 / 70)), (4, 4 * (1 - 15 / 70)), (8, 4.0)])
def test_groups_on_fewer_nodes_share_them(places: int, expected: float) -> None:
    """C(8, 4) = 70 choices of groups; half of the groups is one of them, C(6, 4) = 15 avoid a given two."""
    assert expected_places(DEEPSEEK_V3, np.array([float(places)])) == pytest.approx([expected])


def test_groups_cut_over_several_ranks() -> None:
    """64 ranks, 8 a group: the 2 experts of a chosen group, out of its 32, are on one rank with chance 3 / 31."""
    expected = 4 * (2 - 3 / 31)
    assert expected_places(DEEPSEEK_V3, np.array([64.0])) == pytest.approx([expected])


H, SEQ = 1024, 2048


class Case:
    """One strategy on two nodes of eight, and prices of its own groups."""

    def __init__(self, **strategy) -> None:
        model = with_experts(dense_model(2, hidden_size=H, num_key_value_heads=4), num_experts=32)
        self.job = job_of(model, num_nodes=2, seq_length=SEQ, global_batch_size=32)
        self.rows = row_of(self.job, **{"micro_batch_size": 2, "etp": 1, **strategy})
        self.placements = groups(self.rows, self.job.cluster)

    def forward_s(self) -> float:
        found = ep_comm(
            self.job, self.job.model.layer_kinds[0], self.rows, tokens=2 * SEQ / self.rows.cp,
            placements=self.placements, expert_s=np.zeros(1),
        )  # fmt: skip
        assert found.backward[0] == found.forward[0]
        return float(found.forward[0])

    def all_to_all_s(self, size: float, *, ranks: int, stride: int) -> float:
        sized = row_of(self.job, tp=stride, ep=ranks, etp=stride)
        placement = groups(sized, self.job.cluster).ep
        return float(self.job.calibration.collective_s("all_to_all", size, placement=placement).seconds[0])


def test_flex_sends_a_token_once_to_each_node() -> None:
    """Two experts of 32 lie on 2 (1 - C(16, 2) / C(32, 2)) of two nodes; one GPU of each node exchanges with its peer."""
    nodes = 2 * (1 - (16 * 15) / (32 * 31))
    case = Case(ep=16, moe_dispatcher="flex")
    wire = case.all_to_all_s(2 * SEQ * H * 2.0 * nodes, ranks=2, stride=8)
    assert case.forward_s() == pytest.approx(2 * wire)
    plain = Case(ep=16, moe_dispatcher="alltoall").forward_s()
    assert case.forward_s() < 0.85 * plain


def test_flex_inside_a_node_sends_a_token_once_to_each_rank() -> None:
    """Two experts of 32 lie on 8 (1 - C(28, 2) / C(32, 2)) of eight ranks."""
    ranks = 8 * (1 - (28 * 27) / (32 * 31))
    case = Case(ep=8, moe_dispatcher="flex")
    assert case.forward_s() == pytest.approx(2 * case.all_to_all_s(2 * SEQ * H * 2.0 * ranks, ranks=8, stride=1))


def test_flex_reaches_the_expert_tensor_parallel_ranks_itself() -> None:
    """ep 4, etp 2: no gather of the group's rows; 4 (1 - C(24, 2) / C(32, 2)) holders of two ranks each."""
    ranks = 2 * 4 * (1 - (24 * 23) / (32 * 31))
    case = Case(tp=2, ep=4, etp=2, moe_dispatcher="flex")
    assert case.forward_s() == pytest.approx(2 * case.all_to_all_s(SEQ * H * 2.0 * ranks, ranks=8, stride=1))


def test_deepep_s_queues_lie_beside_the_allocator() -> None:
    """csrc/config.hpp at 20 multiprocessors, h 1,024, rows of 2,048 + 2,056 bytes: 16 ranks keep 10 x 8 x 288 of them for
    NVLink and 2 x 10 x 2 x 128 for the network; 8 ranks 10 x 8 x 256 and none. `alltoall` keeps neither.
    """
    row = 2 * H + 2056
    for ranks, queues in ((16, 10 * 8 * 288 + 2 * 10 * 2 * 128), (8, 10 * 8 * 256)):
        flex, plain = (Case(ep=ranks, moe_dispatcher=name) for name in ("flex", "alltoall"))
        device = [evaluate(case.job, case.rows).memory.device[0] for case in (flex, plain)]
        assert device[0] - device[1] == pytest.approx(queues * row)


def test_hybridep_keeps_room_for_every_token_of_all_ranks() -> None:
    """hybrid_ep.cu: 16 ranks on two nodes, 4,096 tokens each, rows of 2,048 bytes and the weights of a node's 16 experts, 4
    bytes each; three times a rank's tokens for the other node.
    """
    flex, plain = Case(ep=16, moe_dispatcher="flex", flex_backend="hybridep"), Case(ep=16)
    device = [evaluate(case.job, case.rows).memory.device[0] for case in (flex, plain)]
    assert device[0] - device[1] == pytest.approx((16 + 3) * 2 * SEQ * (2 * H + 4 * 16))


def test_nvl72_takes_hybridep_unless_told() -> None:
    """DeepEP's kernels know nodes of 8; a plan says which kernels it means, and only where it dispatches by them."""
    row = {
        "model": {"preset": "deepseek-v3"}, "cluster": {"preset": "gb200-nvl72", "num_nodes": 64},
        "training": {"seq_length": 4096, "global_batch_size": 1024, "precision": "bf16", "framework": "megatron"},
    }  # fmt: skip
    strategy = {"pp": 4, "ep": 64, "etp": 1, "micro_batch_size": 1, "layers_per_stage": [15, 15, 15, 16]}
    found = {}
    for name, more in (("default", {}), ("deepep", {"flex_backend": "deepep"})):
        given = {**row, "strategy": {**strategy, "moe_dispatcher": "flex", **more}}
        (found[name],) = evaluate_rows([given])
    assert found["default"]["assumed"]["flex_backend"] == "hybridep"
    assert found["default"]["verdict"] != "invalid"
    assert [reason["code"] for reason in found["deepep"]["reasons"]] == ["dispatcher-unsupported"]
