"""The contract's evaluation of a strategy on pools: what the homogeneous one says, with each stage judged by its own GPU.

Memory totals and capacity are those of the pool with the least to spare; MFU is over the peaks of all GPUs in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.evaluate import Evaluated, Verdict
from cost_models.job import PooledJob
from cost_models.layers.flops import model_flops_per_step
from cost_models.pools.memory import PooledMemory, pooled_memory
from cost_models.pools.time import PooledTime, pooled_step_time
from cost_models.strategies.strategy import Strategies
from cost_models.terms import PEAK_MOMENTS
from planner.answer.evaluation import Reason, assumed_segment, evaluation_dict, memory_reasons


def pooled_evaluation(
    pooled: PooledJob,
    row: Strategies,
    *,
    headroom_fraction: float,
    row_id: str | int | None = None,
    assumed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The evaluation of one strategy (a batch of one whose layout names pools and holds every stage)."""
    time = pooled_step_time(pooled, row)
    memory = pooled_memory(pooled, row, headroom_fraction=headroom_fraction)
    tightest = int(memory.tightest_pool[0])
    evaluated = {pool: _on_pool(row, time, memory, pool) for pool in memory.pools}
    answer = evaluation_dict(
        evaluated[tightest], 0, pooled=pooled, job=pooled.jobs[tightest], stages=False, row_id=row_id, assumed=assumed
    )
    answer["verdict"] = Verdict(int(memory.verdict[0])).label
    answer["reasons"] = _reasons(pooled, evaluated)
    answer |= _utilisation(pooled, row, memory, step_s=float(time.total_s[0]))
    answer["memory"]["stages"] = _stages(pooled, row, memory)
    answer["assumed"].pop("segment_nodes", None)
    for pool in memory.pools:
        for field, value in assumed_segment(pooled.jobs[pool], row, 0).items():
            answer["assumed"][f"pools.{pooled.names[pool]}.{field}"] = value
    used = [pooled.jobs[pool].calibration.name for pool in memory.pools]
    answer["provenance"]["calibration"] = " + ".join(dict.fromkeys(used))
    return answer


def _on_pool(row: Strategies, time: PooledTime, memory: PooledMemory, pool: int) -> Evaluated:
    """The strategy's costs with the memory and the verdict of one pool."""
    its = memory.pools[pool]
    return Evaluated(
        strategies=row,
        step_time_s=time.total_s,
        step_time_low_s=time.low_s,
        step_time_high_s=time.high_s,
        terms_s=time.terms_s,
        tiers=time.tiers,
        memory=its.memory,
        verdict=its.verdict,
        host_exceeded=its.host_exceeded,
    )


def _reasons(pooled: PooledJob, evaluated: Mapping[int, Evaluated]) -> list[Reason]:
    """Why each pool's stages do not simply fit, the pool named."""
    return [
        {**reason, "message": f"pool {pooled.names[pool]!r}: {reason['message']}"}
        for pool, its in evaluated.items()
        for reason in memory_reasons(its, 0, job=pooled.jobs[pool])
    ]


def _utilisation(pooled: PooledJob, row: Strategies, memory: PooledMemory, *, step_s: float) -> dict[str, float | None]:
    """Model operations over the dense peaks of all GPUs in use."""
    precision = pooled.jobs[0].training.precision
    each = float(row.world[0] / row.pp[0])

    def over(name: str) -> float | None:
        peak = 0.0
        for pool in memory.pools:
            gpu = pooled.jobs[pool].cluster.gpu
            if name not in gpu.peak_flops_per_s:
                return None
            peak += float((memory.pool_KN[:, 0] == pool).sum()) * each * gpu.peak_flops_per_s[name]
        return model_flops_per_step(pooled.jobs[0]) / (step_s * peak)

    return {"mfu": over(precision), "mfu_bf16": over("bf16") if precision in ("fp8", "nvfp4") else None}


def _stages(pooled: PooledJob, row: Strategies, memory: PooledMemory) -> list[dict[str, Any]]:
    layout = row.layouts.table[int(row.layout[0])]
    found = []
    for stage in range(layout.pp):
        pool = int(memory.pool_KN[stage, 0])
        its = memory.pools[pool].memory
        found.append({
            "stage": stage,
            "layers": layout.layers_on_stage(stage),
            "peak_moment": PEAK_MOMENTS[int(its.peak_moment_KN[stage, 0])],
            "peak_allocated_bytes": float(its.allocated_KN[stage, 0]),
            "breakdown_bytes": its.breakdown(stage, 0),
            "pool": pooled.names[pool],
            "peak_device_bytes": float(its.device_KN[stage, 0]),
            "capacity_bytes": pooled.jobs[pool].cluster.capacity_bytes,
        })  # fmt: skip
    return found
