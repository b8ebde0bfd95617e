"""Which collectives of how many bytes each ZeRO stage needs, and how much of them hides."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, row_of, with_experts
from cost_models.constants import BACKWARD_USABLE, INTERFERENCE
from cost_models.hardware.groups import groups
from cost_models.step.ddp_comm import ddp_s, tied_gradients_s
from cost_models.step.fsdp_comm import UnitSeconds, fsdp_exposed_s, fsdp_links_s, is_fsdp, root_exposed_s
from cost_models.step.total import step_time

H = 1024
LAYER = 2 * H * H + 2 * H * 256 + 3 * H * 4096 + 2 * H
"""q and output, k and v of two heads of 128, gated MLP, two norms."""
DENSE, EXPERT = 1e8, 4e7


def grouped(**fields):
    """Eight heads that share two of keys and values."""
    return dense_model(4, hidden_size=H, num_key_value_heads=2, **fields)


class Case:
    """One strategy, and prices of its own groups."""

    def __init__(self, strategy, *, framework="megatron", model=None, **training) -> None:
        self.job = job_of(model or grouped(), framework, num_nodes=4, **training)
        self.rows = row_of(self.job, **strategy)
        self.placements = groups(self.rows, self.job.cluster)

    def price(self, op, size, group) -> float:
        placement = getattr(self.placements, group)
        return float(self.job.calibration.collective_s(op, size, placement=placement).seconds[0])

    def ddp(self, *, forward_s=0.0, backward_s=0.0, expert=0.0) -> float:
        one = np.ones(1)
        found = ddp_s(
            self.job, self.rows, dense=DENSE * one, expert=expert * one, forward_s=forward_s * one,
            backward_s=backward_s * one,
        )  # fmt: skip
        return float(found.exposed[0])

    def exposed(self, *, gather, reduce, compute, backward_s=None, first=None, across=0.0, regathers=1.0) -> float:
        """Exposed seconds of a unit and micro-batch whose backward takes twice its forward unless told."""
        one = np.ones(1)
        shared = gather * one
        unit = UnitSeconds(shared, shared if first is None else first * one, reduce * one, across * one)
        found = fsdp_exposed_s(
            self.job, self.rows, unit, forward_s=compute * one,
            backward_s=(2 * compute if backward_s is None else backward_s) * one, regathers=regathers * one,
        )  # fmt: skip
        return float(found.seconds[0])


NO_OVERLAP = {"overlap": {"grad_reduce": False, "param_gather": False}}


def test_zero_0_reduces_whole_gradients() -> None:
    """fp32 gradients: 4 bytes each over all 32 replicas, once a step; nothing is gathered."""
    case = Case({"zero": 0, **NO_OVERLAP})
    assert case.ddp() == pytest.approx(case.price("all_reduce", 4 * DENSE, "dp_cp"))


def test_zero_1_scatters_gradients_and_gathers_parameters() -> None:
    """fp32 gradients scattered, bf16 parameters gathered: 4 and 2 bytes."""
    case = Case({"zero": 1, **NO_OVERLAP})
    expected = case.price("reduce_scatter", 4 * DENSE, "dp_cp") + case.price("all_gather", 2 * DENSE, "dp_cp")
    assert case.ddp() == pytest.approx(expected)


def test_context_ranks_join_the_reduction() -> None:
    case = Case({"zero": 0, "cp": 4, "tp": 2, **NO_OVERLAP})
    assert case.placements.dp_cp.ranks[0] == 16
    assert case.ddp() == pytest.approx(case.price("all_reduce", 4 * DENSE, "dp_cp"))


def test_bf16_reduction_halves_the_bytes() -> None:
    case = Case({"zero": 0, **NO_OVERLAP}, grad_reduce_dtype="bf16")
    assert case.ddp() == pytest.approx(case.price("all_reduce", 2 * DENSE, "dp_cp"))


def test_shard_groups_scatter_inside_and_reduce_shards_across() -> None:
    """Groups of 8 of 32 replicas: scatter and gather in a node, and all-reduce of an eighth over 4 nodes."""
    case = Case({"zero": 1, "zero_shard_size": 8, **NO_OVERLAP})
    assert (case.placements.zero_shard.ranks[0], case.placements.zero_replica.ranks[0]) == (8, 4)
    inside = case.price("reduce_scatter", 4 * DENSE, "zero_shard") + case.price("all_gather", 2 * DENSE, "zero_shard")
    assert case.ddp() == pytest.approx(inside + case.price("all_reduce", 4 * DENSE / 8, "zero_replica"))


def test_deepspeed_s_stage_1_reduces_whole_gradients() -> None:
    case = Case({"zero": 1, **NO_OVERLAP}, framework="deepspeed")
    grad = {"fp32": 4, "bf16": 2}[case.job.training.grad_reduce_dtype]
    gathered = case.price("all_gather", 2 * DENSE, "zero_shard")
    assert case.ddp() == pytest.approx(case.price("all_reduce", grad * DENSE, "dp_cp") + gathered)


def test_reducing_each_micro_batch_costs_as_many_reductions() -> None:
    last, each = (Case({"zero": 0, "grad_sync": when, **NO_OVERLAP}).ddp() for when in ("last", "each"))
    assert each == pytest.approx(2 * last)  # 64 sequences over 32 replicas: two micro-batches


def test_experts_reduce_over_their_own_replicas() -> None:
    """ep 8 of 32 ranks: 4 ranks share an expert."""
    moe = with_experts(grouped())
    case = Case({"zero": 0, "ep": 8, **NO_OVERLAP}, model=moe)
    assert case.placements.edp.ranks[0] == 4
    alone = case.price("all_reduce", 4 * DENSE, "dp_cp")
    assert case.ddp(expert=EXPERT) == pytest.approx(alone + case.price("all_reduce", 4 * EXPERT, "edp"))


def test_only_the_last_micro_batch_hides_and_never_the_last_bucket() -> None:
    """[O-3] 4 layers are 5 buckets with the embedding's; 90 % of a backward can hide."""
    case = Case({"zero": 0, "overlap": {"grad_reduce": True, "param_gather": False}})
    link = case.price("all_reduce", 4 * DENSE, "dp_cp")
    assert case.ddp(backward_s=link / 2) == pytest.approx(link - BACKWARD_USABLE.value * link / 2)
    assert case.ddp(backward_s=100.0) == pytest.approx(link / 5)


