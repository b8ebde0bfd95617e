"""State on a node's drives, pipelined updates, ZenFlow, and activations of single modules, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, llama_model, row_of, with_experts
from cost_models.evaluate import Verdict, evaluate
from cost_models.hardware import document_of, load_calibration
from cost_models.job import Job
from cost_models.memory.drives import IN_MEMORY
from cost_models.memory.stage_activations import offloaded_activation_bytes
from cost_models.memory.stage_memory import stage_memory
from cost_models.step.offload import ZENFLOW_STALL, offload_s
from cost_models.strategies.strategy import Strategies
from cost_models.units import GIB
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.rules import reasons

LINK, CORES = 40e9, 8 * 13e9
"""Bytes/s of a link (0.8 of 50 GB/s) and of a node's eight threads."""
NVME = {"read_gb_per_s": 25, "write_gb_per_s": 12}
DRIVES = {"optimizer_fraction": 1.0, "optimizer_device": "nvme"}
LONG = 1e6
"""A pass that hides everything."""


def job(framework: str = "deepspeed", **cluster: Any) -> Job:
    nodes = {"gpu": UNIT_GPU, "num_nodes": 1, "host_link_gb_per_s": 50, "nvme": NVME, **cluster}
    return job_of(dense_model(), framework, cluster=nodes)


def seconds(asked: Job, batch: Strategies, *, dense: float, passes_s: float = LONG) -> float:
    sizes = {"dense": dense, "expert": 0.0, "forward_s": passes_s, "backward_s": passes_s}
    return float(offload_s(asked, batch, **{name: np.array([value]) for name, value in sizes.items()})[0])


@pytest.mark.parametrize(("overlap", "expected"), [("none", 7e9 * 12 / 25e9 + 7e9 * 12 / 12e9), ("pipelined", 7.0)])
def test_an_update_reads_and_writes_the_state_of_a_node(overlap: str, expected: float) -> None:
    """7e9 parameters of a node, 12 bytes each: 3.36 s to read, 7.0 to write, 10.36 one after the other. A host that updates in no
    time leaves these alone, with the new parameters' way up.
    """
    asked = job(host_adam_gb_per_s=1e9)
    batch = row_of(asked, zero=3, offload={**DRIVES, "optimizer_overlap": overlap})
    up = 7e9 / 8 * 2 / LINK
    assert seconds(asked, batch, dense=7e9) == pytest.approx(expected + up, rel=1e-4)
    assert overlap == "pipelined" or expected == pytest.approx(10.36)


def test_a_slow_update_is_the_longest_of_the_three() -> None:
    """42 bytes a parameter on eight threads of 13 GB/s."""
    asked = job()
    batch = row_of(asked, zero=3, offload={**DRIVES, "optimizer_overlap": "pipelined"})
    update, write = 7e9 * 42 / CORES, 7.0
    assert seconds(asked, batch, dense=7e9) == pytest.approx(max(update, write) + 7e9 / 8 * 2 / LINK)
    serial = row_of(asked, zero=3, offload=DRIVES)
    assert seconds(asked, serial, dense=7e9) == pytest.approx(update + 3.36 + write + 7e9 / 8 * 2 / LINK)


def test_megatron_overlaps_its_copies_with_the_update() -> None:
    """Half of 8e9 / 8 parameters a rank: 4 bytes down, 34 through a thread, 2 up. Beside the update neither counts."""
    asked, moved = job("megatron"), 8e9 / 8 / 2
    serial = row_of(asked, zero=1, offload={"optimizer_fraction": 0.5})
    piped = row_of(asked, zero=1, offload={"optimizer_fraction": 0.5, "optimizer_overlap": "pipelined"})
    update = moved * 34 / (CORES / 8)
    assert seconds(asked, serial, dense=8e9) == pytest.approx(update + moved * 6 / LINK)
    assert seconds(asked, piped, dense=8e9) == pytest.approx(update)


