"""Where the members of a communication group sit: how many share a fast domain and a node, how many of these, of PCIe
switches, sockets and network leaves it spans.

Ranks are numbered tp, cp, ep, dp, pp from the fastest-varying axis outward, node by node (Megatron's default order), so a
group is a size and a stride. Nothing here assumes powers of two: where groups straddle boundaries differently, the worst
one counts, because everybody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.segments import domain_gpus
from cost_models.specs.cluster import Cluster
from cost_models.strategies.strategy import Strategies

Floats = NDArray[np.float64]


_KEY_STEP = 2.0**20
"""Above every number of GPUs, so that a domain and a number of ranks share one key."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A group of every strategy, shape (N,) each."""

    ranks: Floats
    per_domain: Floats
    """Members inside one fast domain (NVLink, NVSwitch, xGMI island); the fewest where domains differ."""
    domains: Floats
    """Fast domains the group spans, the most where groups differ; 1 means that it never leaves one."""
    siblings_per_domain: Floats
    """Groups of the same kind that share a domain at the same time."""
    stride: Floats
    per_island: Floats
    """Members inside one island: the node, or the fast domain where that is larger. They share its NICs."""
    islands: Floats
    """Islands the group spans; 1 means that it needs no network."""
    siblings_per_island: Floats
    """Groups of the same kind that share an island's NICs at the same time."""
    switches: Floats
    """PCIe switches the group spans, the most where groups differ; `islands` where no group crosses PCIe."""
    sockets: Floats
    """Sockets the group spans, the most where groups differ; `islands` where no group crosses PCIe."""
    leaves: Floats
    """Network leaves the group spans, the most where groups differ; 1 where it never needs the spine."""

    def take(self, index: NDArray[np.int64]) -> Placement:
        """The placements at these positions."""
        return Placement(*(getattr(self, name)[index] for name in Placement.__slots__))

    def over_network(self) -> Placement:
        """The same group where its neighbours are sure to sit on different nodes."""
        return replace(
            self,
            domains=np.maximum(self.domains, 2.0),
            islands=np.maximum(self.islands, 2.0),
            switches=np.maximum(self.switches, 2.0),
            sockets=np.maximum(self.sockets, 2.0),
        )

    def inside_islands(self) -> Placement:
        """The members that share an island, as a group of their own: what moves once it has arrived there."""
        one = np.ones_like(self.ranks)
        return replace(
            self,
            ranks=self.per_island,
            domains=self.per_island / self.per_domain,
            islands=one,
            switches=self.switches / self.islands,
            sockets=self.sockets / self.islands,
            leaves=one,
        )

    def one_per_island(self, siblings: Floats) -> Placement:
        """One member of every island, `siblings` such groups on each: what crosses the network once for an island."""
        one = np.ones_like(self.ranks)
        return replace(
            self,
            ranks=self.islands,
            per_domain=one,
            domains=self.islands,
            siblings_per_domain=siblings,
            per_island=one,
            siblings_per_island=siblings,
            switches=self.islands,
            sockets=self.islands,
        )


def place(
    size: Floats | float,
    *,
    stride: Floats | float,
    cluster: Cluster,
    world: Floats | float | None = None,
    domain: Floats | float | None = None,
) -> Placement:
    """Placement of the groups {offset + i*stride, 0 <= i < size} on nodes filled in rank order.

    Args:
        size: members of a group, shape (N,).
        stride: distance in ranks between neighbours, shape (N,).
        cluster: nodes and fast domains.
        world: ranks in use, shape (N,); the whole cluster where not given. Groups beyond it don't exist.
        domain: consecutive ranks that share a fast domain, shape (N,); the cluster's where not given.
    """
    ranks, step, used = np.broadcast_arrays(
        np.atleast_1d(np.asarray(size, dtype=np.float64)),
        np.atleast_1d(np.asarray(stride, dtype=np.float64)),
        np.asarray(float(cluster.num_gpus) if world is None else world, dtype=np.float64),
    )
    whole = max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    blocks = np.broadcast_to(np.asarray(float(whole) if domain is None else domain), ranks.shape)
    different = np.unique(blocks)
    if len(different) <= 1:
        return _on_blocks(ranks, step, used, cluster, domain=int(different[0]) if len(different) else whole)
    columns = {name: np.empty(ranks.shape) for name in Placement.__slots__}
    for block in different:
        rows = np.flatnonzero(blocks == block)
        part = _on_blocks(ranks[rows], step[rows], used[rows], cluster, domain=int(block))
        for name, column in columns.items():
            column[rows] = getattr(part, name)
    return Placement(**columns)