def test_the_gather_hides_behind_the_first_forward_and_the_reduction_behind_the_last_backward() -> None:
    """[O-3] Each has its own pass: a short forward leaves most of the gather, however long the backward, and the other way round.
    4 layers on 2 stages are 2 of a stage and the embedding's: 3 buckets.
    """
    case = Case({"zero": 1, "pp": 2, "overlap": {"grad_reduce": True, "param_gather": True}})
    gather = case.price("all_gather", 2 * DENSE, "dp_cp")
    reduce = case.price("reduce_scatter", 4 * DENSE, "dp_cp")
    short_forward = case.ddp(forward_s=gather / 2, backward_s=100.0)
    assert short_forward == pytest.approx(gather - BACKWARD_USABLE.value * gather / 2 + reduce / 3)
    short_backward = case.ddp(forward_s=100.0, backward_s=reduce / 2)
    assert short_backward == pytest.approx(gather / 3 + reduce - BACKWARD_USABLE.value * reduce / 2)


def test_reductions_of_each_micro_batch_hide_alike_and_the_gather_is_one() -> None:
    """64 sequences over 32 replicas are two micro-batches: two reductions, of which a fifth sticks out each, and one gather."""
    case = Case({"zero": 1, "grad_sync": "each", "overlap": {"grad_reduce": True, "param_gather": False}})
    gather = case.price("all_gather", 2 * DENSE, "dp_cp")
    reduce = case.price("reduce_scatter", 4 * DENSE, "dp_cp")
    assert case.ddp(forward_s=100.0, backward_s=100.0) == pytest.approx(2 * reduce / 5 + gather)


def test_one_replica_reduces_nothing() -> None:
    assert Case({"zero": 0, "tp": 4, "dp": 1}).ddp() == 0


@pytest.mark.parametrize(
    ("framework", "zero", "expected"),
    [("megatron", 2, False), ("megatron", 3, True), ("torchtitan", 2, True), ("torchtitan", 0, False),
     ("deepspeed", 2, False), ("deepspeed", 3, True)],
)  # fmt: skip
def test_which_stages_work_layer_by_layer(framework, zero, expected) -> None:
    case = Case({"zero": zero}, framework=framework)
    assert is_fsdp(case.job, case.rows).tolist() == [expected]


