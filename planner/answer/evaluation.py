"""The contract's evaluation object, built from the arrays of an evaluated batch.

It is a plain dictionary with the keys of `planner.schemas.Evaluation`, and a test holds the two together. Validating a thousand
answers per second through Pydantic would cost more than pricing them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated, PoolMemory, Verdict
from cost_models.hardware.segments import segment_nodes, spans_nodes
from cost_models.job import Job, PooledJob
from cost_models.layers.flops import model_flops_per_step, repeated_flops_per_token
from cost_models.layers.parameters import count_parameters, padded_vocab_size
from cost_models.layers.tower_parameters import towers_elements
from cost_models.layers.trained import trained_parameters
from cost_models.step.fsdp_comm import backward_gathers
from cost_models.step.zero_plus import node_traffic, quantizes
from cost_models.strategies.strategy import Strategies
from cost_models.terms import PEAK_MOMENTS, TIME_NAMES, Tier
from cost_models.units import GIB, TERA
from planner.answer.averages import average_parts
from planner.answer.mathematics import mathematics
from planner.answer.methods import method_parts
from planner.answer.towers import tower_parts
from planner.answer.whole_run import run_parts
from planner.request.job_warnings import job_warnings

Reason = dict[str, str]
UNKNOWN_HOST = "host-memory-unknown"
"""Code of the one reason that can accompany any verdict, also `fits`."""
_TIERS = tuple(tier.label for tier in Tier)
_NUMBERS = (
    "num_gpus_used", "num_micro_batches", "num_parameters", "padded_vocab_size", "step_time_s", "step_time_range_s",
    "tokens_per_s_per_gpu", "model_tflops_per_gpu", "model_tflops_per_gpu_causal", "hardware_tflops_per_gpu", "mfu",
    "mfu_bf16", "time_breakdown_s", "memory", "mathematics", "overlap_conditions", "run",
)  # fmt: skip


def evaluation_dict(
    evaluated: Evaluated,
    index: int,
    *,
    pooled: PooledJob,
    row_id: str | int | None = None,
    assumed: Mapping[str, Any] | None = None,
    repeated_flops: float | None = None,
    open_facts: Sequence[Reason] = (),
    conditions: Mapping[str, Any] | None = None,
    collectives: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The evaluation of strategy `index`, whose layout must hold every stage (`all_stages`).

    Totals and capacity of the memory are those of the pool that has the least to spare.

    Args:
        evaluated: the batch.
        index: which of its strategies.
        pooled: the job.
        row_id: the id that the row was given.
        assumed: the defaults that were applied.
        repeated_flops: operations per token that the strategy repeats, where the caller has them for the whole batch.
        open_facts: reasons that name the facts which the row leaves open and on which its verdict depends.
        conditions: what could hide the strategy's communication (`conditions_of`); None where that is not told.
        collectives: the calls of its groups (`collectives_of`); None where they are not told.
    """
    at = evaluated.pools.positions(index)
    tightest = int(evaluated.pools.tightest_pool[index])
    job = pooled.jobs[tightest]
    strategies = evaluated.strategies
    gpus, step_s = float(strategies.world[index]), float(evaluated.step_time_s[index])
    tokens = job.training.tokens_per_step
    per_gpu = step_s * gpus * TERA
    model_flops = model_flops_per_step(job)
    vocab = padded_vocab_size(job.model, job.training.framework, strategies.tp[index : index + 1])
    if repeated_flops is None:
        repeated_flops = float(repeated_flops_per_token(job, strategies.take(np.array([index])))[0])
    run, run_assumed, qualified = run_parts(pooled, evaluated, index)
    method, method_assumed, crossing = method_parts(pooled, evaluated, index)
    computed, changes = mathematics(strategies, index, method=pooled.jobs[0].method)
    return {
        "id": row_id,
        "verdict": Verdict(int(evaluated.verdict[index])).label,
        "reasons": [*memory_reasons(evaluated, index, pooled=pooled), *open_facts],
        "num_gpus_used": int(gpus),
        "num_micro_batches": int(strategies.num_micro_batches[index]),
        "num_parameters": _num_parameters(job),
        **_trained(job),
        "padded_vocab_size": int(vocab[0]),
        "step_time_s": step_s,
        "step_time_range_s": [float(evaluated.step_time_low_s[index]), float(evaluated.step_time_high_s[index])],
        "tokens_per_s_per_gpu": tokens / (step_s * gpus),
        "model_tflops_per_gpu": model_flops / per_gpu,
        "model_tflops_per_gpu_causal": model_flops_per_step(job, causal=True) / per_gpu,
        "hardware_tflops_per_gpu": _executed_flops(job, model_flops, repeated_flops) / per_gpu,
        **_utilisation(pooled, evaluated, index, model_flops=model_flops),
        "time_breakdown_s": {name: float(evaluated.terms_s[name][index]) for name in TIME_NAMES},
        "memory": {
            **_memory_totals(evaluated.pools.by_pool[tightest], at[tightest], job=job),
            "stages": _stages(pooled, evaluated, index, at),
        },
        "assumed": {
            **(assumed or {}),
            **_assumed_segments(pooled, evaluated, index, at, world=int(gpus)),
            **run_assumed,
            **method_assumed,
        },
        "provenance": _provenance(evaluated, index, pooled=pooled, used=at, collectives=collectives),
        # What the training states, such as its precision, is the user's own choice, which counts as exact.
        "mathematics": computed,
        "changes": changes,
        **method,
        **_only_sometimes(job, strategies, index),
        "overlap_conditions": conditions,
        "run": run,
        "warnings": [*job_warnings(pooled), *qualified, *crossing],
    }


