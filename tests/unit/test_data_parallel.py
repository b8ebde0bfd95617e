"""Which collectives of how many bytes each ZeRO stage needs, and how much of them hides."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.constants import BACKWARD_USABLE, INTERFERENCE
from cost_models.data_parallel import is_layerwise, layerwise_exposed_s, layerwise_s, stepwise_s, tied_gradients_s
from cost_models.placement import groups
from planner.job_of import resolve_job
from planner.schemas import StrategyInput
from planner.strategy_input import resolve_strategies

H = 1024
MODEL = {
    "num_layers": 4, "hidden_size": H, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 4096,
    "vocab_size": 32000,
}  # fmt: skip
LAYER = 2 * H * H + 2 * H * 256 + 3 * H * 4096 + 2 * H
"""q and output, k and v of two heads of 128, gated MLP, two norms."""
DENSE, EXPERT = 1e8, 4e7


class Case:
    """One strategy, and prices of its own groups."""

    def __init__(self, strategy, *, framework="megatron", model=MODEL, **training) -> None:
        self.job = resolve_job({
            "model": model,
            "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8},
            "training": {
                "seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": framework, **training,
            },
        })  # fmt: skip
        given = StrategyInput.model_validate({"micro_batch_size": 1, **strategy})
        resolved = resolve_strategies(self.job, [given])
        assert resolved.strategies is not None, resolved.problems
        self.rows = resolved.strategies
        self.placements = groups(self.rows, self.job.cluster)

    def price(self, op, size, group) -> float:
        placement = getattr(self.placements, group)
        return float(self.job.calibration.collective_s(op, size, placement=placement).seconds[0])

    def stepwise(self, *, forward_s=0.0, backward_s=0.0, expert=0.0) -> float:
        one = np.ones(1)
        found = stepwise_s(
            self.job, self.rows, dense=DENSE * one, expert=expert * one, forward_s=forward_s * one,
            backward_s=backward_s * one,
        )  # fmt: skip
        return float(found.exposed[0])


NO_OVERLAP = {"overlap": {"grad_reduce": False, "param_gather": False}}


def test_zero_0_reduces_whole_gradients() -> None:
    """fp32 gradients: 4 bytes each over all 32 replicas, once a step; nothing is gathered."""
    case = Case({"zero": 0, **NO_OVERLAP})
    assert case.stepwise() == pytest.approx(case.price("all_reduce", 4 * DENSE, "dp_cp"))


def test_zero_1_scatters_gradients_and_gathers_parameters() -> None:
    """fp32 gradients scattered, bf16 parameters gathered: 4 and 2 bytes."""
    case = Case({"zero": 1, **NO_OVERLAP})
    expected = case.price("reduce_scatter", 4 * DENSE, "dp_cp") + case.price("all_gather", 2 * DENSE, "dp_cp")
    assert case.stepwise() == pytest.approx(expected)


def test_context_ranks_join_the_reduction() -> None:
    case = Case({"zero": 0, "cp": 4, "tp": 2, **NO_OVERLAP})
    assert case.placements.dp_cp.ranks[0] == 16
    assert case.stepwise() == pytest.approx(case.price("all_reduce", 4 * DENSE, "dp_cp"))


def test_bf16_reduction_halves_the_bytes() -> None:
    case = Case({"zero": 0, **NO_OVERLAP}, grad_reduce_dtype="bf16")
    assert case.stepwise() == pytest.approx(case.price("all_reduce", 2 * DENSE, "dp_cp"))


def test_shard_groups_scatter_inside_and_reduce_shards_across() -> None:
    """Groups of 8 of 32 replicas: scatter and gather in a node, and all-reduce of an eighth over 4 nodes."""
    case = Case({"zero": 1, "zero_shard_size": 8, **NO_OVERLAP})
    assert (case.placements.zero_shard.ranks[0], case.placements.zero_replica.ranks[0]) == (8, 4)
    inside = case.price("reduce_scatter", 4 * DENSE, "zero_shard") + case.price("all_gather", 2 * DENSE, "zero_shard")
    assert case.stepwise() == pytest.approx(inside + case.price("all_reduce", 4 * DENSE / 8, "zero_replica"))


def test_deepspeed_s_stage_1_reduces_whole_gradients() -> None:
    case = Case({"zero": 1, **NO_OVERLAP}, framework="deepspeed")
    grad = {"fp32": 4, "bf16": 2}[case.job.training.grad_reduce_dtype]
    gathered = case.price("all_gather", 2 * DENSE, "zero_shard")
    assert case.stepwise() == pytest.approx(case.price("all_reduce", grad * DENSE, "dp_cp") + gathered)


def test_reducing_each_micro_batch_costs_as_many_reductions() -> None:
    last, each = (Case({"zero": 0, "grad_sync": when, **NO_OVERLAP}).stepwise() for when in ("last", "each"))
    assert each == pytest.approx(2 * last)  # 64 sequences over 32 replicas: two micro-batches


def test_experts_reduce_over_their_own_replicas() -> None:
    """ep 8 of 32 ranks: 4 ranks share an expert."""
    moe = {**MODEL, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512}}
    case = Case({"zero": 0, "ep": 8, **NO_OVERLAP}, model=moe)
    assert case.placements.edp.ranks[0] == 4
    alone = case.price("all_reduce", 4 * DENSE, "dp_cp")
    assert case.stepwise(expert=EXPERT) == pytest.approx(alone + case.price("all_reduce", 4 * EXPERT, "edp"))


def test_only_the_last_micro_batch_hides_and_never_the_last_bucket() -> None:
    """[O-3] 4 layers are 5 buckets with the embedding's; 90 % of a backward can hide."""
    case = Case({"zero": 0, "overlap": {"grad_reduce": True, "param_gather": False}})
    link = case.price("all_reduce", 4 * DENSE, "dp_cp")
    assert case.stepwise(backward_s=link / 2) == pytest.approx(link - BACKWARD_USABLE.value * link / 2)
    assert case.stepwise(backward_s=100.0) == pytest.approx(link / 5)