def test_fsdp_gathers_compute_copies_and_scatters_gradients_of_a_layer() -> None:
    """bf16 copies of fp32 shards gathered, fp32 gradients scattered."""
    case = Case({"zero": 3, "dp": 32}, framework="torchtitan", grad_reduce_dtype="fp32")
    link = fsdp_links_s(case.job, case.rows)
    assert link.layer_JU.gather[0, 0] == pytest.approx(case.price("all_gather", 2 * LAYER, "dp_cp"))
    assert link.layer_JU.reduce[0, 0] == pytest.approx(case.price("reduce_scatter", 4 * LAYER, "dp_cp"))


def test_deepspeed_gathers_tensor_by_tensor() -> None:
    """Two norms, query, key, value, output, gate, up and down."""
    case = Case({"zero": 3}, framework="deepspeed")
    calls = 9
    link = fsdp_links_s(case.job, case.rows)
    assert link.layer_JU.gather[0, 0] == pytest.approx(calls * case.price("all_gather", 2 * LAYER / calls, "dp_cp"))


@pytest.mark.parametrize(("month", "listed"), [("2021-04", True), ("2021-08", False)])
def test_the_first_stage_3_copies_every_rank_s_slice(month, listed) -> None:
    """fp16 on 32 ranks, 9 tensors a layer. Each call 0.38 ms of host and 32 slices of 4 us; the tensor zeroed, read and
    written around a gather, read and written before a scatter, at 0.80 of 3.352 TB/s.
    """
    case = Case({"zero": 3}, framework="deepspeed", precision="fp16", grad_reduce_dtype="fp16", software_date=month)
    link, size = fsdp_links_s(case.job, case.rows).layer_JU, 2 * LAYER
    around = 9 * (0.38e-3 + 32 * 4e-6)
    for op, found, passes in (("all_gather", link.gather, 3), ("reduce_scatter", link.reduce, 2)):
        alone = 9 * case.price(op, size / 9, "dp_cp")
        more = around + passes * size / (0.80 * 3.352e12) if listed else 0.0
        assert found[0, 0] == pytest.approx(alone + more)


def test_hybrid_sharding_gathers_inside_its_group() -> None:
    case = Case({"zero": 3, "zero_shard_size": 8}, framework="torchtitan", grad_reduce_dtype="fp32")
    link = fsdp_links_s(case.job, case.rows)
    assert link.layer_JU.gather[0, 0] == pytest.approx(case.price("all_gather", 2 * LAYER, "zero_shard"))
    assert link.layer_JU.reduce[0, 0] == pytest.approx(case.price("reduce_scatter", 4 * LAYER, "zero_shard"))
    across = case.price("all_reduce", 4 * LAYER / 8, "zero_replica")
    assert link.layer_JU.reduce_across[0, 0] == pytest.approx(across)


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
    case = Case({"zero": 3}, framework="torchtitan")
    assert case.exposed(gather=2, reduce=3, compute=compute, regathers=regathers) == pytest.approx(expected)


def test_without_overlap_a_layer_exposes_all() -> None:
    case = Case({"zero": 3, **NO_OVERLAP}, framework="torchtitan")
    assert case.exposed(gather=2, reduce=3, compute=9) == 2 + 2 + 3


def tied(case, *, embedding=1e6, layers=4.0) -> float:
    seconds, _ = tied_gradients_s(
        case.job, case.rows, word=np.array([embedding]), layers=np.array([layers]), placements=case.placements
    )
    return float(seconds[0])


def test_tied_embeddings_are_summed_between_the_ends() -> None:
    model = grouped(tie_word_embeddings=True)
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
    case = Case({"zero": 3, "grad_sync": "last", **NO_OVERLAP}, framework="torchtitan")
    assert case.exposed(gather=2, reduce=3, compute=9) == 2 + 2 + 3 / 2


def test_accelerate_scatters_gradients_once_a_step() -> None:
    """Two micro-batches of 32 replicas: each layer is gathered for two forwards and two backwards, each end for two forwards;
    bf16 gradients are scattered once.
    """
    case = Case({"zero": 3, **NO_OVERLAP}, framework="fsdp")

    def unit(elements: float, *, gathers: int) -> float:
        gather = case.price("all_gather", 2 * elements, "dp_cp")
        return gathers * gather + case.price("reduce_scatter", 2 * elements, "dp_cp")

    ends = unit(32000 * H, gathers=2) + unit(32000 * H + H, gathers=2)
    assert step_time(case.job, case.rows).terms_s["dp_comm"][0] == pytest.approx(4 * unit(LAYER, gathers=4) + ends)


# DeepSpeed. What it does was read in its source packages 0.9.0 to 0.19.8, named at each test.


