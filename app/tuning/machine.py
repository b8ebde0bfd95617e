"""Whether this machine is the one that was planned for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.tuning.backends import Device
from cost_models.errors import InvalidInputError, Problem


def require_machine(cluster: Mapping[str, Any], environment: Mapping[str, str], *, device: Device) -> None:
    """Refuses a cluster that is not this machine. On processors anything goes, because their times say nothing of GPUs.

    Args:
        cluster: the resolved cluster of the plan response.
        environment: the variables of this process.
        device: what the trials run on.

    Raises:
        MeasurementError: this machine has no GPU, or none that is known.
        InvalidInputError: the cluster has other GPUs, or more of them than this machine.
    """
    if device == "cpu":
        return
    from profiler.machine.node import this_node

    problems = []
    if cluster.get("pools"):
        message = "a cluster of several kinds of node cannot be measured on one machine"
        raise InvalidInputError([Problem("/cluster/pools", message, "Plan for one node of this machine's kind.")])
    named = cluster["gpu"] if isinstance(cluster["gpu"], str) else cluster["gpu"]["name"]
    node = this_node(environment, device="cuda", gpu=None, gpus_per_node=None)
    # What is measured on another kind of GPU would be taken for what the predictions were made for.
    if named != node.gpu:
        message = f"the request is for {named}, but this machine has {node.gpu}"
        problems.append(Problem("/cluster/gpu", message, f"Plan for {node.gpu} to tune here."))
    # Fewer GPUs than the machine has are fine: the trials take the first ones.
    planned = int(cluster["num_nodes"]) * int(cluster["gpus_per_node"])
    if planned > node.gpus_per_node:
        message = f"the request is for {planned} GPUs, but this machine has {node.gpus_per_node}"
        hint = f"Plan for one node of {node.gpus_per_node} GPUs to tune here, and carry what was learnt to the larger cluster."
        problems.append(Problem("/cluster/num_nodes", message, hint))
    if problems:
        raise InvalidInputError(problems)
