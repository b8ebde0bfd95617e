"""Seconds of what lives on the host, by hand: the update on the processors, and traffic beside the passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of
from cost_models.constants import HOST_CORE_STREAM_BYTES_PER_S
from cost_models.hardware import document_of, load_calibration
from cost_models.inputs.cluster import resolve_cluster
from cost_models.job import Job
from cost_models.step.offload import host_shares, host_update_bytes, offload_s, offload_tier
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Strategies
from cost_models.terms import Tier
from planner.plan import plan
from planner.rows import evaluate_rows


def job(framework: str = "megatron", cluster: dict[str, Any] | None = None, **training: Any) -> Job:
    nodes = {"gpu": UNIT_GPU, "num_nodes": 4, "host_link_gb_per_s": 50, **(cluster or {})}
    return job_of(dense_model(), framework, cluster=nodes, **training)


LINK = 40e9
"""0.8 of 50 GB/s."""
CORE = 13e9
"""Bytes/s of one thread that updates parameters; torchrun gives each of eight ranks one."""
NEVER, LONG = 0.0, 1e6
"""Passes that hide nothing and everything."""


def seconds(
    asked: Job, batch: Strategies, *, dense: float = 0.0, forward_s: float = 0.0, backward_s: float = 0.0
) -> float:
    sizes = {"dense": dense, "expert": 0.0, "forward_s": forward_s, "backward_s": backward_s}
    return float(offload_s(asked, batch, **{name: np.array([value]) for name, value in sizes.items()})[0])


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        # Adam reads fp32 parameter, gradient and two moments and writes all but the gradient: 16 + 12.
        ("megatron", 28 + 6),  # the new parameter is cast: 4 read, 2 written; clipped on the GPU
        ("deepspeed", 28 + 8 + 6),  # unscale_and_clip_grads on the host: 4 read, 4 written
        ("fsdp", 28 + 12),  # clip_grad_norm_ on host tensors: 4 read for the norm, 8 for the scaling; no cast
    ],
)
def test_bytes_that_a_host_moves_for_a_parameter(framework: str, expected: float) -> None:
    assert host_update_bytes(job(framework)) == expected


@pytest.mark.parametrize(
    ("framework", "fraction", "parameters", "share"),
    [
        # torch's CPUOffloadPolicy keeps parameters, gradients and optimizer on the host, or nothing.
        ("torchtitan", 0.0, True, 1.0),
        ("torchtitan", 1.0, True, 1.0),
        ("torchtitan", 0.0, False, 0.0),
        ("deepspeed", 0.25, True, 0.25),
        ("deepspeed", 0.25, False, 0.25),
        ("megatron", 0.5, False, 0.5),
    ],
)
def test_whose_parameters_the_host_updates(framework: str, fraction: float, parameters: bool, share: float) -> None:
    asked = job(framework)
    given = row_of(asked, zero=3 if parameters else 1)
    batch = replace(given, offload_optimizer_fraction=np.array([fraction]), offload_parameters=np.array([parameters]))
    assert host_shares(asked, batch).tolist() == [share]


def test_the_ranks_of_a_node_share_its_rate() -> None:
    """Half of 1e9/32 parameters of every rank. Megatron's step: 4 bytes down, 34 through a thread, 2 up."""
    asked, moved = job(), 1e9 / 32 / 2
    batch = row_of(asked, zero=1, offload={"optimizer_fraction": 0.5})
    assert HOST_CORE_STREAM_BYTES_PER_S.value == CORE
    assert asked.cluster.assumed["host_adam_gb_per_s"] == 8 * 13
    assert seconds(asked, batch, dense=1e9, backward_s=LONG) == pytest.approx(moved * (6 / LINK + 34 / CORE))
    stated = job(cluster={"host_adam_gb_per_s": 400})
    found = seconds(stated, row_of(stated, zero=1, offload={"optimizer_fraction": 0.5}), dense=1e9)
    assert found == pytest.approx(moved * (6 / LINK + 34 / (400e9 / 8)))


def test_a_measured_rate_of_a_node_takes_the_place_of_the_stated_one() -> None:
    sample = {"ranks": 8, "parameters": 2**26, "threads": 12, "bytes_per_s": 320e9}
    document = document_of({
        "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-28", "host_adam": [sample],
        "fingerprint": {"gpu": "H100-SXM-80GB"},
        "device": {"generation": "hopper", "peak_flops_per_s": {"bf16": 1e15}, "memory_bytes_per_s": 3e12,
                   "link_bytes_per_s": 4.5e11, "num_sms": 132},
    })  # fmt: skip
    cluster = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8, "host_adam_gb_per_s": 50})
    own = load_calibration(replace(cluster, calibration=("mine",)), extra={"mine": document})
    assert (own.host_adam_bytes_per_s.value, own.host_adam_bytes_per_s.tier) == (320e9, Tier.MEASURED)
    nominal = load_calibration(cluster).host_adam_bytes_per_s
    assert (nominal.value, nominal.tier) == (50e9, Tier.NOMINAL)