@pytest.mark.parametrize(
    ("version", "op"),
    [("0.12.3", "reduce_scatter"), ("0.12.4", "all_reduce"), ("0.12", "all_reduce"), ("0.9", "reduce_scatter"),
     ("0.14", "all_reduce"), ("0.19.8", "all_reduce")],
)  # fmt: skip
def test_deepspeed_s_stage_2_reduces_whole_gradients_since_0_12_4(version, op) -> None:
    """stage_1_and_2.py, average_tensor: with use_multi_rank_bucket_allreduce (default true) every bucket is all-reduced and
    each rank copies its slice out. bf16 gradients, once for each of the two micro-batches, then bf16 parameters gathered.
    """
    case = Case({"zero": 2}, framework="deepspeed", framework_version=version)
    assert case.rows.num_micro_batches[0] == 2
    expected = 2 * case.price(op, 2 * DENSE, "dp_cp") + case.price("all_gather", 2 * DENSE, "dp_cp")
    assert case.ddp() == pytest.approx(expected)


@pytest.mark.parametrize(("month", "op"), [("2023-07", "reduce_scatter"), ("2023-12", "all_reduce")])
def test_megatron_deepspeed_reduces_as_the_deepspeed_of_its_month(month, op) -> None:
    case = Case({"zero": 2}, framework="megatron-deepspeed", software_date=month, grad_dtype="bf16")
    expected = 2 * case.price(op, 2 * DENSE, "dp_cp") + case.price("all_gather", 2 * DENSE, "dp_cp")
    assert case.ddp() == pytest.approx(expected)


def test_deepspeed_s_experts_are_reduced_whole_too() -> None:
    """average_tensor takes the expert's group into the same all-reduces."""
    moe = with_experts(grouped())
    case = Case({"zero": 1, "ep": 8}, framework="deepspeed", model=moe)
    routed = case.price("all_reduce", 2 * EXPERT, "edp") + case.price("all_gather", 2 * EXPERT, "edp")
    assert case.ddp(expert=EXPERT) == pytest.approx(case.ddp() + routed)


@pytest.mark.parametrize(
    ("strategy", "version", "reduces", "gathers"),
    [
        ({"zero": 0}, "0.19", False, False),
        ({"zero": 1}, "0.19", False, False),
        ({"zero": 2}, "0.19", False, False),
        ({"zero": 3}, "0.19", True, True),
        ({"zero": 2}, "0.9", False, False),
        ({"zero": 3}, "0.9", True, True),
        # What the engine cannot do stays off, whoever asks.
        ({"zero": 0, "overlap": {"grad_reduce": True, "param_gather": True}}, "0.19", False, False),
        ({"zero": 1, "overlap": {"grad_reduce": True, "param_gather": True}}, "0.19", True, False),
        ({"zero": 1, "overlap": {"grad_reduce": True, "param_gather": True}}, "0.12", False, False),
        ({"zero": 2, "overlap": {"grad_reduce": True, "param_gather": True}}, "0.12", True, False),
        ({"zero": 1, "pp": 2, "overlap": {"grad_reduce": True, "param_gather": True}}, "0.19", False, False),
    ],
)
def test_deepspeed_overlaps_by_default_in_stage_3_alone(strategy, version, reduces, gathers) -> None:
    """config.py (overlap_comm: stage 3 only), stage_1_and_2.py (step() gathers), engine.py (no overlap in pipelines, for
    stage 1 before 0.13, and none in the fallback of stage 0).
    """
    rows = Case(strategy, framework="deepspeed", framework_version=version).rows
    assert (rows.overlap_grad_reduce[0], rows.overlap_param_gather[0]) == (reduces, gathers)


def test_deepspeed_without_overlap_hides_nothing_of_stage_2() -> None:
    case = Case({"zero": 2}, framework="deepspeed")
    expected = 2 * case.price("all_reduce", 2 * DENSE, "dp_cp") + case.price("all_gather", 2 * DENSE, "dp_cp")
    assert case.ddp(forward_s=100.0, backward_s=200.0) == pytest.approx(expected)


