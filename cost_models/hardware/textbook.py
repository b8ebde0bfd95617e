"""Closed forms of the textbook's collectives: seconds by rounds and bytes, for ranks that each send and receive one message at a
time.                                                                                                              [C-21]

A message of x bytes takes latency + x / bandwidth. `Link` is one level of links, and the functions of two levels take the one inside
a node (`near`) and the one between nodes (`far`). What libraries add to this, such as protocols, is in `nccl_tuner`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Link:
    """One level of links."""

    latency_s: Floats | float
    bytes_per_s: Floats | float
    """What one rank sends, and receives at the same time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a call in two parts, shape (N,) each."""

    latency_s: Floats
    bandwidth_s: Floats

    @property
    def seconds(self) -> Floats:
        return self.latency_s + self.bandwidth_s


def ring(size: Floats, ranks: Floats, link: Link, *, rounds_of: float = 1.0) -> Cost:
    """Seconds of a ring's reduce-scatter or all-gather, or with `rounds_of` 2 of its all-reduce, shape (N,). [C-21]

        rounds_of (n - 1) (a + S b / n)

    Args:
        size: S, bytes of the whole array, shape (N,).
        ranks: n, shape (N,).
        link: the slowest level that the ring crosses, since every round waits for it.
        rounds_of: times that the chunks go around.

    Source: Patarasuk and Yuan 2009.
    """
    rounds = rounds_of * np.maximum(ranks - 1.0, 0.0)
    return Cost(np.asarray(rounds * link.latency_s), np.asarray(rounds * size / ranks / link.bytes_per_s))


def halving_doubling(size: Floats, *, members: Floats, nodes: Floats, near: Link, far: Link) -> Cost:
    """Seconds of an all-reduce by recursive halving and doubling, neighbours first, shape (N,). [C-21]

        2 log2 p a + 2 (p - 1) / p S b,  p the largest power of two of n;  n > p: + 2 (a + S b)

    Of the log2 p distances the shortest lie inside a node, where the longest messages then travel. On one level of links this is the
    form above.

    Args:
        size: bytes of the array, shape (N,).
        members: ranks of a node, shape (N,).
        nodes: nodes, shape (N,).
        near: links inside a node.
        far: links between nodes.

    Source: Thakur et al. 2005 section 4; gloo docs/algorithms.md (allreduce_halving_doubling).
    """
    ranks = members * nodes
    # Pairs at a distance need a partner each, so that only a power of two of ranks can take part.
    power = np.exp2(np.floor(np.log2(np.maximum(ranks, 1.0))))
    inside = np.minimum(np.exp2(np.floor(np.log2(np.maximum(members, 1.0)))), power)
    outside = power / inside
    latency_s = 2.0 * (np.log2(inside) * near.latency_s + np.log2(outside) * far.latency_s)
    near_s = 2.0 * (inside - 1.0) / inside * size / near.bytes_per_s
    far_s = 2.0 * (outside - 1.0) / outside * size / inside / far.bytes_per_s
    # Ranks beyond the power of two hand everything to a partner before, and get everything from it afterwards.
    folds = ranks > power
    across = nodes > 1
    fold_latency_s = 2.0 * np.where(across, far.latency_s, near.latency_s)
    fold_s = 2.0 * size / np.where(across, far.bytes_per_s, near.bytes_per_s)
    return Cost(
        np.asarray(latency_s + np.where(folds, fold_latency_s, 0.0)),
        np.asarray(near_s + far_s + np.where(folds, fold_s, 0.0)),
    )


def hierarchical(size: Floats, *, members: Floats, nodes: Floats, near: Link, far: Link) -> Cost:
    """Seconds of an all-reduce over one leader of each node, shape (N,). [C-21]

        2 ceil(log2 k) (a1 + S b1) + 2 (N - 1) (a2 + S b2 / N)

    Binomial trees reduce to the leaders and broadcast from them; the leaders' ring lies between. Arguments as of `halving_doubling`,
    with the leader's share of the network as `far`.
    """
    # A binomial tree passes the whole array on at each level; nothing is cut into chunks.
    levels = 2.0 * np.ceil(np.log2(np.maximum(members, 1.0)))
    around = ring(size, nodes, far, rounds_of=2.0)
    return Cost(
        np.asarray(levels * near.latency_s + around.latency_s),
        np.asarray(levels * size / near.bytes_per_s + around.bandwidth_s),
    )


def torus_2d(size: Floats, *, members: Floats, nodes: Floats, near: Link, far: Link) -> Cost:
    """Seconds of an all-reduce on a torus of nodes by the ranks in them, shape (N,). [C-21]

        2 (k - 1) (a1 + S b1 / k) + 2 (N - 1) (a2 + S b2 / (k N))

    A ring scatters inside each node, k rings between nodes all-reduce a slice each, a ring inside each node gathers. Arguments as of
    `halving_doubling`.

    Source: Mikami et al. 2018 (arXiv 1811.05233).
    """
    # Only a slice of each rank crosses the network, since the rings between nodes run side by side.
    inside, between = ring(size, members, near, rounds_of=2.0), ring(size / members, nodes, far, rounds_of=2.0)
    return Cost(inside.latency_s + between.latency_s, inside.bandwidth_s + between.bandwidth_s)


def chain(size: Floats, ranks: Floats, link: Link, *, chunks: Floats | float) -> Cost:
    """Seconds of a broadcast that a chain of ranks passes on in chunks, shape (N,). [C-21]

        (n - 2 + c) (a + S b / c)

    Args:
        size: S, bytes of the array, shape (N,).
        ranks: n, two or more, shape (N,).
        link: the slowest level that the chain crosses.
        chunks: c, messages that the array is sent in.
    """
    rounds = np.maximum(ranks - 2.0, 0.0) + chunks
    return Cost(np.asarray(rounds * link.latency_s), np.asarray(rounds * size / chunks / link.bytes_per_s))


def best_chunks(size: Floats, ranks: Floats, link: Link) -> Floats:
    """Number of chunks at which `chain` takes the shortest time, at least 1, shape (N,): sqrt((n - 2) S b / a)."""
    # The product grows as S b / a falls; the root is where the derivative of (n - 2 + c) (a + S b / c) is 0.
    wire_s = size / link.bytes_per_s
    return np.maximum(np.sqrt(np.maximum(ranks - 2.0, 0.0) * wire_s / np.maximum(link.latency_s, 1e-12)), 1.0)
