"""What one step of a plan costs: in the currency of `price_per_gpu_hour` where every GPU has a price, else in GPU-seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HOUR_S = 3600.0
Document = Mapping[str, Any]


def is_priced(cluster: Document) -> bool:
    """Whether every GPU of a request's cluster has a price."""
    # One pool without a price makes the others' prices incomparable with it, so GPU-seconds are counted then.
    return all(part.get("price_per_gpu_hour") is not None for part in cluster.get("pools") or [cluster])


def gpu_weight(plan: Document, cluster: Document) -> float:
    """What one second of a ranked plan costs: its number of GPUs, or their price for a second."""
    gpus = float(plan["evaluation"]["num_gpus_used"])
    if not is_priced(cluster):
        return gpus
    if "pools" not in cluster:
        return gpus * float(cluster["price_per_gpu_hour"]) / _HOUR_S
    prices = {pool["name"]: float(pool["price_per_gpu_hour"]) for pool in cluster["pools"]}
    stages = plan["strategy"]["pool_per_stage"]
    return gpus / len(stages) * sum(prices[pool] for pool in stages) / _HOUR_S


def step_cost(plan: Document, cluster: Document) -> float:
    """What one step of a ranked plan costs, in the currency of the cluster's prices or in GPU-seconds."""
    return gpu_weight(plan, cluster) * float(plan["evaluation"]["step_time_s"])


def total_gpus(cluster: Mapping[str, Any]) -> int:
    """Number of GPUs in a resolved cluster."""
    return sum(int(part["num_nodes"]) * int(part["gpus_per_node"]) for part in cluster.get("pools") or [cluster])
