"""The contract's evaluation object, built from the arrays of an evaluated batch.

Plain dictionaries with the keys of `planner.schemas.Evaluation` (a test holds the two together): validating a thousand
answers a second through Pydantic would cost more than pricing them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated, Verdict
from cost_models.hardware.segments import segment_nodes, spans_nodes
from cost_models.job import Job, PooledJob
from cost_models.layers.flops import model_flops_per_step, repeated_flops_per_token
from cost_models.layers.parameters import count_parameters, padded_vocab_size
from cost_models.strategies.strategy import Strategies
from cost_models.terms import PEAK_MOMENTS, TIME_NAMES, Tier
from cost_models.units import GIB, TERA
from planner.request.job_warnings import job_warnings

Reason = dict[str, str]
UNKNOWN_HOST = "host-memory-unknown"
"""Code of the reason that goes with any verdict."""
_TIERS = tuple(tier.label for tier in Tier)
_NUMBERS = (
    "num_gpus_used", "num_micro_batches", "num_parameters", "padded_vocab_size", "step_time_s", "step_time_range_s",
    "tokens_per_s_per_gpu", "model_tflops_per_gpu", "model_tflops_per_gpu_causal", "hardware_tflops_per_gpu", "mfu",
    "mfu_bf16", "time_breakdown_s", "memory",
)  # fmt: skip


def evaluation_dict(
    evaluated: Evaluated,
    index: int,
    *,
    pooled: PooledJob,
    job: Job | None = None,
    stages: bool = True,
    row_id: str | int | None = None,
    assumed: Mapping[str, Any] | None = None,
    repeated_flops: float | None = None,
    open_facts: Sequence[Reason] = (),
) -> dict[str, Any]:
    """The evaluation of strategy `index`; with `stages` its layouts must hold every stage (`all_stages`).

    `repeated_flops` are the operations of one token that it repeats, where the caller has them for a whole batch;
    `open_facts` are the reasons that name what the row leaves open and its verdict hangs on.
    """
    job = job or pooled.jobs[0]
    strategies = evaluated.strategies
    gpus, step_s = float(strategies.world[index]), float(evaluated.step_time_s[index])
    tokens = float(job.training.seq_length) * job.training.global_batch_size
    per_gpu = step_s * gpus * TERA
    model_flops = model_flops_per_step(job)
    vocab = padded_vocab_size(job.model, job.training.framework, strategies.tp[index : index + 1])
    if repeated_flops is None:
        repeated_flops = float(repeated_flops_per_token(job, strategies.take(np.array([index])))[0])
    return {
        "id": row_id,
        "verdict": Verdict(int(evaluated.verdict[index])).label,
        "reasons": [*memory_reasons(evaluated, index, job=job), *open_facts],
        "num_gpus_used": int(gpus),
        "num_micro_batches": int(strategies.num_micro_batches[index]),
        "num_parameters": _num_parameters(job),
        "padded_vocab_size": int(vocab[0]),
        "step_time_s": step_s,
        "step_time_range_s": [float(evaluated.step_time_low_s[index]), float(evaluated.step_time_high_s[index])],
        "tokens_per_s_per_gpu": tokens / (step_s * gpus),
        "model_tflops_per_gpu": model_flops / per_gpu,
        "model_tflops_per_gpu_causal": model_flops_per_step(job, causal=True) / per_gpu,
        "hardware_tflops_per_gpu": (model_flops + repeated_flops * tokens) / per_gpu,
        **_utilisation(job, model_flops / (step_s * gpus)),
        "time_breakdown_s": {name: float(evaluated.terms_s[name][index]) for name in TIME_NAMES},
        "memory": _memory(evaluated, index, job=job, stages=stages),
        "assumed": {**(assumed or {}), **assumed_segment(job, strategies, index)},
        "provenance": {
            "calibration": job.calibration.name,
            "terms": {name: _TIERS[int(evaluated.tiers[name][index])] for name in TIME_NAMES},
        },
        "warnings": job_warnings(pooled),
    }


def invalid_dict(
    reasons: Sequence[Reason],
    *,
    row_id: str | int | None = None,
    assumed: Mapping[str, Any] | None = None,
    job: PooledJob | None = None,
) -> dict[str, Any]:
    """The evaluation of what no framework could run: reasons, and null for every number."""
    return {
        "id": row_id,
        "verdict": "invalid",
        "reasons": list(reasons),
        **dict.fromkeys(_NUMBERS),
        "assumed": dict(assumed or {}),
        "provenance": None,
        "warnings": [] if job is None else job_warnings(job),
    }


def assumed_segment(job: Job, strategies: Strategies, index: int) -> dict[str, int]:
    """Nodes of a scheduler's segment where the strategy needs several of them and nobody stated their size."""
    world = int(strategies.world[index])
    if job.cluster.segment_nodes is not None or not spans_nodes(job.cluster) or world <= job.cluster.nvlink_domain_gpus:
        return {}
    dense, experts = (int((a * b)[index]) for a, b in ((strategies.tp, strategies.cp), (strategies.etp, strategies.ep)))
    return {"segment_nodes": segment_nodes(job.cluster, world=world, dense=dense, experts=experts)}