def _on_blocks(ranks: Floats, step: Floats, used: Floats, cluster: Cluster, *, domain: int) -> Placement:
    """Placement of groups on fast domains of `domain` consecutive ranks."""
    island = _island(cluster, domain)
    per_domain, domains = _spread(ranks, step, used, domain)
    per_island, islands = (per_domain, domains) if island == domain else _spread(ranks, step, used, island)
    switches = sockets = islands
    if domain < island:
        switches, sockets = (
            _parts(ranks, step, used, block, island, per_island, islands)
            for block in (cluster.pcie_gpus_per_switch, cluster.pcie_gpus_per_socket)
        )
    return Placement(
        ranks=ranks,
        per_domain=per_domain,
        domains=domains,
        siblings_per_domain=domain / per_domain,
        stride=step,
        per_island=per_island,
        islands=islands,
        siblings_per_island=island / per_island,
        switches=switches,
        sockets=sockets,
        leaves=_leaves(ranks, step, used, cluster, per_island, islands),
    )


def _parts(
    size: Floats, stride: Floats, world: Floats, block: int, island: int, per_island: Floats, islands: Floats
) -> Floats:
    """Parts of `block` GPUs of a node that a group spans; counted from whole nodes where such parts do not fill one."""
    if island % block:
        return np.asarray(islands * np.ceil(per_island / block))
    return _spread(size, stride, world, block)[1]


def _leaves(
    size: Floats, stride: Floats, world: Floats, cluster: Cluster, per_island: Floats, islands: Floats
) -> Floats:
    """Leaves a group spans. A rail keeps GPUs of the same place in their nodes together, and parts all others."""
    leaf = _leaf(cluster)
    if leaf is None:
        return islands  # no spine slower than its leaves, or none is told
    spanned = _spread(size, stride, world, leaf)[1]
    if not cluster.network.rail_optimized:
        return spanned
    off_rail = (per_island == 1) & (np.fmod(stride, cluster.gpus_per_node) != 0)
    return np.where(off_rail, islands, spanned)


def _leaf(cluster: Cluster) -> int | None:
    """GPUs whose NICs hang on one leaf (one of each rail), where leaving it costs anything."""
    network = cluster.network
    if network.oversubscription <= 1 or network.nodes_per_leaf is None:
        return None
    return max(network.nodes_per_leaf * cluster.gpus_per_node, _island(cluster, cluster.nvlink_domain_gpus))


def _island(cluster: Cluster, domain: int) -> int:
    """GPUs that need no network between them: the node's, or the fast domain's where that is larger."""
    return min(max(domain, cluster.gpus_per_node), cluster.num_gpus)


def world_key(strategies: Strategies, cluster: Cluster) -> Floats:
    """What of the GPUs in use the tp, cp, etp and ep groups' placement depends on, shape (N,); 0 where on nothing.

    Groups that straddle a block differ with their offset on it, and a small world has fewer offsets: equal keys place alike.
    """
    key = np.zeros(len(strategies))
    domains = domain_gpus(cluster, strategies)
    different = np.unique(domains)
    for domain in different:
        on_it = _key_on_blocks(strategies, cluster, int(domain))
        key = np.where(domains == domain, on_it + (domain * _KEY_STEP if len(different) > 1 else 0.0), key)
    return key


def _key_on_blocks(strategies: Strategies, cluster: Cluster, domain: int) -> Floats:
    """The key where fast domains hold `domain` consecutive ranks."""
    s, one = strategies, np.ones(len(strategies))
    key = np.zeros(len(strategies))
    island = _island(cluster, domain)
    parts = (cluster.pcie_gpus_per_switch, cluster.pcie_gpus_per_socket) if domain < island else ()
    for block in {domain, island, *parts, _leaf(cluster) or island}:
        for size, stride in ((s.tp, one), (s.cp, s.tp), (s.etp, one), (s.ep, s.etp)):
            seen = np.minimum(s.world, size * stride * block)
            key = np.where(_sits_alike(size, stride, block), key, np.maximum(key, seen))
    return key


def _sits_alike(size: Floats, stride: Floats, block: int) -> NDArray[np.bool_]:
    """Where every group sits alike on its blocks: a set of groups repeats every size * stride ranks."""
    extent, divides = size * stride, _divides(block)
    regular = (stride >= block) | (size == 1) | divides[np.minimum(extent, block + 1.0).astype(np.int64)]
    blocks = extent / block
    return np.asarray(
        regular | ((blocks == np.floor(blocks)) & divides[np.minimum(stride, block + 1.0).astype(np.int64)])
    )


@lru_cache(maxsize=64)
def _divides(block: int) -> NDArray[np.bool_]:
    """Whether each number up to the block divides it; the entry after the last stands for all larger ones."""
    return np.array([number > 0 and block % number == 0 for number in range(block + 2)])


