"""How the fields of a ranked plan are written, on the command line and on pages.

Human units appear only out here, never further inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cost_models.terms import Tier
from cost_models.units import GIB

Json = Mapping[str, Any]
TIERS = tuple(tier.label for tier in Tier)
"""How well a term is known, best first. A plan shows the worst tier among the terms that take time."""


def degree(name: str) -> Callable[[Json], str]:
    """Writes one degree of a plan's strategy."""
    return lambda plan: str(plan["strategy"].get(name) or 1)


def tensor_parallel(plan: Json) -> str:
    strategy = plan["strategy"]
    return f"{strategy.get('tp') or 1}{'sp' if strategy.get('sequence_parallel') else ''}"


def zero_stage(plan: Json) -> str:
    """The ZeRO stage, and the ranks that share the states if these are fewer than all replicas; "rounded" where they send fewer bits."""
    strategy = plan["strategy"]
    stage, shard = strategy.get("zero") or 0, strategy.get("zero_shard_size")
    replicas = (strategy.get("dp") or 1) * (strategy.get("cp") or 1)
    told = f"{stage}/{shard}" if stage and shard and shard < replicas else str(stage)
    # The two change what is computed, so that a table says it beside the stage.
    return (
        f"{told} rounded"
        if strategy.get("zero_quantized_weights") or strategy.get("zero_quantized_gradients")
        else told
    )


def degrees_above_one(plan: Json) -> str:
    """All degrees above 1 in one cell, which narrow terminals get."""
    names = ("pp", "dp", "cp", "ep", "vpp")
    parts = [f"{n}{plan['strategy'][n]}" for n in names if (plan["strategy"].get(n) or 1) > 1]
    tp = tensor_parallel(plan)
    return " ".join([*([] if tp == "1" else [f"tp{tp}"]), *parts, f"z{zero_stage(plan)}"])


def recomputed(plan: Json) -> str:
    strategy = plan["strategy"]
    kind, count = strategy.get("recompute") or "none", strategy.get("recompute_num_layers")
    return f"{kind} {count}" if kind == "full" and count else kind


def step_time(plan: Json) -> str:
    return seconds(plan["evaluation"]["step_time_s"])


def step_range(plan: Json) -> str:
    low, high = plan["evaluation"]["step_time_range_s"]
    return f"{seconds(low)}-{seconds(high)}"


def memory_of_capacity(plan: Json) -> str:
    memory = plan["evaluation"]["memory"]
    mark = "" if plan["evaluation"]["verdict"] == "fits" else "!"
    return f"{memory['peak_device_bytes'] / GIB:.1f}/{memory['capacity_bytes'] / GIB:.1f}{mark}"


def gpus_used(plan: Json) -> str:
    return f"{plan['evaluation']['num_gpus_used']:,}"


def throughput(plan: Json) -> float:
    """Tokens per second of the whole job."""
    return float(plan["evaluation"]["tokens_per_s_per_gpu"] * plan["evaluation"]["num_gpus_used"])


def share_of_step(*terms: str) -> Callable[[Json], str]:
    def cell(plan: Json) -> str:
        breakdown = plan["evaluation"]["time_breakdown_s"]
        share = sum(breakdown.get(term, 0.0) for term in terms) / plan["evaluation"]["step_time_s"]
        return f"{share:.1%}"

    return cell


def worst_tier(plan: Json) -> str:
    evaluation = plan["evaluation"]
    used = [
        tier for term, tier in evaluation["provenance"]["terms"].items() if evaluation["time_breakdown_s"].get(term)
    ]
    return max(used, key=TIERS.index, default=TIERS[0])


def seconds(value: float) -> str:
    """Seconds with three significant digits and no unit."""
    # The bounds are where rounding would add a fourth digit: 99.95 rounds to 100.0 with one decimal.
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:#.3g}"


def parameter_count(count: int) -> str:
    """A number of parameters with three digits, such as `8.03B`."""
    power = 12 if count >= 999.5e9 else 9 if count >= 999.5e6 else 6
    shown = count / 10**power
    digits = 0 if shown >= 99.95 else 1 if shown >= 9.995 else 2
    return f"{shown:.{digits}f}{ {12: 'T', 9: 'B', 6: 'M'}[power] }"


def shown_plans(plans: Sequence[Json]) -> list[Json]:
    """The plans that are not a near-copy of a better one."""
    return [plan for plan in plans if plan.get("folded_under") is None]
