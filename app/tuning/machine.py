"""Whether this machine is the one that was planned for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.tuning.backends import Device
from cost_models.errors import InvalidInputError, MeasurementError, Problem
from profiler.machine.node import Node, this_node

_NO_GPU = "Run it on the machine that the request is for, with nvidia-ml-py installed; --device cpu tries the loop out without a GPU."


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
    try:
        node = this_node(environment, device="cuda", gpu=None, gpus_per_node=None)
    except MeasurementError as error:
        raise MeasurementError(error.message, hint=_NO_GPU) from error
    if problems := unlike(cluster, node):
        raise InvalidInputError(problems)


def unlike(cluster: Mapping[str, Any], node: Node) -> list[Problem]:
    """In what a cluster is not this machine; empty where it is, or a part of it."""
    if cluster.get("pools"):
        message = "a cluster of several kinds of node cannot be measured on one machine"
        return [Problem("/cluster/pools", message, "Plan for one node of this machine's kind.")]
    found = []
    # What is measured on another kind of GPU would be taken for what the predictions were made for. Whoever describes a GPU by
    # figures of their own knows whether it is this one.
    if isinstance(cluster["gpu"], str) and cluster["gpu"] != node.gpu:
        message = f"the request is for {cluster['gpu']}, but this machine has {node.gpu}"
        found.append(Problem("/cluster/gpu", message, f"Plan for {node.gpu} to tune here."))
    # Fewer GPUs than the machine has are fine: the trials take the first ones.
    planned = int(cluster["num_nodes"]) * int(cluster["gpus_per_node"])
    if planned > node.gpus_per_node:
        message = f"the request is for {planned} GPUs, but this machine has {node.gpus_per_node}"
        hint = f"Plan for one node of {node.gpus_per_node} GPUs to tune here, and carry what was learnt to the larger cluster."
        found.append(Problem("/cluster/num_nodes", message, hint))
    return found
