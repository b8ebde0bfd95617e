"""Where every communication group of a strategy sits: tp, cp, dp, ep and their shards, pipelines, tied embeddings.

Dense parts number their ranks tp-cp-dp-pp from the fastest-varying axis outward, mixture layers regroup the same
tp*cp*dp ranks as etp-ep-edp; each group is then a size and a stride that `placement` lays onto nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.placement import Placement, island_gpus, leaf_gpus, place, sits_alike
from cost_models.hardware.segments import domain_gpus, spans_nodes
from cost_models.specs.cluster import Cluster
from cost_models.strategies.strategy import Strategies

Floats = NDArray[np.float64]

_KEY_STEP = 2.0**20
"""Above every number of GPUs, so that a domain and a number of ranks share one key."""


@dataclass(frozen=True, eq=False)
class StrategyPlacements:
    """Placement of every communication group of N strategies, each computed when it is first asked for.

    Dense parts use ranks as tp-cp-dp-pp; mixture layers regroup the same tp*cp*dp ranks as etp-ep-edp.
    """

    strategies: Strategies
    cluster: Cluster

    def _place(self, size: Floats, stride: Floats) -> Placement:
        return place(size, stride=stride, cluster=self.cluster, world=self.strategies.world, domain=self._domain)

    @cached_property
    def _domain(self) -> Floats:
        """GPUs of consecutive ranks that share a fast domain, as the scheduler's segments leave them, shape (N,)."""
        return domain_gpus(self.cluster, self.strategies)

    @cached_property
    def tp(self) -> Placement:
        """Tensor-parallel (and sequence-parallel) group: ranks next to each other."""
        return self._place(self.strategies.tp, np.ones(len(self.strategies)))

    @cached_property
    def cp(self) -> Placement:
        """Context-parallel group."""
        return self._place(self.strategies.cp, self.strategies.tp)

    @cached_property
    def cp_a2a(self) -> Placement:
        """Neighbours of a context-parallel group that trade heads under a2a+p2p."""
        return self._place(self.strategies.cp_a2a_size, self.strategies.tp)

    @cached_property
    def cp_ring(self) -> Placement:
        """Ranks of the same place in each such group, which form the ring."""
        s = self.strategies
        return self._place(s.cp / s.cp_a2a_size, s.tp * s.cp_a2a_size)

    @cached_property
    def dp(self) -> Placement:
        """Data-parallel group, context-parallel ranks left out."""
        return self._place(self.strategies.dp, self.strategies.tp * self.strategies.cp)

    @cached_property
    def dp_cp(self) -> Placement:
        """Ranks that hold the same dense parameters."""
        return self._place(self.strategies.dp_cp, self.strategies.tp)

    @cached_property
    def etp(self) -> Placement:
        """Tensor-parallel group inside an expert."""
        return self._place(self.strategies.etp, np.ones(len(self.strategies)))

    @cached_property
    def ep(self) -> Placement:
        """Expert-parallel group."""
        return self._place(self.strategies.ep, self.strategies.etp)

    @cached_property
    def etp_ep(self) -> Placement:
        """Ranks that hold one whole copy of the experts, each expert's tensor parallel ranks next to each other."""
        return self._place(self.strategies.etp * self.strategies.ep, np.ones(len(self.strategies)))

    @cached_property
    def edp(self) -> Placement:
        """Ranks that hold the same experts."""
        return self._place(self.strategies.expert_dp, self.strategies.etp * self.strategies.ep)

    @cached_property
    def zero_shard(self) -> Placement:
        """Ranks that share one copy of the sharded state: neighbours in the dp*cp group."""
        return self._place(self.strategies.zero_shard_size, self.strategies.tp)

    @cached_property
    def zero_replica(self) -> Placement:
        """Ranks that hold the same shard: one of each zero_shard group."""
        s = self.strategies
        return self._place(s.dp_cp / s.zero_shard_size, s.tp * s.zero_shard_size)

    @cached_property
    def expert_shard(self) -> Placement:
        """Ranks that share one copy of the experts' sharded state: neighbours in the edp group."""
        s = self.strategies
        return self._place(s.expert_shard_size, s.etp * s.ep)

    @cached_property
    def expert_replica(self) -> Placement:
        """Ranks that hold the same shard of the experts: one of each expert_shard group."""
        s = self.strategies
        return self._place(s.expert_dp / s.expert_shard_size, s.etp * s.ep * s.expert_shard_size)

    @cached_property
    def param_shard(self) -> Placement:
        """Ranks over which forward and backward parameters are sharded (hpZ, MiCS)."""
        return self._place(self.strategies.zero_param_shard_size, self.strategies.tp)

    @cached_property
    def pp(self) -> Placement:
        """Pipeline group. Its neighbours are a whole stage apart, and `send_recv` prices the slowest hop."""
        return self._place(self.strategies.pp, self._stage_ranks)

    @cached_property
    def embedding(self) -> Placement:
        """First and last stage of a pipeline, which share tied embeddings; one rank where pp is 1."""
        ranks = np.minimum(self.strategies.pp, 2.0)
        # The two ends are as far apart as the pipeline reaches: near each other only where all of it sits in one
        # domain or island.
        near, inside = self.pp.domains == 1, self.pp.islands == 1
        return Placement(
            ranks=ranks,
            per_domain=np.where(near, ranks, 1.0),
            domains=np.where(near, 1.0, ranks),
            stride=self.pp.stride * np.maximum(self.strategies.pp - 1.0, 1.0),
            per_island=np.where(inside, ranks, 1.0),
            islands=np.where(inside, 1.0, ranks),
            switches=np.where(self.pp.switches == 1, 1.0, ranks),
            sockets=np.where(self.pp.sockets == 1, 1.0, ranks),
            leaves=np.where(self.pp.leaves == 1, 1.0, ranks),
        )

    def with_ends_apart(self) -> StrategyPlacements:
        """The same groups where the first and the last stage are sure to sit on different nodes."""
        found = StrategyPlacements(self.strategies, self.cluster)
        ends = replace(
            self.embedding, per_domain=np.ones_like(self.embedding.ranks), per_island=np.ones_like(self.embedding.ranks)
        )
        # The property is cached, so that setting it beforehand overrides it; all other groups are computed as usual.
        found.__dict__["embedding"] = ends.over_network()
        return found

    @property
    def _stage_ranks(self) -> Floats:
        return self.strategies.tp * self.strategies.cp * self.strategies.dp