def _spread(size: Floats, stride: Floats, world: Floats, block: int) -> tuple[Floats, Floats]:
    """Fewest members in one block of `block` consecutive ranks, and most blocks spanned, over all groups."""
    inside = np.clip(np.floor(block / stride), 1.0, size)
    spanned = np.ceil(size / inside)
    extent = size * stride
    odd = np.flatnonzero(~_sits_alike(size, stride, block))
    if len(odd):
        sets = np.maximum(np.floor(world[odd] / extent[odd]), 1.0)
        keys = np.stack([size[odd], stride[odd], np.minimum(sets, block)], axis=1).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        worst = np.array([_straddling(int(n), int(s), int(g), block) for n, s, g in distinct], dtype=np.float64)
        inside[odd], spanned[odd] = worst[inverse.reshape(-1)].T
    return inside, spanned


@lru_cache(maxsize=65536)
def _straddling(size: int, stride: int, sets: int, block: int) -> tuple[int, int]:
    """(fewest members, most blocks) over every group offset that occurs in `sets` repetitions; stride < block."""
    extent = size * stride
    repeats = min(block // gcd(extent, block), sets)
    starts = (np.arange(repeats)[:, None] * extent + np.arange(stride)) % block
    offset = np.unique(starts)
    spanned = (offset + (size - 1) * stride) // block + 1
    # No step is longer than a block, so none is skipped. Member counts of blocks repeat with period stride / gcd.
    edges = np.arange(min(int(spanned.max()), stride // gcd(stride, block) + 1) + 1)
    before = np.clip(-((offset[:, None] - edges * block) // stride), 0, size)  # members below each edge
    counts = np.diff(before, axis=1)
    last = size - np.clip(-((offset - (spanned - 1) * block) // stride), 0, size)
    fewest = min(int(counts[counts > 0].min()), int(last.min()))
    return fewest, int(spanned.max())


@dataclass(frozen=True, eq=False)
class StrategyPlacements:
    """Placement of every communication group of N strategies, each computed when first asked for.

    Dense parts use ranks as tp-cp-dp-pp, MoE layers regroup the same tp*cp*dp ranks as etp-ep-edp.
    """

    strategies: Strategies
    cluster: Cluster

    def _place(self, size: Floats, stride: Floats) -> Placement:
        return place(size, stride=stride, cluster=self.cluster, world=self.strategies.world, domain=self._domain)

    @cached_property
    def _domain(self) -> Floats:
        """GPUs of a fast domain as the scheduler's segments leave them."""
        return domain_gpus(self.cluster, self.strategies)

    @cached_property
    def tp(self) -> Placement:
        """Tensor (and sequence) parallel group: neighbours."""
        return self._place(self.strategies.tp, np.ones(len(self.strategies)))

    @cached_property
    def cp(self) -> Placement:
        """Context parallel group."""
        return self._place(self.strategies.cp, self.strategies.tp)

    @cached_property
    def dp(self) -> Placement:
        """Data parallel group without context ranks."""
        return self._place(self.strategies.dp, self.strategies.tp * self.strategies.cp)

    @cached_property
    def dp_cp(self) -> Placement:
        """Ranks that hold the same dense parameters."""
        return self._place(self.strategies.dp_cp, self.strategies.tp)

    @cached_property
    def etp(self) -> Placement:
        """Tensor parallel group inside an expert."""
        return self._place(self.strategies.etp, np.ones(len(self.strategies)))

    @cached_property
    def ep(self) -> Placement:
        """Expert parallel group."""
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
        """Pipeline group; its neighbours are a whole stage apart, `send_recv` prices the slowest hop."""
        return self._place(self.strategies.pp, self._stage_ranks)

    @cached_property
    def embedding(self) -> Placement:
        """First and last stage of a pipeline, which share tied embeddings; one rank where pp is 1."""
        ranks = np.minimum(self.strategies.pp, 2.0)
        near, inside = self.pp.domains == 1, self.pp.islands == 1
        return Placement(
            ranks=ranks,
            per_domain=np.where(near, ranks, 1.0),
            domains=np.where(near, 1.0, ranks),
            siblings_per_domain=self.pp.siblings_per_domain,
            stride=self.pp.stride * np.maximum(self.strategies.pp - 1.0, 1.0),
            per_island=np.where(inside, ranks, 1.0),
            islands=np.where(inside, 1.0, ranks),
            siblings_per_island=self.pp.siblings_per_island,
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
        found.__dict__["embedding"] = ends.over_network()
        return found

    @property
    def _stage_ranks(self) -> Floats:
        return self.strategies.tp * self.strategies.cp * self.strategies.dp


def groups(strategies: Strategies, cluster: Cluster) -> StrategyPlacements:
    """Placements of all groups of a batch, lazily."""
    return StrategyPlacements(strategies, cluster)
