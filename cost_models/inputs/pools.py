"""A cluster with pools as a user writes it: `pools`, each the nodes of one kind, on one `network`.

Every pool is resolved like a cluster of its own nodes (`cluster_input`) on the shared network. What a pool assumes is listed
under its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, shown
from cost_models.inputs.cluster import ClusterInput, NodesInput, resolve_cluster
from cost_models.inputs.fields import resolved_once, validated
from cost_models.specs.cluster import Cluster, Pool, PooledCluster

MOST_POOLS = 6
"""Most pools of a cluster. Every order of them along the pipeline is searched, and no cluster of more kinds of node
is known."""
_BESIDE = ("name", "network", "collectives", "pools")
"""What a cluster with pools says of itself; every other field belongs to a pool."""


def lists_pools(document: object) -> bool:
    """Whether a cluster document lists pools."""
    return isinstance(document, Mapping) and document.get("pools") is not None


def resolve_pools(document: Mapping[str, Any], *, pointer: str = "/cluster") -> PooledCluster:
    """The cluster that a document describes, in SI units, missing facts filled and reported.

    Raises:
        InvalidInputError: with one Problem per broken rule; NotModelledError for GPUs that no library connects.
    """
    return resolved_once(lambda key: _from_json(key, pointer), lambda d: _resolved(d, pointer), document, pointer)


@lru_cache(maxsize=1024)
def _from_json(key: str, pointer: str) -> PooledCluster:
    return _resolved(json.loads(key), pointer)


def _resolved(document: Mapping[str, Any], pointer: str) -> PooledCluster:
    listed = document["pools"]
    at = child(pointer, "pools")
    if not isinstance(listed, list):
        hint = "List one entry for each kind of node."
        raise InvalidInputError([Problem(at, f"pools is {shown(listed)}; it must be a list", hint)])
    problems = _beside(document, pointer) + _sizes(listed, at)
    if problems:
        raise InvalidInputError(problems)
    beside = {name: document.get(name) for name in ("name", "network", "collectives")}
    own = validated(ClusterInput, beside, pointer=pointer)
    # What the nodes share is dumped, so that every pool is a cluster of its own on it.
    shared: dict[str, Any] = own.model_dump(include={"network", "collectives"}, exclude_none=True)
    clusters, problems = _clusters(listed, {"network": {}, **shared}, at)
    if problems:
        raise InvalidInputError(problems)
    names, problems = _names(listed, clusters, at)
    if problems:
        raise InvalidInputError(problems)
    _refuse_two_vendors(names, clusters, at)
    pools = tuple(Pool(name, cluster) for name, cluster in zip(names, clusters, strict=True))
    assumed: dict[str, object] = {
        f"pools.{position}.name": name for position, name in enumerate(names) if listed[position].get("name") is None
    }
    for pool in pools:
        assumed |= {f"pools.{pool.name}.{field}": value for field, value in pool.cluster.assumed.items()}
    return PooledCluster(
        name=own.name or " + ".join(cluster.name for cluster in clusters),
        pools=pools,
        assumed=assumed,
        warnings=tuple(dict.fromkeys(warning for cluster in clusters for warning in cluster.warnings)),
    )


def _beside(document: Mapping[str, Any], pointer: str) -> list[Problem]:
    """Problems of fields that stand beside the pools although they are a pool's, and of names that no cluster has."""
    extra = [name for name, value in document.items() if name not in _BESIDE and value is not None]
    unknown = {name: None for name in extra if name not in ClusterInput.model_fields}
    if unknown:
        validated(ClusterInput, unknown, pointer=pointer)
    found = []
    for name in extra:
        message, hint = f"{name} is given beside pools, but each pool has its own", "Move it into each pool."
        if name not in NodesInput.model_fields:
            message = f"{name} is given beside pools, which is not modelled"
            hint = "Leave it out, or plan each pool as a cluster of its own."
        found.append(Problem(child(pointer, name), message, hint))
    return found


def _sizes(listed: list[Any], at: str) -> list[Problem]:
    """Problems of a list without pools, with too many of them, or with pools that have no nodes."""
    if not listed:
        return [Problem(at, "pools is empty", "List at least one pool: its gpu, num_nodes and gpus_per_node.")]
    if len(listed) > MOST_POOLS:
        message = f"pools lists {len(listed)} kinds of node; the most is {MOST_POOLS}"
        return [Problem(at, message, "Merge pools of equal nodes.")]
    return [
        Problem(
            child(at, position, name),
            f"pool {pool.get('name') or position!r} is empty: {name} is 0",
            "Leave the pool out, or give it nodes.",
        )
        for position, pool in enumerate(listed)
        if isinstance(pool, Mapping)
        for name in ("num_nodes", "gpus_per_node")
        if pool.get(name) == 0 and not isinstance(pool[name], bool)
    ]


def _clusters(listed: list[Any], shared: dict[str, Any], at: str) -> tuple[list[Cluster], list[Problem]]:
    """The nodes of every pool as a cluster on the shared network, and what is wrong with them."""
    clusters: list[Cluster] = []
    problems: list[Problem] = []
    for position, given in enumerate(listed):
        here = child(at, position)
        try:
            validated(NodesInput, given, pointer=here)
            cluster = resolve_cluster({**given, **shared}, pointer=here)
        except InvalidInputError as error:
            problems += error.problems
            continue
        # The pools share one network, so an unstated fabric must not become InfiniBand for one pool and Ethernet for
        # the next.
        clusters.append(_on_network_of(clusters[0], cluster) if clusters else cluster)
    return clusters, problems


def _on_network_of(first: Cluster, cluster: Cluster) -> Cluster:
    """A pool's cluster on the first pool's network; a pool's NICs are its own.

    What the user left open about the network is as the first pool's GPUs fill it, and is assumed once.
    """
    own = cluster.network
    network = replace(first.network, nics_per_node=own.nics_per_node, nic_wire_bytes_per_s=own.nic_wire_bytes_per_s)
    assumed = {field: value for field, value in cluster.assumed.items() if not field.startswith("network.")}
    return replace(cluster, network=network, assumed=assumed)


def _refuse_two_vendors(names: list[str], clusters: list[Cluster], at: str) -> None:
    """NCCL and RCCL do not talk to each other, so AMD and NVIDIA GPUs are never ranks of one job."""
    amd = [cluster.gpu.generation.startswith("cdna") for cluster in clusters]
    if any(amd) and not all(amd):
        one, other = names[amd.index(True)], names[amd.index(False)]
        message = f"pools {one!r} and {other!r} have GPUs of different vendors, which no collective library connects"
        problem = Problem(at, message, "Plan the pools of each vendor by themselves.", "pools-not-supported")
        raise NotModelledError([problem])


def _names(listed: list[Any], clusters: list[Cluster], at: str) -> tuple[list[str], list[Problem]]:
    """Every pool's name, that of its GPU where it has none, and what is wrong with the names."""
    names = [given.get("name") or cluster.gpu.name for given, cluster in zip(listed, clusters, strict=True)]
    problems = [
        Problem(
            child(at, position, "name"),
            f"two pools are called {name!r}" + ("" if listed[position].get("name") else ", the name of their GPU"),
            "Give every pool a name of its own.",
        )
        for position, name in enumerate(names)
        if Counter(names[: position + 1])[name] > 1
    ]
    return names, problems