def invalid_dict(
    reasons: Sequence[Reason],
    *,
    row_id: str | int | None = None,
    assumed: Mapping[str, Any] | None = None,
    job: PooledJob | None = None,
) -> dict[str, Any]:
    """The evaluation of a strategy that no framework could run: its reasons, and null for every number."""
    return {
        "id": row_id,
        "verdict": "invalid",
        "reasons": list(reasons),
        **dict.fromkeys(_NUMBERS),
        "assumed": dict(assumed or {}),
        "provenance": None,
        "changes": [],
        "warnings": [] if job is None else job_warnings(job),
    }


def _only_sometimes(job: Job, strategies: Strategies, index: int) -> dict[str, Any]:
    """What few answers tell: traffic that a strategy saves, what towers take, and how much of all tokens is padding."""
    padding = {"padding_share": 1.0 - job.training.filled_share} if job.training.is_padded else {}
    its = (_traffic(job, strategies, index), tower_parts(job, strategies, index), average_parts(job, strategies, index))
    return {**its[0], **its[1], **its[2], **padding}


def _executed_flops(job: Job, model_flops: float, repeated_flops: float) -> float:
    """Operations of a step as they are executed: with what is repeated of each token, and with padding."""
    tokens = float(job.training.seq_length) * job.training.global_batch_size
    executed = model_flops_per_step(job, padding=True) if job.training.is_padded else model_flops
    return executed + repeated_flops * tokens


def _traffic(job: Job, strategies: Strategies, index: int) -> dict[str, Any]:
    """What nodes receive of each other's parameters and gradients, where a strategy keeps or quantises any for the sake of it."""
    # Plain stage 3 moves three times the parameters, which nobody needs to be told of every plan.
    copied = strategies.zero_param_shard_size[index] < strategies.zero_shard_size[index]
    if strategies.zero[index] != 3 or not (copied or quantizes(strategies)):
        return {}
    row = strategies.take(np.array([index]))
    found = node_traffic(job, row, regathers=backward_gathers(job, row))
    parts = {
        name: float(getattr(found, name)[0])
        for name in ("forward_gather", "backward_gather", "reduction", "first", "later")
    }
    return {"node_traffic": {"parameter_bytes": _num_parameters(job) * job.training.gather_bytes, **parts}}


