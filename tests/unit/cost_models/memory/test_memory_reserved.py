"""From allocated to reserved and device bytes: stream pools, ratios, communicators, measured facts, intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import job_of, row_of, tiny_model
from cost_models.calibration import MemoryFacts
from cost_models.constants import Constant
from cost_models.job import Job
from cost_models.memory import constants, stage_memory
from cost_models.memory.constants import COMMUNICATOR_BYTES, CUDA_CONTEXT_BYTES, PROCESS_2022_BYTES
from cost_models.memory.moments import moments
from cost_models.memory.reserved import process_bytes, reserved_bytes
from cost_models.strategies.strategy import Strategies
from cost_models.units import GIB


def built(strategy: dict[str, Any], **training: Any) -> tuple[Job, Strategies]:
    model = tiny_model(4, num_attention_heads=8, intermediate_size=1024, vocab_size=32768)
    given = {"framework": "torchtitan", "seq_length": 512, "global_batch_size": 8, **training}
    job = job_of(model, **given)
    return job, row_of(job, all_stages=True, **{"recompute": "none", **strategy})


def process_gib(strategy: dict[str, Any], **training: Any) -> list[float]:
    found = process_bytes(moments(*built(strategy, **training)))
    return [float(value) / GIB for value in found[:, 0]]


@pytest.mark.parametrize(("version", "pieces"), [("0.2", 1), ("0.3", 8)])
def test_fsdp_adds_its_stream_pools_and_the_hole_of_the_logits(version: str, pieces: int) -> None:
    """Gradient shards 4N/8 (none are allocated at the loss), 2 V h for each end, 2 bytes a logit, 0.5 % rounding.

    torchtitan 0.3 cuts the logits into 8 pieces, one alive at a time, and so the hole they leave.
    """
    job, strategies = built({"dp": 8, "zero": 3}, framework_version=version)
    found = moments(job, strategies)
    allocated = stage_memory(job, strategies).allocated_KN
    reserved = reserved_bytes(found, allocated_KN=allocated, at_loss_KN=allocated > 0)
    word = 32768 * 256
    layer = 4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256
    pools = 4 * (4 * layer + 2 * word + 256) / 8 + 2 * 2 * word + 2 * 512 * 32768 / pieces
    assert reserved[0, 0] == pytest.approx(1.005 * allocated[0, 0] + pools)


@pytest.mark.parametrize(("month", "is_old"), [("2022-12", True), ("2023-01", False)])
def test_stacks_before_2023_are_known_by_the_sum_of_context_and_communicators(month: str, is_old: bool) -> None:
    """From 2023 on [M-14] counts three: the world's, that of eight replicas, and Megatron's own for the gradient's norm. One rank
    has none in either.
    """
    (found,) = process_gib({"dp": 8, "zero": 1}, framework="megatron", software_date=month)
    several = CUDA_CONTEXT_BYTES.value + 3 * COMMUNICATOR_BYTES.value
    assert found * GIB == pytest.approx(PROCESS_2022_BYTES.value if is_old else several)
    (alone,) = process_gib({"dp": 1}, framework="megatron", software_date=month)
    assert alone * GIB == pytest.approx(CUDA_CONTEXT_BYTES.value)


@pytest.mark.parametrize(
    ("strategy", "training", "factor"),
    [
        ({"dp": 8, "zero": 1}, {"framework": "megatron"}, 1.07),
        ({"tp": 2, "dp": 4, "zero": 1}, {"framework": "megatron"}, 1.035),
        ({"dp": 8, "zero": 1}, {"framework": "megatron", "transformer_impl": "local"}, 1.065),
    ],
)
def test_megatron_fragments_by_a_ratio(strategy: dict[str, Any], training: dict[str, Any], factor: float) -> None:
    found = stage_memory(*built(strategy, **training))
    assert found.reserved[0] == pytest.approx(factor * found.allocated[0])


def test_a_mesh_reuses_the_world_group() -> None:
    """One dimension over all ranks: the default communicator alone. Two dimensions: two more. [own measurements: 1.58, 3.48]"""
    assert process_gib({"dp": 8, "zero": 3}) == pytest.approx([0.63 + 0.95])
    assert process_gib({"tp": 2, "dp": 4, "zero": 3}) == pytest.approx([0.63 + 3 * 0.95])


def test_pipeline_neighbours_count_one_at_the_ends_and_two_between() -> None:
    ends = 0.63 + 0.95 + 0.40
    found = process_gib({"pp": 4, "dp": 1, "zero": 0, "layers_per_stage": [1, 1, 1, 1]}, param_dtype="bf16")
    assert found == pytest.approx([ends, ends + 0.40, ends + 0.40, ends])


def test_megatron_builds_each_group_for_itself() -> None:
    """World, tensor, data and the optimizer's norm group: four."""
    found = process_gib({"tp": 2, "dp": 4, "zero": 1}, framework="megatron")
    assert found == pytest.approx([0.63 + 4 * 0.95])


def test_one_gpu_has_a_context_and_no_communicator() -> None:
    assert process_gib({"dp": 1, "zero": 0}, framework="megatron") == pytest.approx([0.63])


def test_measured_facts_replace_the_constants() -> None:
    job, strategies = built({"tp": 2, "dp": 4, "zero": 3})
    assert job.calibration.compute is not None
    facts = MemoryFacts(context_bytes=1e9, communicator_bytes=1e8, p2p_neighbour_bytes=1e7)
    document = job.calibration.compute.model_copy(update={"kind": "measured", "memory": facts})
    own = replace(job, calibration=replace(job.calibration, compute=document))
    assert process_bytes(moments(own, strategies))[0, 0] == 1e9 + 3 * 1e8


def test_the_interval_spans_reserved_and_process_spread() -> None:
    """torchtitan: 3 % below and 7 % above the reserved bytes, 35 % of context and communicators either way."""
    found = stage_memory(*built({"dp": 8, "zero": 3}))
    process = found.device[0] - found.reserved[0]
    assert found.device_low[0] == pytest.approx(0.97 * found.reserved[0] + 0.65 * process)
    assert found.device_high[0] == pytest.approx(1.07 * found.reserved[0] + 1.35 * process)


def test_constants_say_where_they_come_from() -> None:
    named = {name: entry for name, entry in vars(constants).items() if isinstance(entry, Constant)}
    assert "CUDA_CONTEXT_BYTES" in named
    assert all(entry.source and entry.unit for entry in named.values())