@lru_cache(maxsize=1024)
def _num_parameters(job: Job) -> int:
    return count_parameters(job.model).total


def memory_reasons(evaluated: Evaluated, index: int, *, job: Job) -> list[Reason]:
    """Why strategy `index` does not simply fit, and what it needs of a host of unknown memory; nothing where neither holds."""
    memory, verdict = evaluated.memory, Verdict(int(evaluated.verdict[index]))
    unknown = _unknown_host(float(memory.host_bytes_per_node[index]), job)
    if verdict == Verdict.FITS:
        return unknown
    found = []
    if evaluated.host_exceeded[index]:
        assert job.cluster.host_memory_bytes is not None
        needed, had = float(memory.host_bytes_per_node[index]) / GIB, job.cluster.host_memory_bytes / GIB
        message = f"offloaded state needs {needed:.1f} GiB of host memory a node, but host_memory_gib is {had:.1f}"
        found.append(_reason("host-memory", message, "Offload less, shard over more nodes, or add host memory."))
    low, high = float(memory.device_low[index]) / GIB, float(memory.device_high[index]) / GIB
    needs = f"the fullest stage needs {memory.device[index] / GIB:.1f} GiB ({low:.1f} to {high:.1f})"
    capacity = f"of {job.cluster.capacity_bytes / GIB:.1f} GiB a GPU"
    if low > job.cluster.capacity_bytes / GIB:
        hint = "Raise tp, pp or zero, lower micro_batch_size, recompute more, or use more GPUs."
        found.append(_reason("out-of-memory", f"{needs} {capacity}", hint))
    elif not found:
        hint = "Lower micro_batch_size or recompute more, or test this plan for a few steps."
        found.append(_reason("at-risk-of-memory", f"{needs} {capacity}, headroom included", hint))
    return found + unknown


def _unknown_host(needed_bytes: float, job: Job) -> list[Reason]:
    """That nobody said whether the nodes have what offloaded state needs."""
    if not needed_bytes or job.cluster.host_memory_bytes is not None:
        return []
    message = f"offload needs {needed_bytes / GIB:,.0f} GiB of host memory a node, and host_memory_gib is not given"
    return [_reason(UNKNOWN_HOST, message, "State cluster.host_memory_gib, or check that every node has as much.")]


def _reason(code: str, message: str, hint: str) -> Reason:
    return {"code": code, "message": message, "hint": hint}


def _utilisation(job: Job, model_flops_per_s: float) -> dict[str, float | None]:
    """Model operations over the dense peak of the training precision, and over bf16's for fp8 and nvfp4."""
    peaks, precision = job.cluster.gpu.peak_flops_per_s, job.training.precision

    def over(name: str) -> float | None:
        return model_flops_per_s / peaks[name] if name in peaks else None

    return {"mfu": over(precision), "mfu_bf16": over("bf16") if precision in ("fp8", "nvfp4") else None}


def _memory(evaluated: Evaluated, index: int, *, job: Job, stages: bool) -> dict[str, Any]:
    memory = evaluated.memory
    answer = {
        "peak_allocated_bytes": float(memory.allocated[index]),
        "peak_reserved_bytes": float(memory.reserved[index]),
        "peak_device_bytes": float(memory.device[index]),
        "peak_device_range_bytes": [float(memory.device_low[index]), float(memory.device_high[index])],
        "capacity_bytes": job.cluster.capacity_bytes,
        "host_bytes_per_node": float(memory.host_bytes_per_node[index]),
    }
    if stages:
        answer["stages"] = _stages(evaluated, index)
    return answer


def _stages(evaluated: Evaluated, index: int) -> list[dict[str, Any]]:
    strategies, memory = evaluated.strategies, evaluated.memory
    number = int(strategies.layout[index])
    layout, slots = strategies.layouts.table[number], strategies.layouts.slot_stage_LK[number].tolist()
    return [
        {
            "stage": stage,
            "layers": layout.layers_on_stage(stage),
            "peak_moment": PEAK_MOMENTS[int(memory.peak_moment_KN[slot, index])],
            "peak_allocated_bytes": float(memory.allocated_KN[slot, index]),
            "breakdown_bytes": memory.breakdown(slot, index),
        }
        for stage in range(layout.pp)
        for slot in [slots.index(stage)]
    ]