def test_a_document_without_the_group_keeps_its_id() -> None:
    """The digest leaves defaults out: what was stored before the group existed is still what its id says."""
    content = {
        "schema_version": 1, "name": "old", "kind": "measured", "created_at": "2026-01-01",
        "fingerprint": {"gpu": "H100-SXM-80GB"},
        "device": {"generation": "hopper", "peak_flops_per_s": {"bf16": 1e15}, "memory_bytes_per_s": 3e12,
                   "link_bytes_per_s": 4.5e11, "num_sms": 132},
    }  # fmt: skip
    old = document_of(content)
    assert "host_adam" not in old.canonical_json()
    assert document_of({**content, "id": old.id}).host_adam == ()


def test_deepspeed_sends_gradients_beside_the_backward() -> None:
    """64 sequences on 32 ranks: 2 micro-batches. Stage 2 keeps bf16 sums on the host: 2 bytes down beside the first
    backward; beside the second 2 up, 2 down again and 4 in fp32. After it 42 bytes a parameter, 2 up.
    """
    asked, moved = job("deepspeed"), 1e9 / 32
    batch = row_of(asked, zero=2, offload={"optimizer_fraction": 1.0})
    after = moved * (42 / CORE + 2 / LINK)
    assert seconds(asked, batch, dense=1e9, backward_s=LONG) == pytest.approx(after)
    first, last = moved * 2 / LINK, moved * (2 + 4) / LINK
    assert seconds(asked, batch, dense=1e9, backward_s=NEVER) == pytest.approx(after + first + last)
    halfway = 1.5 * first
    assert seconds(asked, batch, dense=1e9, backward_s=halfway) == pytest.approx(after + last - halfway)
    once = row_of(
        asked, zero=1, offload={"optimizer_fraction": 1.0}
    )  # stage 1 reduces and sends after the last backward
    assert seconds(asked, once, dense=1e9, backward_s=NEVER) == pytest.approx(after + moved * 4 / LINK)


def test_fsdp_fetches_its_parameters_for_every_pass() -> None:
    """fp32 shards: 4 bytes up for each gather of 2 micro-batches, 4 bytes of gradients down beside each backward, the
    second added on the host (12 bytes), then 40 bytes a parameter; nothing goes up after the step.
    """
    asked, moved = job("fsdp"), 1e9 / 32
    batch = row_of(asked, zero=3, grad_sync="each", offload={"optimizer_fraction": 1.0, "parameters": True})
    after = moved * (40 + 12) / CORE
    assert seconds(asked, batch, dense=1e9, forward_s=LONG, backward_s=LONG) == pytest.approx(after)
    bare = after + 2 * moved * 4 / LINK + 2 * moved * 4 / LINK  # both directions of the link at once in backward
    assert seconds(asked, batch, dense=1e9) == pytest.approx(bare)


def test_deepspeed_fetches_16_bit_parameters() -> None:
    asked, moved = job("deepspeed"), 1e9 / 32
    batch = row_of(asked, zero=3, offload={"parameters": True})
    assert seconds(asked, batch, dense=1e9) == pytest.approx(2 * 2 * moved * 2 / LINK)
    assert seconds(asked, batch, dense=1e9, forward_s=LONG, backward_s=LONG) == 0


def test_activations_cost_what_the_passes_do_not_hide() -> None:
    """Two of four layers, 2 micro-batches; Megatron's layer with Transformer Engine saves, per token (M-5): 8h of norms'
    inputs and outputs, 2q + 4kv, 2q of attention's output, 4a, 6f of a gated MLP, 8 of statistics; h = q = kv = 1024.
    """
    asked = job()
    batch = row_of(asked, zero=1, offload={"activation_layers": 2})
    layer = 2048 * (8 * 1024 + 6 * 1024 + 2 * 1024 + 4 * 8 + 6 * 4096 + 8)
    down = 2 * layer / LINK
    assert seconds(asked, batch) == pytest.approx(2 * 2 * down)
    assert seconds(asked, batch, forward_s=0.25 * down, backward_s=0.75 * down) == pytest.approx(
        2 * (0.75 + 0.25) * down
    )
    assert seconds(asked, batch, forward_s=down, backward_s=down) == 0


def test_recomputed_layers_leave_megatron_nothing_to_send() -> None:
    """Fine-grained offload moves what modules save; a recomputed layer saves its input alone."""
    asked = job()
    whole = row_of(asked, zero=1, recompute="full", offload={"activation_layers": 3})
    assert seconds(asked, whole) == 0
    block = row_of(asked, zero=1, recompute="full", recompute_num_layers=1, offload={"activation_layers": 3})
    fewer = row_of(asked, zero=1, offload={"activation_layers": 2})
    assert seconds(asked, block) == pytest.approx(seconds(asked, fewer))  # three layers are left, the last one stays


def test_hidden_traffic_is_not_called_measured() -> None:
    asked = job()
    batch = row_of(asked, zero=1, offload={"activation_layers": 1})
    assert offload_tier(asked, batch)[0] == Tier.NOMINAL
    assert step_time(asked, batch).tiers["offload"][0] == Tier.NOMINAL
    assert step_time(asked, row_of(asked, zero=1)).tiers["offload"][0] == Tier.MEASURED