def test_parameters_beyond_memory_are_read_for_every_gather() -> None:
    """16e9 parameters on 8 ranks: 1e9 of each in memory, 1e9 on drives. A gather reads 8 x 1e9 x 2 bytes in 0.64 s where the
    link takes 0.1; two micro-batches of a forward and a backward each, and one write of 16e9 bytes a step.
    """
    nodes = {"gpu": UNIT_GPU, "num_nodes": 1, "host_link_gb_per_s": 50, "nvme": NVME}
    asked = job_of(dense_model(), "deepspeed", cluster=nodes, global_batch_size=16)
    batch = row_of(asked, zero=3, offload={"parameters": True, "parameter_device": "nvme"})
    assert IN_MEMORY == 1e9
    assert seconds(asked, batch, dense=16e9, passes_s=0.0) == pytest.approx(4 * 16e9 / 25e9 + 16e9 / 12e9)
    small = row_of(asked, zero=3, offload={"parameters": True, "parameter_device": "nvme"})
    assert seconds(asked, small, dense=8e9, passes_s=0.0) == pytest.approx(4 * 1e9 * 2 / LINK)


def test_zenflow_leaves_a_part_of_the_waits() -> None:
    asked = job()
    plain = row_of(asked, zero=2, offload={"optimizer_fraction": 1.0})
    zen = row_of(asked, zero=2, offload={"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"})
    assert ZENFLOW_STALL.value == 0.15
    assert seconds(asked, zen, dense=7e9) == pytest.approx(0.15 * seconds(asked, plain, dense=7e9))


def test_both_directions_of_a_link_share_what_was_measured() -> None:
    """40 GB/s one way and 50 both ways: 1 s up beside 1 s down take 1.6 s."""
    document = document_of({
        "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-30",
        "memory_bandwidth": [
            {"kind": "host_to_device", "size_bytes": 2.0**28, "bytes_per_s": 40e9},
            {"kind": "host_both_ways", "size_bytes": 2.0**29, "bytes_per_s": 50e9},
            {"kind": "nvme_read", "size_bytes": 2.0**30, "bytes_per_s": 20e9},
            {"kind": "nvme_write", "size_bytes": 2.0**30, "bytes_per_s": 10e9},
        ],
        "fingerprint": {"gpu": "H100-SXM-80GB"},
        "device": {"generation": "hopper", "peak_flops_per_s": {"bf16": 1e15}, "memory_bytes_per_s": 3e12,
                   "link_bytes_per_s": 4.5e11, "num_sms": 132},
    })  # fmt: skip
    asked = job(gpu="H100-SXM-80GB")
    own = load_calibration(replace(asked.cluster, calibration=("mine",)), extra={"mine": document})
    assert own.nvme is not None
    assert (own.nvme.read_bytes_per_s, own.nvme.write_bytes_per_s) == (20e9, 10e9)
    measured = replace(asked, calibration=own)
    batch = row_of(asked, zero=2, offload={"optimizer_fraction": 1.0})
    moved = 1e9 / 8
    # 64 sequences on 8 ranks: of 8 micro-batches the first sends 2 bytes down, six send 2 up and 2 down, the last 2 up and 6 down.
    backward = moved * (2 / 40e9 + 6 * 4 / 50e9 + 8 / 50e9)
    after = moved * (42 / 13e9 + 2 / 40e9)
    assert seconds(measured, batch, dense=1e9, passes_s=0.0) == pytest.approx(after + backward)


def test_state_on_drives_is_not_in_memory() -> None:
    """12 bytes a parameter move from the host's memory, where 1.5 times as much was, to the drives."""
    asked = job()
    on_host, on_drives = (
        stage_memory(asked, row_of(asked, zero=3, offload={"optimizer_fraction": 1.0, "optimizer_device": device}))
        for device in ("cpu", "nvme")
    )
    held = float(on_drives.nvme_bytes_per_node[0])
    elements = held / 12
    buffers = 4 * 4 * elements  # four buffers of fp32, since a rank's part is below 1e9
    assert on_host.nvme_bytes_per_node.tolist() == [0.0]
    assert elements == pytest.approx(
        4 * (4 + 3 * 4) * 2**20 + 2 * 32000 * 1024, rel=1e-3
    )  # four layers, and twice the vocabulary
    less = on_host.host_bytes_per_node[0] - on_drives.host_bytes_per_node[0]
    assert less == pytest.approx(1.5 * held - buffers)