def test_hpz_gathers_over_all_ranks_once_a_step() -> None:
    """ZeRO++ (Wang 2023, section 3.2) with copies that serve every later pass of a step (partition_parameters.py:
    use_secondary_tensor wherever one exists; stage3.py drops them after step()): of m = 2 micro-batches' four gathers of a
    layer, one crosses all 32 ranks and 2 m - 1 = 3 stay in the group of 8.
    """
    case = Case({"zero": 3, "zero_param_shard_size": 8, **NO_OVERLAP}, framework="deepspeed")
    calls = 9
    over_all = calls * case.price("all_gather", 2 * LAYER / calls, "dp_cp")
    inside = calls * case.price("all_gather", 2 * LAYER / calls, "param_shard")
    unit = fsdp_links_s(case.job, case.rows).layer_JU
    assert case.placements.param_shard.ranks[0] == 8
    assert (unit.first_gather[0, 0], unit.gather[0, 0]) == (pytest.approx(over_all), pytest.approx(inside))
    found = case.exposed(gather=inside, first=over_all, reduce=0.0, compute=1.0)
    assert 2 * found == pytest.approx(over_all + 3 * inside)


def test_hpz_s_step_is_the_sum_of_its_collectives() -> None:
    """Four layers, the embedding (32,000 x 1,024) and the head (with the final norm) over two micro-batches, unhidden.

    Layers gather for two forwards and two backwards, the ends for two forwards; bf16 gradients are scattered over all ranks.
    """
    case = Case({"zero": 3, "zero_param_shard_size": 8, **NO_OVERLAP}, framework="deepspeed")

    def unit(elements: float, *, calls: int, gathers: int) -> float:
        def each(op: str, group: str) -> float:
            return calls * case.price(op, 2 * elements / calls, group)

        over_all, inside = each("all_gather", "dp_cp"), each("all_gather", "param_shard")
        return over_all + (gathers - 1) * inside + 2 * each("reduce_scatter", "dp_cp")

    embedding = 32000 * H
    expected = 4 * unit(LAYER, calls=9, gathers=4) + unit(embedding, calls=1, gathers=2)
    expected += unit(embedding + H, calls=1, gathers=2)
    assert step_time(case.job, case.rows).terms_s["dp_comm"][0] == pytest.approx(expected)


def test_hpz_of_2023_gathers_over_all_ranks_in_every_forward() -> None:
    """0.12.6 reads the secondary tensor in backward alone: m gathers over all ranks and m inside."""
    case = Case({"zero": 3, "zero_param_shard_size": 8, **NO_OVERLAP}, framework="deepspeed", framework_version="0.12")
    assert 2 * case.exposed(gather=2.0, first=7.0, reduce=0.0, compute=1.0) == pytest.approx(2 * 7.0 + 2 * 2.0)


def test_hpz_gathers_the_embedding_once_over_all_ranks_and_then_inside() -> None:
    case, one = Case({"zero": 3, "zero_param_shard_size": 8}, framework="deepspeed"), np.ones(1)
    unit = UnitSeconds(2.0 * one, 7.0 * one, 0.0 * one, 0.0 * one)
    assert 2 * root_exposed_s(case.job, case.rows, unit)[0] == pytest.approx(7.0 + 2.0)


def test_mics_reduces_its_shards_across_groups_once_a_step() -> None:
    """mics.py (allreduce_mics_shard_grads) waits for the accumulation boundary; FSDP2 reduces across in every backward."""
    strategy = {"zero": 3, "zero_shard_size": 8, **NO_OVERLAP}
    mics, fsdp = Case(strategy, framework="deepspeed", framework_version="0.18"), Case(strategy, framework="torchtitan")
    assert 2 * mics.exposed(gather=2, reduce=3, across=5, compute=1) == pytest.approx(2 * (2 + 2 + 3) + 5)
    assert 2 * fsdp.exposed(gather=2, reduce=3, across=5, compute=1) == pytest.approx(2 * (2 + 2 + 3 + 5))
    one = np.ones(1)
    unit = UnitSeconds(2.0 * one, 2.0 * one, 3.0 * one, 5.0 * one)
    assert 2 * root_exposed_s(mics.job, mics.rows, unit)[0] == pytest.approx(2 * (2 + 3) + 5)
    assert 2 * root_exposed_s(fsdp.job, fsdp.rows, unit)[0] == pytest.approx(2 * (2 + 3 + 5))


def test_what_mics_reduces_last_hides_behind_the_last_backward_alone() -> None:
    """Backward 10 of two micro-batches: 2 + 3 hide in the first, and of 2 + 3 + 8 = 13 in the last 3 stick out."""
    case = Case({"zero": 3, "zero_shard_size": 8}, framework="deepspeed", framework_version="0.18")
    found = case.exposed(gather=2, reduce=3, across=8, compute=100.0, backward_s=10.0)
    first, last = INTERFERENCE.value * (2 + 5), INTERFERENCE.value * 2 + 3
    assert 2 * found == pytest.approx(first + last)