def test_gpus_of_one_switch_share_its_uplink() -> None:
    """H100 over PCIe 5: 63 GB/s; two on a switch that is stated get half each, a stated link is what one GPU gets."""
    given = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8}
    alone = resolve_cluster(given).host_link_bytes_per_s
    pairs = resolve_cluster({**given, "pcie": {"gpus_per_switch": 2}})
    assert pairs.host_link_bytes_per_s == alone / 2
    assert pairs.assumed["host_link_gb_per_s"] == alone / 2 / 1e9
    stated = resolve_cluster({**given, "pcie": {"gpus_per_switch": 2}, "host_link_gb_per_s": 55})
    assert stated.host_link_bytes_per_s == 55e9


def test_a_measured_step_with_adam_on_the_host() -> None:
    """DeepSpeed ZeRO-2 with CPUAdam under torchrun on 2 x H200, llama-3.2-3b: 6.31 s a step (own measurement, 2026-11-28).

    3.21e9 parameters of 42 bytes on two threads of 13 GB/s are 5.2 s of it.
    """
    row = {
        "model": {"preset": "llama-3.2-3b"},
        "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
        "training": {"seq_length": 4096, "global_batch_size": 8, "precision": "bf16", "framework": "deepspeed"},
        "strategy": {"zero": 2, "micro_batch_size": 2, "recompute": "full", "offload": {"optimizer_fraction": 1.0}},
    }
    (answer,) = evaluate_rows([row])
    assert answer["time_breakdown_s"]["offload"] == pytest.approx(3.2127e9 * 42 / (2 * CORE), rel=0.02)
    assert answer["step_time_s"] == pytest.approx(6.31, rel=0.15)
    assert answer["provenance"]["terms"]["offload"] == "nominal"


HOST_ROW = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "strategy": {"zero": 1, "micro_batch_size": 1, "recompute": "full", "offload": {"optimizer_fraction": 1.0}},
}


def test_a_host_of_unknown_memory_is_asked_for_what_is_needed() -> None:
    """8.03e9 parameters of 24 bytes and 3 GB for each of 8 processes: 202 GiB."""
    (unknown,) = evaluate_rows([HOST_ROW])
    assert unknown["verdict"] == "fits"
    (reason,) = unknown["reasons"]
    assert reason["code"] == "host-memory-unknown"
    assert f"needs {(8.03e9 * 24 + 8 * 3e9) / 2**30:.0f} GiB of host memory a node" in reason["message"]
    (stated,) = evaluate_rows([{**HOST_ROW, "cluster": {**HOST_ROW["cluster"], "host_memory_gib": 512}}])
    assert (stated["verdict"], stated["reasons"]) == ("fits", [])
    (small,) = evaluate_rows([{**HOST_ROW, "cluster": {**HOST_ROW["cluster"], "host_memory_gib": 128}}])
    assert (small["verdict"], [each["code"] for each in small["reasons"]]) == ("oom", ["host-memory"])


def test_a_plan_request_is_warned_of_what_its_hosts_need() -> None:
    request = {name: HOST_ROW[name] for name in ("model", "cluster", "training")}
    fixed = {**HOST_ROW["strategy"], "tp": 1, "pp": 1, "cp": 1}
    answer = plan({**request, "constraints": {"fixed": fixed}})
    assert answer["plans"]
    (warning,) = answer["warnings"]
    assert warning.startswith(
        "Every plan would keep up to 202 GiB in the memory of each host, but host_memory_gib is not"
    )


def test_activation_offload_is_not_ranked_first_for_free() -> None:
    """llama-3.1-8b, 8 H100, 32k: a plan that sends all layers but one to the host was first at no cost. One layer's 139,400
    bytes a token (M-5) are 4.6 GB each way; two GPUs share 63 GB/s, of which 0.8 is reached.
    """
    row = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {"seq_length": 32768, "global_batch_size": 16, "precision": "bf16", "framework": "megatron"},
        "strategy": {"dp": 8, "zero": 1, "micro_batch_size": 1, "offload": {"activation_layers": 31}},
    }
    kept = {**row, "strategy": {**row["strategy"], "dp": 4, "cp": 2, "offload": {"activation_layers": 0}}}
    away, near = evaluate_rows([row, kept])
    each_way = 31 * 139_400 * 32768 / (63e9 / 2 * 0.8)
    passes = (
        away["step_time_s"] - away["time_breakdown_s"]["offload"]
    )  # forward and backward hide no more than they take
    assert away["time_breakdown_s"]["offload"] == pytest.approx(2 * 2 * each_way - passes, rel=0.15)
    assert away["step_time_s"] > near["step_time_s"]
    assert away["provenance"]["terms"]["offload"] == "nominal"


def test_nothing_offloaded_costs_nothing() -> None:
    asked = job()
    assert seconds(asked, row_of(asked), dense=1e9) == 0