def test_drives_that_are_too_small_are_a_reason_of_their_own() -> None:
    needs = {"optimizer_fraction": 1.0, "optimizer_device": "nvme"}
    row = {
        "model": llama_model(), "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8, "host_memory_gib": 2000,
                                            "nvme": {**NVME, "capacity_gib": 50}},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"},
        "strategy": {"zero": 3, "micro_batch_size": 1, "recompute": "full", "offload": needs},
    }  # fmt: skip
    (found,) = evaluate_rows([row])
    assert found["verdict"] == "oom"
    assert [each["code"] for each in found["reasons"]] == ["nvme-capacity"]
    # 8.03e9 parameters of 12 bytes are 89.7 GiB.
    assert "needs 89.7 GiB on the drives of each node, but nvme.capacity_gib is 50.0" in found["reasons"][0]["message"]
    assert found["memory"]["nvme_bytes_per_node"] / GIB == pytest.approx(8.03e9 * 12 / GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("framework", "strategy", "cluster", "says"),
    [
        ("deepspeed", {"zero": 3, "offload": DRIVES}, {"nvme": None}, "the cluster states no drives"),
        ("deepspeed", {"zero": 2, "offload": DRIVES}, {}, "only with zero 3, but zero is 2"),
        ("megatron", {"zero": 1, "offload": DRIVES}, {}, "megatron cannot keep optimizer state on NVMe drives"),
        ("deepspeed", {"zero": 3, "offload": {"optimizer_device": "nvme"}}, {}, "offload.optimizer_fraction is 0"),
        ("deepspeed", {"zero": 3, "offload": {"parameter_device": "nvme"}}, {}, "offload.parameters is false"),
        ("deepspeed", {"zero": 3, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "pipelined"}}, {}, "only for state on NVMe"),
        ("fsdp", {"zero": 3, "offload": {"optimizer_fraction": 1.0, "parameters": True, "optimizer_overlap": "pipelined"}}, {},
         "does not pipeline"),
        ("megatron", {"zero": 1, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}, {}, "does not have ZenFlow"),
        # deepspeed/runtime/zenflow/engine.py: gradient_accumulation_steps = update_interval. 64 sequences on 8 ranks are 8 micro-batches.
        ("deepspeed", {"zero": 2, "offload": {"optimizer_fraction": 1.0, "optimizer_overlap": "zenflow"}}, {}, "but there are 8"),
        ("megatron", {"offload": {"activation_modules": ["attn_proj"]}}, {}, "attn_proj without core_attn"),
        ("megatron", {"offload": {"activation_modules": ["moe_act"]}}, {}, "the model has no experts"),
        ("megatron", {"offload": {"activation_fraction": 0.5}}, {}, "names no module"),
        ("torchtitan", {"offload": {"activation_modules": ["core_attn"]}}, {}, "activations of single modules"),
    ],
)  # fmt: skip
def test_what_a_framework_refuses(framework: str, strategy: dict[str, Any], cluster: dict[str, Any], says: str) -> None:
    asked = job(framework, **cluster)
    messages = [each["message"] for each in reasons(asked, row_of(asked, **strategy), 0)]
    assert any(says in message for message in messages), messages


def sent(asked: Job, modules: list[str], **offload: Any) -> float:
    row = row_of(asked, tp=2, pp=2, sequence_parallel=True, offload={"activation_modules": modules, **offload})
    return float(offloaded_activation_bytes(asked, row)[0])


