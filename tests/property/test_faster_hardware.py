"""Faster hardware never makes a step slower: any peak or bandwidth raised, on GPUs of a family, of none, and on presets.

What a GPU does not state is lent to it, and which curves it borrows must not hang on the very figures that are raised.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import plan
from planner.rows import evaluate_rows

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b")
SLACK = 1e-9
"""Relative; sums are not made in the order of their sizes."""

gpus = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["card", "Fast-1", "H100-mine", "A100-PCIe-x", "L40-x", "B200-x", "MI300-x", "H20-x"]),
        "memory_gib": st.just(400),
        "peak_tflops": st.fixed_dictionaries(
            {"bf16": st.floats(50, 2500)}, optional={"fp16": st.floats(50, 2500), "fp8": st.floats(100, 5000)}
        ),
        "memory_bandwidth_gb_per_s": st.floats(300, 8000),
        "nvlink_gb_per_s": st.one_of(st.just(0), st.floats(20, 900)),
        "pcie_gb_per_s": st.floats(8, 64),
    },
    optional={"power_limit_w": st.floats(200, 1200)},
)
clusters = st.fixed_dictionaries(
    {
        "gpu": gpus,
        "num_nodes": st.sampled_from([1, 2, 4]),
        "gpus_per_node": st.sampled_from([2, 4, 8]),
        "nics_per_node": st.integers(1, 8),
        "nic_gbit_per_s": st.floats(10, 800),
        "host_link_gb_per_s": st.floats(5, 450),
        "network": st.fixed_dictionaries({"fabric": st.sampled_from(["infiniband", "roce", "efa", "tcp"])}),
    },
    optional={
        "intra_node": st.one_of(st.just("pcie"), st.fixed_dictionaries({"bandwidth_gb_per_s": st.floats(5, 900)})),
        "pcie": st.fixed_dictionaries({"gpus_per_switch": st.sampled_from([1, 2, 4])}),
    },
)
strategies = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 1, 2, 4]), "pp": st.sampled_from([1, 1, 2]), "micro_batch_size": st.sampled_from([1, 2]),
        "zero": st.sampled_from([0, 1, 2, 3]), "recompute": st.sampled_from(["none", "full"]),
    },
    optional={"cp": st.just(2), "ep": st.just(2), "offload": st.just({"optimizer_fraction": 1.0})},
)  # fmt: skip
trainings = st.fixed_dictionaries(
    {
        "seq_length": st.sampled_from([512, 4096]), "global_batch_size": st.just(64),
        "precision": st.sampled_from(["bf16", "bf16", "fp16", "fp8"]),
        "framework": st.sampled_from(["fsdp", "torchtitan", "megatron", "deepspeed", "nanotron"]),
    }
)  # fmt: skip
RAISED = (
    ("gpu", "peak_tflops", "bf16"),
    ("gpu", "peak_tflops", "fp16"),
    ("gpu", "peak_tflops", "fp8"),
    ("gpu", "memory_bandwidth_gb_per_s"),
    ("gpu", "nvlink_gb_per_s"),
    ("gpu", "pcie_gb_per_s"),
    ("nics_per_node",),
    ("nic_gbit_per_s",),
    ("host_link_gb_per_s",),
    ("intra_node", "bandwidth_gb_per_s"),
)


def with_raised(document: dict[str, Any], path: tuple[str, ...], factor: float) -> dict[str, Any] | None:
    """The document with one figure raised; None where it does not state that one."""
    head, rest = path[0], path[1:]
    value = document.get(head)
    if value is None or (rest and not isinstance(value, dict)):
        return None
    if rest:
        inner = with_raised(value, rest, factor)
        return None if inner is None else {**document, head: inner}
    return {**document, head: value + 1 if isinstance(value, int) and value else value * factor}


def answers(cluster: dict[str, Any], job: dict[str, Any], factor: float) -> list[tuple[str, dict[str, Any]]]:
    """The evaluation as it is, then with each stated figure raised."""
    documents = [("", cluster)]
    for path in RAISED:
        raised = with_raised(cluster, path, factor)
        if raised is not None:
            documents.append((".".join(path), raised))
    lines = [json.dumps({"id": name, "cluster": document, **job}) for name, document in documents]
    return [(name, found) for (name, _), found in zip(documents, evaluate_rows(lines), strict=True)]


def is_never_slower(
    cluster: dict[str, Any], model: str, training: dict[str, Any], strategy: dict[str, Any], factor: float
) -> None:
    job = {"model": {"preset": model}, "training": training, "strategy": strategy}
    (_, before), *raised = answers(cluster, job, factor)
    if before["verdict"] == "invalid":
        return
    for name, after in raised:
        assert after["step_time_s"] <= before["step_time_s"] * (1 + SLACK), name
        assert after["verdict"] == before["verdict"], name


DRAWN = st.tuples(clusters, st.sampled_from(MODELS), trainings, strategies, st.floats(1.01, 4.0))


@given(DRAWN)
@settings(max_examples=40)
def test_a_raised_peak_or_bandwidth_never_makes_a_step_slower(drawn: tuple[Any, ...]) -> None:
    is_never_slower(*drawn)


@pytest.mark.proof
@given(DRAWN)
@settings(max_examples=600)
def test_a_raised_peak_or_bandwidth_never_makes_one_of_many_steps_slower(drawn: tuple[Any, ...]) -> None:
    is_never_slower(*drawn)


PEAKS = (100, 148, 165, 200, 320, 362, 700, 989, 1500, 2250)


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan", "megatron", "deepspeed"])
@pytest.mark.parametrize("link", ["pcie", {"bandwidth_gb_per_s": 31.5}, {"bandwidth_gb_per_s": 200}])
def test_a_card_of_any_peak_is_not_overtaken_by_a_slower_one(framework, link):
    """From below the slowest preset to the fastest: the preset nearest in speed changes seven times on the way."""
    rows = []
    for peak in PEAKS:
        gpu = {
            "name": "card", "memory_gib": 48, "peak_tflops": {"bf16": peak}, "memory_bandwidth_gb_per_s": 1792
        }  # fmt: skip
        rows.append({
            "id": peak, "model": {"preset": "llama-3.2-1b"},
            "cluster": {"gpu": gpu, "num_nodes": 2, "gpus_per_node": 8, "intra_node": link},
            "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": framework},
            "strategy": {"zero": 1 if framework == "megatron" else 3, "micro_batch_size": 1, "recompute": "full"},
        })  # fmt: skip
    times = [found["step_time_s"] for found in evaluate_rows([json.dumps(row) for row in rows])]
    assert times == sorted(times, reverse=True)


def test_the_best_plan_is_never_slower_on_a_faster_card():
    """All plans of a small job, not one strategy: from 320 to 362 TFLOP/s the best one took several times as long."""
    best = []
    for peak in (148, 320, 362, 989):
        gpu = {
            "name": "card", "memory_gib": 48, "peak_tflops": {"bf16": peak}, "memory_bandwidth_gb_per_s": 1792
        }  # fmt: skip
        found = plan({
            "model": {"preset": "llama-3.2-1b"},
            "cluster": {"gpu": gpu, "num_nodes": 1, "gpus_per_node": 4, "intra_node": "pcie"},
            "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "fsdp"},
            "top_k": 1,
        })  # fmt: skip
        best.append(found["plans"][0]["evaluation"]["step_time_s"])
    assert best == sorted(best, reverse=True)