def _provenance(
    evaluated: Evaluated,
    index: int,
    *,
    pooled: PooledJob,
    used: Iterable[int],
    collectives: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Where the numbers come from, of a strategy on the pools that it uses."""
    job = pooled.jobs[int(evaluated.pools.tightest_pool[index])]
    return {
        "calibration": " + ".join(dict.fromkeys(pooled.jobs[pool].calibration.name for pool in used)),
        "terms": {name: _TIERS[int(evaluated.tiers[name][index])] for name in TIME_NAMES},
        **({"corrections": dict(job.corrections.factors)} if job.corrections.factors else {}),
        **_learnt_range(evaluated, index),
        **({} if collectives is None else {"collectives": collectives}),
    }


def _learnt_range(evaluated: Evaluated, index: int) -> dict[str, float]:
    """What measured runs made of the width of the range, where they changed it."""
    factor = 1.0 if evaluated.range_factor is None else float(evaluated.range_factor[index])
    return {} if factor == 1.0 else {"range_factor": factor}


def _assumed_segments(
    pooled: PooledJob, evaluated: Evaluated, index: int, used: Iterable[int], *, world: int
) -> dict[str, int]:
    found = {pool: _assumed_segment(pooled.jobs[pool], evaluated.strategies, index, world=world) for pool in used}
    prefix = {pool: f"pools.{pooled.names[pool]}." if pooled.cluster.lists_pools else "" for pool in found}
    return {prefix[pool] + field: value for pool, its in found.items() for field, value in its.items()}


def _assumed_segment(job: Job, strategies: Strategies, index: int, *, world: int) -> dict[str, int]:
    """The nodes per segment of the scheduler, where the strategy needs several segments and nobody stated their size."""
    if job.cluster.segment_nodes is not None or not spans_nodes(job.cluster) or world <= job.cluster.nvlink_domain_gpus:
        return {}
    dense, experts = (int((a * b)[index]) for a, b in ((strategies.tp, strategies.cp), (strategies.etp, strategies.ep)))
    return {"segment_nodes": segment_nodes(job.cluster, world=world, dense=dense, experts=experts)}


@lru_cache(maxsize=1024)
def _num_parameters(job: Job) -> int:
    return count_parameters(job.model).total + towers_elements(job.training)[0]


def _trained(job: Job) -> dict[str, int]:
    """Parameters that are trained and stored, where these are not simply all of the model's."""
    if job.training.adapter is None and not job.training.frozen and not job.training.tower_uses:
        return {}
    found = trained_parameters(job.model, job.training)
    return {"trainable_parameters": found.trainable, "stored_parameters": found.total}


def memory_reasons(evaluated: Evaluated, index: int, *, pooled: PooledJob) -> list[Reason]:
    """Why strategy `index` does not simply fit, and what it needs of hosts of unknown memory. A listed pool is named."""
    found = []
    for pool, position in evaluated.pools.positions(index).items():
        reasons = _pool_reasons(evaluated.pools.by_pool[pool], position, job=pooled.jobs[pool])
        if pooled.cluster.lists_pools:
            named = f"pool {pooled.names[pool]!r}: "
            reasons = [{**reason, "message": named + reason["message"]} for reason in reasons]
        found += reasons
    return found


def _pool_reasons(its: PoolMemory, index: int, *, job: Job) -> list[Reason]:
    memory, verdict = its.memory, Verdict(int(its.verdict[index]))
    unknown = _unknown_host(float(memory.host_bytes_per_node[index]), job)
    if verdict == Verdict.FITS:
        return unknown
    found = []
    drives = job.cluster.nvme
    if drives is not None and drives.capacity_bytes is not None:
        needed, had = float(memory.nvme_bytes_per_node[index]) / GIB, drives.capacity_bytes / GIB
        if needed > had:
            message = f"offloaded state needs {needed:,.1f} GiB on the drives of each node, but nvme.capacity_gib is {had:,.1f}"
            found.append(
                _reason("nvme-capacity", message, "Shard over more nodes, offload to the host's memory, or add drives.")
            )
    host = job.cluster.host_memory_bytes
    if its.host_exceeded[index] and host is not None and memory.host_bytes_per_node[index] > host:
        needed, had = float(memory.host_bytes_per_node[index]) / GIB, host / GIB
        message = (
            f"offloaded state needs {needed:.1f} GiB of host memory on each node, but host_memory_gib is {had:.1f}"
        )
        found.append(_reason("host-memory", message, "Offload less, shard over more nodes, or add host memory."))
    low, high = float(memory.device_low[index]) / GIB, float(memory.device_high[index]) / GIB
    needs = f"the fullest stage needs {memory.device[index] / GIB:.1f} GiB ({low:.1f} to {high:.1f})"
    capacity = f"of {job.cluster.capacity_bytes / GIB:.1f} GiB a GPU"
    # Only where even the low end exceeds the card is it certain; elsewhere a few steps can tell.
    if verdict == Verdict.OOM and low > job.cluster.capacity_bytes / GIB:
        hint = "Raise tp, pp or zero, lower micro_batch_size, recompute more, or use more GPUs."
        found.append(_reason("out-of-memory", f"{needs} {capacity}", hint))
    elif not found:
        hint = "Lower micro_batch_size or recompute more, or test this plan for a few steps."
        found.append(_reason("at-risk-of-memory", f"{needs} {capacity}, headroom included", hint))
    return found + unknown


def _unknown_host(needed_bytes: float, job: Job) -> list[Reason]:
    """The reason that nobody said whether the nodes have the memory that offloaded state needs."""
    if not needed_bytes or job.cluster.host_memory_bytes is not None:
        return []
    message = f"offload needs {needed_bytes / GIB:,.0f} GiB of host memory a node, and host_memory_gib is not given"
    return [_reason(UNKNOWN_HOST, message, "State cluster.host_memory_gib, or check that every node has as much.")]


def _reason(code: str, message: str, hint: str) -> Reason:
    return {"code": code, "message": message, "hint": hint}


def _utilisation(pooled: PooledJob, evaluated: Evaluated, index: int, *, model_flops: float) -> dict[str, float | None]:
    """Model operations per second divided by the dense peaks of all GPUs in use, for the training precision and for bf16."""
    strategies, precision = evaluated.strategies, pooled.jobs[0].training.precision
    step_s, gpus, stages = (
        float(evaluated.step_time_s[index]),
        float(strategies.world[index]),
        int(strategies.pp[index]),
    )

    def over(name: str) -> float | None:
        if not pooled.cluster.lists_pools:
            peaks = pooled.jobs[0].cluster.gpu.peak_flops_per_s
            return model_flops / (step_s * gpus) / peaks[name] if name in peaks else None
        held = Counter(evaluated.pools.pool_of(stage, index) for stage in range(stages))
        each = {pool: pooled.jobs[pool].cluster.gpu.peak_flops_per_s.get(name) for pool in sorted(held)}
        if None in each.values():
            return None
        return model_flops / (step_s * sum(held[pool] * (gpus / stages) * (peak or 0.0) for pool, peak in each.items()))

    return {"mfu": over(precision), "mfu_bf16": over("bf16") if precision in ("fp8", "nvfp4") else None}


def _memory_totals(its: PoolMemory, position: int, *, job: Job) -> dict[str, Any]:
    memory = its.memory
    return {
        "peak_allocated_bytes": float(memory.allocated[position]),
        "peak_reserved_bytes": float(memory.reserved[position]),
        "peak_device_bytes": float(memory.device[position]),
        "peak_device_range_bytes": [float(memory.device_low[position]), float(memory.device_high[position])],
        "capacity_bytes": job.cluster.capacity_bytes,
        "host_bytes_per_node": float(memory.host_bytes_per_node[position]),
        **({"nvme_bytes_per_node": drives} if (drives := float(memory.nvme_bytes_per_node[position])) else {}),
    }


def _stages(pooled: PooledJob, evaluated: Evaluated, index: int, at: Mapping[int, int]) -> list[dict[str, Any]]:
    """The memory of every stage; `at` is the position of the strategy in each pool's batch."""
    strategies = evaluated.strategies
    number = int(strategies.layout[index])
    layout, slots = strategies.layouts.table[number], strategies.layouts.slot_stage_LK[number].tolist()
    found = []
    for stage in range(layout.pp):
        slot = slots.index(stage)
        pool = evaluated.pools.pool_of(slot, index)
        memory, position = evaluated.pools.by_pool[pool].memory, at[pool]
        of_stage: dict[str, Any] = {
            "stage": stage,
            "layers": layout.layers_on_stage(stage),
            "peak_moment": PEAK_MOMENTS[int(memory.peak_moment_KN[slot, position])],
            "peak_allocated_bytes": float(memory.allocated_KN[slot, position]),
            "breakdown_bytes": memory.breakdown(slot, position),
        }
        if pooled.cluster.lists_pools:  # stages are then judged by different GPUs
            of_stage["pool"] = pooled.names[pool]
            of_stage["peak_device_bytes"] = float(memory.device_KN[slot, position])
            of_stage["capacity_bytes"] = pooled.jobs[pool].cluster.capacity_bytes
        found.append(of_stage)
    return found
