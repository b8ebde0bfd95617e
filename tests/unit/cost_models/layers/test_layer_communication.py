"""Exposed communication inside a layer: which collectives of how many bytes, and what hides them."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, row_of, with_experts
from cost_models.constants import PIPELINED_TP_EXPOSED, TP_BACKWARD_HIDDEN, WGRAD_OVERLAP
from cost_models.hardware.groups import groups
from cost_models.layers.communication import cp_comm, ep_comm, tp_comm

H, SEQ = 1024, 2048
GROUPED = dense_model(2, hidden_size=H, num_key_value_heads=4)
MOE = with_experts(GROUPED, expert_intermediate_size=1024)


class Case:
    """One strategy, and prices of its own groups."""

    def __init__(self, strategy, *, model=GROUPED, framework="megatron", **given) -> None:
        self.job = job_of(model, framework, num_nodes=2, **{"seq_length": SEQ, "global_batch_size": 32, **given})
        self.rows = row_of(self.job, **{"micro_batch_size": 2, **strategy})
        self.kind = self.job.model.layer_kinds[0]
        self.placements = groups(self.rows, self.job.cluster)
        self.tokens = 2 * SEQ / self.rows.cp

    def price(self, op, size, group) -> float:
        placement = getattr(self.placements, group)
        return float(self.job.calibration.collective_s(op, size, placement=placement).seconds[0])

    def tp(self, *, wgrad_s=0.0, dgrad_s=0.0):
        return tp_comm(
            self.job, self.kind, self.rows, tokens=self.tokens, placements=self.placements, wgrad_s=np.array([wgrad_s]),
            dgrad_s=np.array([dgrad_s]),
        )  # fmt: skip

    def cp(self, *, attention_s=0.0):
        attention = np.array([attention_s])
        return cp_comm(
            self.job, self.rows, tokens=self.tokens, placements=self.placements, attention_s=(attention, 2 * attention)
        )

    def ep(self, *, expert_s=0.0):
        return ep_comm(
            self.job,
            self.kind,
            self.rows,
            tokens=self.tokens,
            placements=self.placements,
            expert_s=np.array([expert_s]),
        )


SIZE = 2 * SEQ * H * 2.0
"""T*h elements of bf16."""


def test_two_all_reduces_each_way_without_sequence_parallelism() -> None:
    case = Case({"tp": 4, "sequence_parallel": False}, framework="deepspeed")
    found, each = case.tp(wgrad_s=1.0), case.price("all_reduce", SIZE, "tp")
    assert found.forward[0] == pytest.approx(2 * each)
    assert found.backward[0] == pytest.approx(2 * each)  # DeepSpeed hides nothing


def test_megatron_hides_backward_all_reduces_since_2022() -> None:
    """Behind weight gradients that take for ever: nothing of them before 2022-01, all but a share from then on."""
    for month, exposed in (("2021-12", 1.0), ("2022-01", 1.0 - TP_BACKWARD_HIDDEN.value)):
        case = Case({"tp": 4, "sequence_parallel": False}, software_date=month)
        found, each = case.tp(wgrad_s=100.0), case.price("all_reduce", SIZE, "tp")
        assert found.forward[0] == pytest.approx(2 * each)
        assert found.backward[0] == pytest.approx(2 * each * exposed)


def test_sequence_parallelism_gathers_and_scatters() -> None:
    """Megatron gathers the saved shard once more in backward: 2 (AG + RS) forward, 2 (2 AG + RS) backward."""
    case = Case({"tp": 4, "sequence_parallel": True})
    gather, scatter = case.price("all_gather", SIZE, "tp"), case.price("reduce_scatter", SIZE, "tp")
    found = case.tp(wgrad_s=0.0)
    assert found.forward[0] == pytest.approx(2 * (gather + scatter))
    assert found.backward[0] == pytest.approx(2 * (2 * gather + scatter))


def test_the_weight_gradient_hides_part_of_backward() -> None:
    """[O-1] exposed = max(0.45 t, t - 0.6 weight-gradient time)."""
    case = Case({"tp": 4, "sequence_parallel": False})
    whole = 2 * case.price("all_reduce", SIZE, "tp")
    some, much = case.tp(wgrad_s=whole / 3).backward[0], case.tp(wgrad_s=1.0).backward[0]
    assert some == pytest.approx(whole - WGRAD_OVERLAP.value * whole / 3)
    assert much == pytest.approx((1 - TP_BACKWARD_HIDDEN.value) * whole)


def test_megatron_waits_for_the_gather_of_an_output_gradient() -> None:
    """A block's backward gathers the gradient of its row-parallel output, which all else waits for, then its saved input beside the
    data gradient; the scatter runs beside the weight gradient. Behind products that take for ever a share of the last two is left."""
    case = Case({"tp": 4, "sequence_parallel": True})
    gather, scatter = case.price("all_gather", SIZE, "tp"), case.price("reduce_scatter", SIZE, "tp")
    left = 1 - TP_BACKWARD_HIDDEN.value
    found = case.tp(wgrad_s=100.0, dgrad_s=100.0).backward[0]
    assert found == pytest.approx(2 * (gather + left * (gather + scatter)))
    # Where the two products are short, they hide 0.6 of their own time.
    short = (gather + scatter) / 4
    found = case.tp(wgrad_s=short, dgrad_s=short).backward[0]
    assert found == pytest.approx(2 * (2 * gather + scatter) - WGRAD_OVERLAP.value * 2 * short)


def test_a_pipelined_gather_of_an_output_gradient_is_not_waited_for() -> None:
    case = Case({"tp": 4, "sequence_parallel": True, "overlap": {"tp_comm": True}})
    gather, scatter = case.price("all_gather", SIZE, "tp"), case.price("reduce_scatter", SIZE, "tp")
    left = (1 - TP_BACKWARD_HIDDEN.value) * PIPELINED_TP_EXPOSED["userbuffers"].value
    assert case.tp(wgrad_s=100.0).backward[0] == pytest.approx(left * 2 * (2 * gather + scatter))


def test_pipelined_collectives_expose_a_share() -> None:
    plain, overlapped = (Case({"tp": 4, "overlap": {"tp_comm": on}}).tp() for on in (False, True))
    assert overlapped.forward[0] == pytest.approx(PIPELINED_TP_EXPOSED["userbuffers"].value * plain.forward[0])


def test_functional_collectives_copy_what_they_gather_and_scatter() -> None:
    """PyTorch's batch comes first: each of two pairs reads and writes T h of 2 bytes twice more. Pipelined ones don't."""
    plain, overlapped = (
        Case({"tp": 4, "overlap": {"tp_comm": on}}, framework="torchtitan", compile=True) for on in (False, True)
    )
    links = 2 * (plain.price("all_gather", SIZE, "tp") + plain.price("reduce_scatter", SIZE, "tp"))
    copies = 2 * 2 * 2 * SIZE / plain.job.calibration.memory_bytes_per_s_effective.value
    assert plain.tp().forward[0] == pytest.approx(links + copies)
    assert overlapped.tp().forward[0] == pytest.approx(PIPELINED_TP_EXPOSED["symmetric_memory"].value * links)


def test_fp8_shards_are_gathered_in_one_byte() -> None:
    plain, cast = Case({"tp": 4}), Case({"tp": 4}, precision="fp8", fp8_recipe="delayed")
    saved = plain.price("all_gather", SIZE, "tp") - plain.price("all_gather", SIZE / 2, "tp")
    assert plain.tp().forward[0] - cast.tp().forward[0] == pytest.approx(2 * saved)
    assert Case({"tp": 4}, precision="fp8", fp8_recipe="rowwise").tp().forward[0] == plain.tp().forward[0]


def test_an_expert_layer_without_shared_experts_has_one_pair() -> None:
    dense, routed = Case({"tp": 2}), Case({"tp": 2}, model=MOE)
    shared = {**MOE["moe"], "num_shared_experts": 1, "shared_expert_intermediate_size": 512}
    assert routed.tp().forward[0] == pytest.approx(dense.tp().forward[0] / 2)
    assert Case({"tp": 2}, model={**MOE, "moe": shared}).tp().forward[0] == pytest.approx(dense.tp().forward[0])


LATENT = {
    **{name: value for name, value in GROUPED.items() if name != "num_key_value_heads"},
    "mla": {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
}


def test_latent_attention_gathers_latents() -> None:
    """Core 0.14: 256, 128 and 32 of a token's 1024 elements before attention, all 1024 before the MLP; 1024 scattered twice.

    In backward what the up-projections' weight gradients need is gathered again, and three gradients are scattered.
    """
    case = Case({"tp": 4}, model=LATENT, framework_version="0.14")
    gathers = {width: case.price("all_gather", 2 * SEQ * width * 2.0, "tp") for width in (H, 256, 128, 32)}
    scatters = {width: case.price("reduce_scatter", 2 * SEQ * width * 2.0, "tp") for width in (H, 256, 128, 32)}
    found = case.tp()
    before = gathers[256] + gathers[128] + gathers[32]
    assert found.forward[0] == pytest.approx(before + gathers[H] + 2 * scatters[H])
    again = gathers[256] + gathers[128] + scatters[256] + scatters[128] + scatters[32]
    assert found.backward[0] == pytest.approx(again + gathers[H] + (2 * gathers[H] + scatters[H]))


def test_columns_of_the_down_projections_gather_hidden_rows_twice() -> None:
    """Core 0.13: query and key-value down-projections each gather T h; their columns come together, are split along the
    sequence for their norms, and are gathered by the up-projections.
    """
    case = Case({"tp": 4}, model=LATENT, framework_version="0.13")
    gathers = {width: case.price("all_gather", 2 * SEQ * width * 2.0, "tp") for width in (H, 256, 128, 160)}
    scatters = {width: case.price("reduce_scatter", 2 * SEQ * width * 2.0, "tp") for width in (H, 256, 128)}
    found = case.tp()
    before = 2 * gathers[H] + 2 * gathers[256] + gathers[160] + gathers[128]
    assert found.forward[0] == pytest.approx(before + gathers[H] + 2 * scatters[H])
    again = 2 * (gathers[H] + scatters[H]) + 2 * (gathers[256] + gathers[128]) + scatters[256] + scatters[128]
    assert found.backward[0] == pytest.approx(again + gathers[H] + (2 * gathers[H] + scatters[H]))


def test_elsewhere_latent_attention_gathers_hidden_rows() -> None:
    case = Case({"tp": 4}, model=LATENT, framework="nanotron")
    plain = Case({"tp": 4}, framework="nanotron")
    assert case.tp().forward[0] == plain.tp().forward[0]


def test_one_rank_communicates_nothing() -> None:
    case = Case({"tp": 1}, model=MOE)
    for found in (case.tp(), case.cp(), case.ep()):
        assert found.forward[0] == found.backward[0] == found.tier[0] == 0


def test_all_gathered_keys_and_values() -> None:
    """cp 4: 1024 tokens a rank, k and v of 4 heads of 128, bf16; the gathered size is the whole of 4096 tokens."""
    case = Case({"cp": 4, "cp_comm": "allgather"}, framework="torchtitan")
    whole = 2 * SEQ * 2 * 4 * 128 * 2.0
    found = case.cp(attention_s=1.0)  # hides nothing
    gather, scatter = case.price("all_gather", whole, "cp"), case.price("reduce_scatter", whole, "cp")
    assert found.forward[0] == pytest.approx(gather)
    assert found.backward[0] == pytest.approx(gather + scatter)


def test_the_ring_hides_each_step_behind_its_share_of_attention() -> None:
    """cp 4: 3 exchanges of a rank's keys and values, each beside a quarter of the layer's attention; doubled in backward."""
    case = Case({"cp": 4, "cp_comm": "p2p"})
    hop = case.price("send_recv", 2 * SEQ / 4 * 2 * 4 * 128 * 2.0, "cp")
    assert case.cp().forward[0] == pytest.approx(3 * hop)
    assert case.cp().backward[0] == pytest.approx(3 * 2 * hop)
    partly = case.cp(attention_s=2 * hop)
    assert partly.forward[0] == pytest.approx(3 * (hop - 2 * hop / 4))
    assert partly.backward[0] == pytest.approx(3 * (2 * hop - 4 * hop / 4))
    assert case.cp(attention_s=1.0).forward[0] == 0


def test_ulysses_exchanges_queries_keys_values_and_the_output() -> None:
    case = Case({"cp": 4, "cp_comm": "a2a"})
    swapped = 2 * SEQ / 4 * (1024 + 2 * 512 + 1024) * 2.0
    assert case.cp(attention_s=1.0).forward[0] == pytest.approx(case.price("all_to_all", swapped, "cp"))


LATENT = {
    **{name: value for name, value in GROUPED.items() if name != "num_key_value_heads"},
    "mla": {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 64},
}


@pytest.mark.parametrize("tp", [1, 2])
def test_latent_attention_exchanges_its_keys_and_values_at_full_width(tp: int) -> None:
    """8 heads' keys of 96 + 32 and values of 64, which differ, divided by tp; Ulysses sends queries like the keys and outputs like
    the values too.
    """
    tokens, heads = 2 * SEQ / 4, 8 / tp
    ring = Case({"cp": 4, "tp": tp, "cp_comm": "p2p"}, model=LATENT)
    hop = ring.price("send_recv", tokens * heads * (128 + 64) * 2.0, "cp")
    assert ring.cp().forward[0] == pytest.approx(3 * hop)
    ulysses = Case({"cp": 4, "tp": tp, "cp_comm": "a2a"}, model=LATENT)
    swapped = tokens * heads * (128 + 128 + 64 + 64) * 2.0
    assert ulysses.cp().forward[0] == pytest.approx(ulysses.price("all_to_all", swapped, "cp"))


def test_dispatch_and_combine_are_two_all_to_alls_each_way() -> None:
    """tp 2, ep 4: half of the 4096 tokens, two copies each, of 1024 bf16."""
    case = Case({"tp": 2, "ep": 4, "etp": 1}, model=MOE)
    one = case.price("all_to_all", 2 * SEQ / 2 * 2 * H * 2.0, "ep")
    found = case.ep()
    assert found.forward[0] == pytest.approx(2 * one)
    assert found.backward[0] == pytest.approx(2 * one)


def test_direct_messages_over_efa_leave_a_node_at_thirty_gigabytes_a_second() -> None:
    """ep 16 over two nodes: of 4096 tokens' two copies of 1024 bf16 half leave, at 30 GB/s for each GPU; the flex dispatcher's kernels, and
    InfiniBand, know no such limit.
    """
    model = with_experts(GROUPED, num_experts=16, expert_intermediate_size=1024)
    wire = {"nics_per_node": 8, "nic_gbit_per_s": 800}
    efa, band = (
        Case({"ep": 16}, model=model, cluster={**wire, "network": {"fabric": fabric, "latency_us": 5}})
        for fabric in ("efa", "infiniband")
    )
    routed = 2 * SEQ * 2 * H * 2.0
    assert efa.ep().forward[0] == pytest.approx(2 * routed / 2 / 30e9)
    assert band.ep().forward[0] < 0.6 * efa.ep().forward[0]
    flex = Case(
        {"ep": 16, "moe_dispatcher": "flex"},
        model=model,
        cluster={**wire, "network": {"fabric": "efa", "latency_us": 5}},
    )
    assert flex.ep().forward[0] < 0.6 * efa.ep().forward[0]


def test_the_gathering_dispatcher_moves_every_token_of_the_group() -> None:
    case = Case({"tp": 2, "ep": 4, "etp": 1, "moe_dispatcher": "allgather"}, model=MOE)
    whole = 2 * SEQ / 2 * 4 * H * 2.0
    both = case.price("all_gather", whole, "ep") + case.price("reduce_scatter", whole, "ep")
    assert case.ep().forward[0] == pytest.approx(both)


def test_another_micro_batch_s_experts_hide_the_dispatch() -> None:
    plain = Case({"ep": 4, "pp": 1}, model=MOE)
    hiding = Case({"ep": 4, "pp": 1, "overlap": {"moe_all_to_all": True}}, model=MOE)
    whole = plain.ep().forward[0]
    assert hiding.ep(expert_s=whole / 4).forward[0] == pytest.approx(3 * whole / 4)
    assert hiding.ep(expert_s=whole / 4).backward[0] == pytest.approx(2 * whole / 4)
    assert hiding.ep(expert_s=1.0).forward[0] == 0
    assert plain.ep(expert_s=1.0).hidden[0] == 0
    assert hiding.ep(expert_s=whole / 4).hidden[0] == pytest.approx((1 + 2) * whole / 4)


@pytest.mark.parametrize(
    ("training", "activation", "gradient"),
    [
        ({"precision": "bf16"}, 2, 2),
        # One scale for the tensor: by rows alone, the receiver transposes.
        ({"precision": "fp8", "fp8_recipe": "tensorwise"}, 1, 1),
        ({"precision": "fp8", "fp8_recipe": "delayed"}, 1, 1),
        # Blocks by rows for the data gradient and by columns for the weight's, of a gradient both at once.
        ({"precision": "fp8", "fp8_recipe": "mxfp8"}, 1, 2),
        ({"precision": "fp8", "fp8_recipe": "blockwise", "software_date": "2025-07"}, 1, 2),
        ({"precision": "fp8", "fp8_recipe": "blockwise", "software_date": "2025-06"}, 2, 2),
        # 96 tokens a rank hold no whole block of 128 but three of 32; 16 tokens none of either.
        ({"precision": "fp8", "fp8_recipe": "blockwise", "seq_length": 384}, 2, 2),
        ({"precision": "fp8", "fp8_recipe": "mxfp8", "seq_length": 384}, 1, 2),
        ({"precision": "fp8", "fp8_recipe": "mxfp8", "seq_length": 64}, 2, 2),
        ({"precision": "nvfp4", "gpu": "B200-SXM-180GB"}, 0.5625, 1.125),
    ],
)
def test_what_sequence_parallel_shards_travel_in(training, activation, gradient) -> None:
    """transformer_engine/pytorch/distributed.py (gather_along_first_dim: _all_gather_fp8, _all_gather_fp8_blockwise since
    2.5, _all_gather_mxfp8, _all_gather_nvfp4; is_quantizable), module/linear.py (usages asked for). Twice a layer and pass:
    a gather and a bf16 scatter; in backward the gradient is gathered, and the input once more.
    """
    case = Case({"tp": 4, "sequence_parallel": True, "micro_batch_size": 1}, **training)
    tokens = case.job.training.seq_length
    case.tokens = np.array([float(tokens)])
    size = tokens * H

    def gather(width: float) -> float:
        return case.price("all_gather", width * size, "tp")

    scatter = case.price("reduce_scatter", 2 * size, "tp")
    found = case.tp()
    assert found.forward[0] == pytest.approx(2 * (gather(activation) + scatter))
    backward = 2 * (gather(gradient) + scatter + gather(activation))
    assert found.backward[0] == pytest.approx(backward)


def test_nanotron_hides_no_all_reduce() -> None:
    """functional.py: asynchronous row-parallel products take REDUCE_SCATTER alone, so two whole all-reduces each way."""
    case = Case({"tp": 4, "sequence_parallel": False}, framework="nanotron")
    found, each = case.tp(wgrad_s=1.0), case.price("all_reduce", SIZE, "tp")
    assert found.forward[0] == pytest.approx(2 * each)
    assert found.backward[0] == pytest.approx(2 * each)
    split = Case({"tp": 4, "sequence_parallel": True}, framework="nanotron")
    assert split.tp(wgrad_s=1.0).backward[0] < split.tp().backward[0]


def test_ranks_with_the_same_tokens_gather_what_their_experts_found() -> None:
    """transformers under FSDP2, tp 2 x ep 4: a rank sends half of the tokens' 2 copies out and back, and the halves of the results are
    gathered over tp, T*h elements of bf16; the gradients take the same way."""
    case = Case({"tp": 2, "ep": 4, "sequence_parallel": False}, model=MOE, framework="fsdp", software_date="2026-11")
    both = 2 * case.price("all_to_all", SIZE / 2 * 2, "ep") + case.price("all_gather", SIZE, "tp")
    assert case.ep().forward[0] == pytest.approx(both)
    assert case.ep().backward[0] == pytest.approx(both)