def test_one_replica_reduces_nothing() -> None:
    assert Case({"zero": 0, "tp": 4, "dp": 1}).stepwise() == 0


@pytest.mark.parametrize(
    ("framework", "zero", "expected"),
    [("megatron", 2, False), ("megatron", 3, True), ("torchtitan", 2, True), ("torchtitan", 0, False),
     ("deepspeed", 2, False), ("deepspeed", 3, True)],
)  # fmt: skip
def test_which_stages_work_layer_by_layer(framework, zero, expected) -> None:
    case = Case({"zero": zero}, framework=framework)
    assert is_layerwise(case.job, case.rows).tolist() == [expected]


def test_fsdp_gathers_compute_copies_and_scatters_gradients_of_a_layer() -> None:
    """bf16 copies of fp32 shards gathered, fp32 gradients scattered."""
    case = Case({"zero": 3, "dp": 32}, framework="torchtitan", grad_reduce_dtype="fp32")
    link = layerwise_s(case.job, case.rows)
    assert link.gather_JU[0, 0] == pytest.approx(case.price("all_gather", 2 * LAYER, "dp_cp"))
    assert link.reduce_JU[0, 0] == pytest.approx(case.price("reduce_scatter", 4 * LAYER, "dp_cp"))


def test_deepspeed_gathers_tensor_by_tensor() -> None:
    """Two norms, query, key, value, output, gate, up and down."""
    case = Case({"zero": 3}, framework="deepspeed")
    calls = 9
    link = layerwise_s(case.job, case.rows)
    assert link.gather_JU[0, 0] == pytest.approx(calls * case.price("all_gather", 2 * LAYER / calls, "dp_cp"))


def test_hybrid_sharding_gathers_inside_its_group() -> None:
    case = Case({"zero": 3, "zero_shard_size": 8}, framework="torchtitan", grad_reduce_dtype="fp32")
    link = layerwise_s(case.job, case.rows)
    assert link.gather_JU[0, 0] == pytest.approx(case.price("all_gather", 2 * LAYER, "zero_shard"))
    across = case.price("all_reduce", 4 * LAYER / 8, "zero_replica")
    assert link.reduce_JU[0, 0] == pytest.approx(case.price("reduce_scatter", 4 * LAYER, "zero_shard") + across)


@pytest.mark.parametrize(
    ("compute", "regathers", "expected"),
    [
        (100.0, 1.0, INTERFERENCE.value * 2 + INTERFERENCE.value * 5),  # all hidden: it slows compute down
        (1.0, 1.0, (2 - 1) + (5 - 2)),  # sticks out: gather 2 behind forward 1, gather + scatter 5 behind backward 2
        (100.0, 0.0, INTERFERENCE.value * 2 + INTERFERENCE.value * 3),  # stage 2 keeps the parameters
    ],
)
def test_what_a_layer_exposes(compute, regathers, expected) -> None:
    """[O-2] gather 2 s, reduce 3 s, backward twice the forward."""
    case, one = Case({"zero": 3}, framework="torchtitan"), np.ones(1)
    found = layerwise_exposed_s(
        case.rows, gather=2 * one, reduce=3 * one, forward_s=compute * one, backward_s=2 * compute * one,
        regathers=regathers * one,
    )  # fmt: skip
    assert found[0] == pytest.approx(expected)


def test_without_overlap_a_layer_exposes_all() -> None:
    case, one = Case({"zero": 3, **NO_OVERLAP}, framework="torchtitan"), np.ones(1)
    found = layerwise_exposed_s(
        case.rows, gather=2 * one, reduce=3 * one, forward_s=9 * one, backward_s=9 * one, regathers=one
    )
    assert found[0] == 2 + 2 + 3


def tied(case, *, embedding=1e6, layers=4.0) -> float:
    seconds, _ = tied_gradients_s(
        case.job, case.rows, word=np.array([embedding]), layers=np.array([layers]), placements=case.placements
    )
    return float(seconds[0])


def test_tied_embeddings_are_summed_between_the_ends() -> None:
    model = {**MODEL, "tie_word_embeddings": True}
    case = Case({"pp": 4}, model=model)
    assert tied(case) == pytest.approx(case.price("all_reduce", 4e6, "embedding"))
    assert tied(Case({"pp": 1}, model=model)) == 0
    assert tied(Case({"pp": 4})) == 0


def test_sequence_parallel_norms_are_summed_over_tp() -> None:
    """4 layers of 2 norms of 1024, fp32."""
    case = Case({"tp": 4, "sequence_parallel": True})
    assert tied(case) == pytest.approx(case.price("all_reduce", 4 * 2 * H * 4, "tp"))


def test_reducing_after_the_last_micro_batch_alone_shares_the_scatter() -> None:
    """64 sequences over 32 replicas are two micro-batches: each gathers twice, one of them scatters."""
    case, one = Case({"zero": 3, "grad_sync": "last", **NO_OVERLAP}, framework="torchtitan"), np.ones(1)
    found = layerwise_exposed_s(
        case.rows, gather=2 * one, reduce=3 * one, forward_s=9 * one, backward_s=9 * one, regathers=one
    )
    assert found[0] == 2 + 2 + 3 / 2
