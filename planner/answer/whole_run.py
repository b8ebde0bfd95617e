"""What an evaluation says of the whole run and of overlapping: `run` and `overlap_conditions` of the contract, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated
from cost_models.job import PooledJob
from cost_models.runs.whole_run import Run, Stops, whole_run
from cost_models.step.overlap_conditions import overlap_conditions
from cost_models.strategies.strategy import Strategies
from cost_models.units import DAY_S, HOUR_S, KWH

Document = dict[str, Any]
FREQUENT = "failures-too-frequent"
"""Warning that a goodput is more of a bound than a prediction."""


def gpus_by_pool(evaluated: Evaluated, index: int) -> dict[int, float]:
    """GPUs of strategy `index` on each pool that it uses."""
    stages, gpus = int(evaluated.strategies.pp[index]), float(evaluated.strategies.world[index])
    held = Counter(evaluated.pools.pool_of(stage, index) for stage in range(stages))
    return {pool: count * gpus / stages for pool, count in sorted(held.items())}


def run_parts(pooled: PooledJob, evaluated: Evaluated, index: int) -> tuple[Document | None, Document, list[str]]:
    """The contract's `run` of strategy `index`, what it assumes by contract field, and codes of what qualifies it.

    Without a number of tokens there is no run, and nothing is assumed for it.
    """
    tokens = pooled.jobs[0].training.total_tokens
    if tokens is None:
        return None, {}, []
    step_s, used = float(evaluated.step_time_s[index]), gpus_by_pool(evaluated, index)
    run = whole_run(pooled, evaluated.strategies, index, step_s=step_s, gpus_by_pool=used)
    assert run is not None
    # Failures are as uncertain as the step, but of their range nothing is known; the days' range is that of the step alone.
    ends = (float(evaluated.step_time_low_s[index]) / step_s, float(evaluated.step_time_high_s[index]) / step_s)
    qualified = [FREQUENT] if run.stops is not None and not run.stops.are_rare else []
    return _run_dict(run, tokens=tokens, range_factors=ends), _assumed(pooled, used), qualified


def _run_dict(run: Run, *, tokens: float, range_factors: Sequence[float]) -> Document:
    """The contract's `run`.

    Args:
        run: the run of a strategy.
        tokens: that it trains on.
        range_factors: ends of the step time's range over the step time.
    """
    days, energy_j = run.duration_s / DAY_S, run.energy_j
    return {
        "total_tokens": tokens,
        "days": days,
        "days_range": [days * factor for factor in range_factors],
        "gpu_hours": run.gpu_seconds / HOUR_S,
        "cost": run.cost,
        "energy_kwh": None if energy_j is None else energy_j / KWH,
        "co2_kg": run.carbon_kg,
        "goodput": run.goodput,
        "stops": None if run.stops is None else _stops(run, run.stops),
    }


def _stops(run: Run, stops: Stops) -> Document:
    ready = stops.ready
    return {
        "mean_time_between_s": stops.between_s,
        "num_stops": stops.count(run.duration_s),
        "recovery_s": stops.recovery_s,
        "checkpoint_bytes": stops.save.size_bytes,
        "save_s": stops.save.blocking_s,
        "unsafe_s": stops.save.unsafe_s,
        "interval_s": stops.interval_s,
        "optimal_interval_s": stops.optimal_interval_s,
        "waiting_fraction": None if ready is None else 1.0 - ready,
        "what_if": [_variant(each) for each in run.variants()],
    }


def _variant(run: Run) -> Document:
    assert run.stops is not None
    return {
        "interval_s": run.stops.interval_s,
        "spares": run.stops.spares,
        "goodput": run.goodput,
        "days": run.duration_s / DAY_S,
        "gpu_hours": run.gpu_seconds / HOUR_S,
        "cost": run.cost,
    }


def _assumed(pooled: PooledJob, used: Mapping[int, float]) -> dict[str, float]:
    """What nobody stated of the machines' power, by contract field; of listed pools under their names."""
    found: dict[str, float] = {}
    for pool in used:
        cluster = pooled.jobs[pool].cluster
        prefix = f"pools.{pooled.names[pool]}." if pooled.cluster.lists_pools else ""
        if cluster.power_w_per_gpu is None and cluster.gpu.power_limit_w is not None:
            found[f"{prefix}power_w_per_gpu"] = cluster.gpu.power_limit_w
        if cluster.pue is None:
            found[f"{prefix}pue"] = 1.0
    return found


def conditions_of(pooled: PooledJob, strategies: Strategies) -> list[Document] | None:
    """The contract's `overlap_conditions` of every strategy; None on pools, where no one bandwidth holds for a group."""
    if pooled.cluster.lists_pools:
        return None
    found: list[Document] = [{} for _ in range(len(strategies))]
    for name, condition in overlap_conditions(pooled.jobs[0], strategies).items():
        # Whole columns become plain numbers at once, which takes a fifth of the time of one number after another.
        columns = (
            condition.applies, condition.ratio, condition.ranks, condition.bytes_per_s, condition.second, np.ceil(condition.raised),
        )  # fmt: skip
        for place, (applies, ratio, ranks, rate, second, raised) in enumerate(
            zip(*map(np.ndarray.tolist, columns), strict=True)
        ):
            if applies:
                found[place][name] = {
                    "ratio": ratio,
                    "verdict": "hidden" if ratio <= 1.0 else "exposed",
                    "num_ranks": int(ranks),
                    "element_bytes": condition.element_bytes,
                    "bandwidth_bytes_per_s": rate,
                    "hidden_by": condition.fields[second],
                    # Rounded up, since nobody can set half a sequence or half a layer.
                    "hidden_from": max(1, int(raised)),
                }
    return found
