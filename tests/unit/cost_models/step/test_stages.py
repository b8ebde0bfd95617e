"""The slowest stage of a pipeline, its terms over a step, and what it waits for."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, request_of, row_of, with_experts
from cost_models.constants import (
    CHECKPOINT_HOST_S,
    COMPILED_DTENSOR_HOST_RATIO,
    COMPILED_HOST_RATIO,
    DTENSOR_HOST_RATIO,
    HOST_STEP_RATIO,
    SHARDED_HOST_RATIO,
    WGRAD_SHARE,
)
from cost_models.frameworks import FRAMEWORKS
from cost_models.hardware.host_constants import HOST_LOOP_OP_S
from cost_models.layers.costs import LAYER_PARTS, layer_costs
from cost_models.layers.ends import end_costs
from cost_models.step.optimizer import accumulation_s
from cost_models.step.stages import stages
from cost_models.terms import Tier
from planner.request.job import resolve_job

MICRO_BATCHES = 4


class Case:
    """One strategy of 4 micro-batches and the seconds of what its stages can hold."""

    def __init__(self, strategy, *, model=None, framework="megatron", calibration=None, training=None) -> None:
        given = {"global_batch_size": MICRO_BATCHES, **(training or {})}
        self.job = resolve_job(request_of(model or dense_model(8), framework, **given), calibration=calibration)
        self.rows = row_of(self.job, **{"dp": 1, "zero": 0, "recompute": "none", **strategy})
        self.layers, ends = layer_costs(self.job, self.rows), end_costs(self.job, self.rows)
        self.first = float((ends.embedding + ends.embedding_comm)[0])
        self.last = float((ends.head + ends.loss + ends.head_comm)[0])
        self.found = stages(self.job, self.rows)
        held, whole = self.found.held, np.array([False])
        self.accumulation_J = accumulation_s(
            self.job, self.rows, dense=held.dense_JN, expert=held.expert_JN, sharded=whole
        )[:, 0]
        self.layer_J = self.layers.parts_JPU[:, :, 0].sum(axis=1) + self.accumulation_J

    def term(self, name: str) -> float:
        return float(self.found.terms_s[name][0])


def test_one_stage_has_everything() -> None:
    case = Case({})
    each, total = case.layers.parts_JPU[0, :, 0], sum(float(v[0]) for v in case.found.terms_s.values())
    for position, name in enumerate(LAYER_PARTS):
        if name != "tp_comm":
            assert case.term(name) == pytest.approx(MICRO_BATCHES * 8 * each[position])
    assert case.term("grad_accumulation") == pytest.approx(MICRO_BATCHES * 8 * case.accumulation_J[0])
    assert total == pytest.approx(MICRO_BATCHES * (8 * case.layer_J[0] + case.first + case.last))
    assert case.term("pp_bubble") == case.term("recompute") == case.term("dp_comm") == 0


def test_the_head_makes_the_last_of_equal_stages_the_slowest() -> None:
    """4 micro-batches of the last stage, and 1F1B waits for the other three once."""
    case = Case({"pp": 4})
    slowest = 2 * case.layer_J[0] + case.last
    everything = 8 * case.layer_J[0] + case.first + case.last
    assert case.term("head") > 0
    assert case.term("embedding") == 0
    assert case.term("gemm") == pytest.approx(MICRO_BATCHES * 2 * case.layers.parts_JPU[0, 0, 0])
    assert case.term("pp_bubble") == pytest.approx(everything - slowest)


def test_a_fuller_middle_stage_is_the_slowest() -> None:
    case = Case({"pp": 4, "layers_per_stage": [1, 2, 4, 1]})
    assert case.term("head") == case.term("embedding") == 0
    assert case.found.slowest_layers_JN[:, 0].tolist() == [4]
    total = sum(float(seconds[0]) for name, seconds in case.found.terms_s.items() if name != "pp_bubble")
    assert total == pytest.approx(MICRO_BATCHES * 4 * case.layer_J[0])


def test_layers_of_two_kinds_are_counted_apart() -> None:
    """2 dense layers before 6 of experts on 2 stages: the second holds 4 expert layers and is the slower."""
    moe = {"num_experts": 8, "top_k": 4, "expert_intermediate_size": 4096, "first_dense_layers": 2}
    case = Case({"pp": 2}, model=dense_model(8, moe=moe))
    dense, routed = case.layer_J
    assert routed > dense
    assert case.found.slowest_layers_JN[:, 0].tolist() == [0, 4]
    everything = 2 * dense + 6 * routed + case.first + case.last
    assert case.term("pp_bubble") == pytest.approx(everything - (4 * routed + case.last))


def test_full_recomputation_repeats_the_forward_of_its_layers() -> None:
    """Every layer, or two of each of eight: the layers' forward once more per micro-batch."""
    again = Case({}).layers.again_JU[0, 0]
    assert Case({"recompute": "full"}).term("recompute") == pytest.approx(MICRO_BATCHES * 8 * again)
    some = Case({"recompute": "full", "recompute_method": "block", "recompute_num_layers": 2})
    assert some.term("recompute") == pytest.approx(MICRO_BATCHES * 2 * again)