def groups(strategies: Strategies, cluster: Cluster) -> StrategyPlacements:
    """Placements of all groups of a batch; nothing is computed before it is asked for."""
    return StrategyPlacements(strategies, cluster)


def ranks_per_node(cluster: Cluster, strategies: Strategies) -> Floats:
    """Ranks that share a node's host memory and processors, shape (N,)."""
    return np.minimum(strategies.world, float(cluster.gpus_per_node))


def world_key(strategies: Strategies, cluster: Cluster) -> Floats:
    """A key of how the tp, cp, etp and ep groups' placement depends on the number of GPUs in use, shape (N,); 0 where it does not.

    Groups that straddle a block differ with their offset on it, and a small world has fewer offsets. Strategies with equal keys
    place these groups alike, so that tables can be shared among them.
    """
    key = np.zeros(len(strategies))
    domains = domain_gpus(cluster, strategies)
    different = np.unique(domains)
    for domain in different:
        on_it = _key_on_blocks(strategies, cluster, int(domain))
        # Domains are part of the key even where a batch has only one, since tables are shared between batches.
        key = np.where(domains == domain, on_it + (domain * _KEY_STEP if spans_nodes(cluster) else 0.0), key)
    return key


def _key_on_blocks(strategies: Strategies, cluster: Cluster, domain: int) -> Floats:
    """The key where fast domains hold `domain` consecutive ranks, shape (N,)."""
    s, one = strategies, np.ones(len(strategies))
    key = np.zeros(len(strategies))
    island = island_gpus(cluster, domain)
    placed = [(s.tp, one), (s.cp, s.tp), (s.etp, one), (s.ep, s.etp)]
    if s.uses("cp_a2a_size"):
        placed += [(s.cp_a2a_size, s.tp), (s.cp / s.cp_a2a_size, s.tp * s.cp_a2a_size)]
    parts = (cluster.pcie_gpus_per_switch, cluster.pcie_gpus_per_socket) if domain < island else ()
    for block in {domain, island, *parts, leaf_gpus(cluster) or island}:
        for size, stride in placed:
            seen = np.minimum(s.world, size * stride * block)
            key = np.where(sits_alike(size, stride, block), key, np.maximum(key, seen))
    return key