def test_modules_send_what_they_save() -> None:
    """Llama 8B, tp 2 with sequence parallelism, T 2,048 tokens, 16 layers a stage of which 15 send: norm inputs 2 T h / 2 bytes, the
    norm's output as much, query, key and value 2 T (q + 2 kv) / 2 and statistics 4 T heads / 2, attention's output 2 T q / 2.
    """
    asked = job_of(llama_model(), "megatron", num_nodes=1, framework_version="0.19")
    tokens, hidden = 2048, 4096
    half = tokens * hidden  # 2 bytes over tp 2
    for name, each in {
        "attn_norm": half, "mlp_norm": half, "qkv_linear": half, "attn_proj": half,
        "core_attn": tokens * (4096 + 2 * 1024) + 4 * tokens * 32 / 2,
    }.items():  # fmt: skip
        assert sent(asked, [name]) == pytest.approx(15 * each, rel=1e-9), name
    assert sent(asked, ["attn_norm", "mlp_norm"]) == pytest.approx(15 * 2 * half)
    assert sent(asked, ["attn_norm"], activation_fraction=0.5) == pytest.approx(7.5 * half)


def test_experts_send_their_inputs_and_hidden_tensors() -> None:
    """Two experts of eight for each of 2,048 tokens, tp 2: 2,048 rows of 1,024 in, and gate and up of 512, etp 2."""
    asked = job_of(with_experts(dense_model()), "megatron", num_nodes=1, framework_version="0.19")
    rows = 2048 * 2 / 2 * 2  # etp 2 gathers the rows of both
    row = row_of(asked, tp=2, sequence_parallel=True, offload={"activation_modules": ["expert_fc1"]})
    assert float(offloaded_activation_bytes(asked, row)[0]) == pytest.approx(3 * rows * 1024 * 2)
    row = row_of(asked, tp=2, sequence_parallel=True, offload={"activation_modules": ["moe_act"]})
    assert float(offloaded_activation_bytes(asked, row)[0]) == pytest.approx(3 * rows * 2 * 256 * 2)


def test_what_is_sent_leaves_the_device() -> None:
    asked = job_of(llama_model(), "megatron", num_nodes=1, framework_version="0.19")
    plain, less = (evaluate(asked, row_of(asked, tp=8, **extra)) for extra in ({}, {"offload": {"activation_modules": ["attn_norm", "core_attn"]}}))  # fmt: skip
    away = float(offloaded_activation_bytes(asked, less.strategies)[0])
    assert plain.memory.allocated[0] - less.memory.allocated[0] == pytest.approx(away, rel=0.05)
    assert less.memory.host_bytes_per_node[0] > 8 * away
    assert less.verdict[0] == Verdict.FITS


REQUEST = {
    "model": llama_model(num_layers=4), "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8, "nic_gbit_per_s": 25},
    "training": {"seq_length": 1024, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"},
    "constraints": {"fixed": {"tp": 1, "cp": 1, "pp": 1, "zero": 3, "micro_batch_size": 1}},
}  # fmt: skip


def test_plans_are_rounded_only_where_the_request_lists_it() -> None:
    plain = plan(REQUEST)
    listed = {
        **REQUEST["constraints"],
        "allowed": {"zero_quantized_weights": [False, True], "zero_quantized_gradients": [False, True]},
    }
    found = plan({**REQUEST, "constraints": listed, "top_k": 20})
    assert {each["evaluation"]["mathematics"] for each in plain["plans"]} == {"exact"}
    assert "zero_quantized_weights" in plain["search"]["not_searched"]
    assert {each["evaluation"]["mathematics"] for each in found["plans"]} == {"exact", "rounded"}
    assert found["search"]["proof"]["optimal"]
    best = found["plans"][0]
    assert best["strategy"]["zero_quantized_weights"] is True  # 25 Gbit/s for each GPU
    assert best["evaluation"]["step_time_s"] < plain["plans"][0]["evaluation"]["step_time_s"]
    assert "zero_quantized_weights" not in plain["plans"][0]["strategy"]