def test_megatron_s_selective_recomputation_repeats_the_attention_core() -> None:
    case = Case({"recompute": "selective"})
    assert case.term("recompute") == pytest.approx(MICRO_BATCHES * 8 * case.layers.modules_JMU[0, 0, 0])
    forward_of_attention = case.term("attention") / 3.5  # forward 1, backward 2.5 at about the same efficiency
    assert case.term("recompute") == pytest.approx(MICRO_BATCHES * 8 * case.layers.modules_JMU[0, 0, 0])
    assert case.term("recompute") == pytest.approx(forward_of_attention, rel=0.2)


def test_counts_per_stage_shift_the_slowest() -> None:
    """The first of two stages recomputes its four layers, the second none: longer than the head."""
    small_head = dense_model(8, vocab_size=1024)
    case = Case({"pp": 2, "recompute": "full", "recompute_per_stage": [4, 0]}, model=small_head)
    again = case.layers.again_JU[0, 0]
    assert case.term("recompute") == pytest.approx(MICRO_BATCHES * 4 * again)
    assert case.term("head") == 0
    slowest = 4 * (case.layer_J[0] + again) + case.first
    everything = 8 * case.layer_J[0] + 4 * again + case.first + case.last
    assert case.term("pp_bubble") == pytest.approx(everything - slowest)


def test_forward_and_backward_of_the_slowest_stage_are_its_micro_batch() -> None:
    case = Case({"pp": 4})
    waits = case.layers.parts_JPU[0, LAYER_PARTS.index("launch"), 0]
    assert waits > 0
    assert case.found.forward_s[0] == pytest.approx(2 * (case.layers.forward_JU[0, 0] + waits))
    whole = 2 * case.layer_J[0] + case.last
    assert case.found.forward_s[0] + case.found.backward_s[0] == pytest.approx(whole + 2 * waits)


def test_a_third_of_the_ends_is_the_forward_of_a_folded_pipeline() -> None:
    """With F, I and W of the slowest stage per micro-batch, and all other stages together r times as long as it, DualPipe-V waits
    r (F + max(F, I) + max(I - W, 0)) / 2. What the stage has of embedding, head and loss is a third forward.
    """
    case = Case({"pp": 4, "vpp": 2, "schedule": "dualpipe-v"})
    layer, ends = case.layer_J[0], sum(case.term(name) for name in ("embedding", "head", "loss")) / MICRO_BATCHES
    assert ends > 0
    waits = case.layers.parts_JPU[0, LAYER_PARTS.index("launch"), 0]
    stage, everything = 2 * layer + ends, 8 * layer + case.first + case.last
    forward = 2 * (case.layers.forward_JU[0, 0] + waits) + ends / 3
    weights = 2 * WGRAD_SHARE.value * case.layers.parts_JPU[0, LAYER_PARTS.index("gemm"), 0]
    inputs = stage - forward - weights
    assert forward > inputs > weights
    waited = (everything - stage) / stage * (2 * forward + inputs - weights) / 2
    assert case.term("pp_bubble") == pytest.approx(waited)


SMALL = dense_model(8, hidden_size=256, intermediate_size=1024, vocab_size=512)
"""So small that the device waits for the host throughout."""
TORCHTITAN = FRAMEWORKS["torchtitan"]
STEP = HOST_STEP_RATIO.value * HOST_LOOP_OP_S["hopper"].value
PLAIN = STEP * (TORCHTITAN.kernels_forward + TORCHTITAN.kernels_backward)
"""Host seconds of a plain layer."""


def layer_seconds(strategy, *, training=None, framework="torchtitan") -> float:
    """What the layers of the single stage take, in layers: device work and waiting together are the host's time."""
    case = Case(strategy, model=SMALL, framework=framework, training=training)
    names = [name for name in LAYER_PARTS if name != "cp_comm"]
    ends = float(spread_ends(case))
    return (sum(case.term(name) for name in names) - ends) / (MICRO_BATCHES * 8)


def spread_ends(case: Case):
    """The ends' own tensor-parallel traffic."""
    costs = end_costs(case.job, case.rows)
    return MICRO_BATCHES * (costs.embedding_comm + costs.head_comm)[0]


def wrapped(*ratios: float) -> float:
    """A plain layer and what wrappers of these ratios add, in plain layers; they are measured in loops."""
    return 1 + sum(ratio - 1 for ratio in ratios) / HOST_STEP_RATIO.value


def test_fsdp2_and_dtensor_take_host_time_of_their_own() -> None:
    assert layer_seconds({}) == pytest.approx(PLAIN)
    assert layer_seconds({"zero": 3}) == pytest.approx(wrapped(SHARDED_HOST_RATIO.value) * PLAIN)
    assert layer_seconds({"tp": 2}) == pytest.approx(wrapped(DTENSOR_HOST_RATIO.value) * PLAIN)
    both = wrapped(DTENSOR_HOST_RATIO.value, SHARDED_HOST_RATIO.value)
    assert layer_seconds({"tp": 2, "zero": 3}) == pytest.approx(both * PLAIN)


def test_compiling_leaves_most_of_the_host_time() -> None:
    """Kernels are fewer, but guards and wrappers of every call stay, FSDP2's whole and DTensor's in part."""
    compiled = {"compile": True}
    each = COMPILED_HOST_RATIO.value
    assert layer_seconds({}, training=compiled) == pytest.approx(each * PLAIN)
    sharded = each + wrapped(SHARDED_HOST_RATIO.value) - 1
    assert layer_seconds({"zero": 3}, training=compiled) == pytest.approx(sharded * PLAIN)
    split = each + wrapped(COMPILED_DTENSOR_HOST_RATIO.value) - 1
    assert layer_seconds({"tp": 2}, training=compiled) == pytest.approx(split * PLAIN)


def test_a_layer_of_megatron_cores_own_modules_takes_more_host_time_and_more_with_tensor_parallelism() -> None:
    """65 + 82 operators a layer, and with sequence parallelism ten collective calls of seven operators each."""
    local = {"transformer_impl": "local", "software_date": "2026-11"}
    assert layer_seconds({}, training=local, framework="megatron") == pytest.approx(147 * STEP)
    split = layer_seconds({"tp": 2}, training=local, framework="megatron")
    assert split == pytest.approx((147 + 10 * 7) * STEP)


def test_recomputing_a_wrapped_layer_launches_it_again() -> None:
    case = Case({"zero": 3, "recompute": "full"}, model=SMALL, framework="torchtitan")
    forward = wrapped(SHARDED_HOST_RATIO.value) * STEP * TORCHTITAN.kernels_forward
    assert case.term("recompute") == pytest.approx(MICRO_BATCHES * 8 * (forward + CHECKPOINT_HOST_S.value))


def test_a_nominal_ratio_makes_waiting_for_the_host_nominal_whatever_was_measured_of_the_plain_layer() -> None:
    """The older profile of four H100 holds an eager layer, and neither a sharded nor a tensor-parallel one."""
    launch = {}
    for name, given in {"plain": {"zero": 0}, "sharded": {"zero": 3}, "split": {"zero": 0, "tp": 2}}.items():
        case = Case(given, model=SMALL, framework="torchtitan", calibration="h100x4-nvls-off-2026")
        launch[name] = Tier(int(case.found.tiers["launch"][0]))
    assert launch == {"plain": Tier.INTERPOLATED, "sharded": Tier.NOMINAL, "split": Tier.NOMINAL}


@pytest.mark.parametrize(("pp", "vpp", "batch", "saved"), [(1, 1, 4, 0.0), (1, 1, 16, 3.0), (2, 2, 16, 2.5)])
def test_overlapped_experts_are_exposed_while_the_pipeline_fills_and_drains(pp, vpp, batch, saved) -> None:
    """Of m micro-batches and the (pp - 1) / vpp of the bubble, all but pp are hidden: 1 - 1, 4 - 1, 4 + 1/2 - 2."""
    model = with_experts(dense_model(4), expert_intermediate_size=8192)
    shape = {"tp": 1, "pp": pp, "vpp": vpp, "dp": 4, "ep": 4, "zero": 1, "micro_batch_size": 1}
    on, off = (
        Case(
            {**shape, "overlap": {"moe_all_to_all": flag, "p2p": True}},
            model=model,
            training={"global_batch_size": batch, "seq_length": 32768},
        )
        for flag in (True, False)
    )
    each_s = off.term("ep_comm") / (batch / 4)  # experts this large hide all of it
    terms = ("ep_comm", "pp_bubble", "launch")
    assert sum(off.term(name) - on.term(name) for name in terms) == pytest.approx(saved * each_s, abs=1e-9 * each_s)


def test_in_a_folded_pipeline_the_first_stage_has_both_ends() -> None:
    """8 layers on 2 x 2 virtual stages: with the head the last stage is the slowest of a round trip, the first one of a V."""
    around, folded = (
        Case({"pp": 2, "vpp": 2, "schedule": name}, framework="torchtitan", training={"framework_version": "0.2"})
        for name in ("interleaved", "zb-v")
    )
    assert around.term("embedding") == 0
    assert folded.term("embedding") == pytest.approx(MICRO_BATCHES * folded.first)
    assert folded.term("head") == around.term("head") > 0


def test_a_folded_pipeline_counts_uneven_layers_on_their_own_stage() -> None:
    case = Case({"pp": 2, "vpp": 2, "schedule": "zb-v", "layers_per_stage": [1, 3, 3, 1]}, framework="torchtitan")
    assert case.found.slowest_layers_JN.sum() == 6
