"""Collectives executed on real vectors, message by message: what closed forms of their seconds are compared with.

A rank sends one message and receives one in each round; a round lasts as long as its longest message. Every function returns the
vectors that the ranks end with, and leaves seconds, rounds and bytes in the wires that it was given.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Vectors = list[NDArray[np.float64]]


@dataclass
class Wires:
    """One level of links, elements counted as bytes."""

    latency_s: float
    s_per_byte: float
    seconds: float = 0.0
    rounds: int = 0
    sent: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def round(self, messages: list[tuple[int, int, NDArray[np.float64]]]) -> None:
        """One round of messages (from, to, content)."""
        senders, receivers = [m[0] for m in messages], [m[1] for m in messages]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        for sender, _, content in messages:
            self.sent[sender] += len(content)
        self.seconds += self.latency_s + max(len(content) for _, _, content in messages) * self.s_per_byte
        self.rounds += 1


def cut(length: int, parts: int) -> list[slice]:
    edges = [round(part * length / parts) for part in range(parts + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]


def scatter_around(rings: list[list[int]], vectors: Vectors, wires: Wires, where: slice = slice(None)) -> None:
    """Reduce-scatter of each ring's vectors at once: member i ends with the sum of chunk i + 1."""
    _around(rings, vectors, wires, where, first=0, adds=True)


def gather_around(rings: list[list[int]], vectors: Vectors, wires: Wires, where: slice = slice(None)) -> None:
    """All-gather of what `scatter_around` left."""
    _around(rings, vectors, wires, where, first=1, adds=False)


def _around(rings: list[list[int]], vectors: Vectors, wires: Wires, where: slice, *, first: int, adds: bool) -> None:
    size = len(rings[0])
    start, stop, _ = where.indices(len(vectors[0]))
    chunks = [slice(start + c.start, start + c.stop) for c in cut(stop - start, size)]
    for step in range(size - 1):
        moves = [
            (ring[i], ring[(i + 1) % size], chunks[(i + first - step) % size]) for ring in rings for i in range(size)
        ]
        messages = [(a, b, vectors[a][chunk].copy()) for a, b, chunk in moves]
        wires.round(messages)
        for (_, b, content), (_, _, chunk) in zip(messages, moves, strict=True):
            vectors[b][chunk] = vectors[b][chunk] + content if adds else content


def ring(vectors: Vectors, wires: Wires) -> Vectors:
    everyone = [list(range(len(vectors)))]
    scatter_around(everyone, vectors, wires)
    gather_around(everyone, vectors, wires)
    return vectors


def torus(vectors: Vectors, members: int, near: Wires, far: Wires) -> Vectors:
    """Rank r is member r % members of node r // members."""
    nodes = len(vectors) // members
    rows = [[node * members + m for m in range(members)] for node in range(nodes)]
    scatter_around(rows, vectors, near)
    chunks = cut(len(vectors[0]), members)
    columns = []
    for member in range(members):
        own = Wires(far.latency_s, far.s_per_byte)
        column = [[node * members + member for node in range(nodes)]]
        scatter_around(column, vectors, own, chunks[(member + 1) % members])
        gather_around(column, vectors, own, chunks[(member + 1) % members])
        columns.append(own)
    far.seconds += max(each.seconds for each in columns)  # the columns run side by side
    gather_around(rows, vectors, near)
    return vectors


def halving_doubling(vectors: Vectors, near: Wires, far: Wires, members: int) -> Vectors:
    """Neighbours first; ranks beyond the largest power of two fold into their partners, over `far` where there are nodes."""
    ranks, length = len(vectors), len(vectors[0])
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    outer = far if ranks > members else near
    folded = [(2 * i, 2 * i + 1) for i in range(extra)]
    if folded:
        outer.round([(a, b, vectors[a].copy()) for a, b in folded])
        for a, b in folded:
            vectors[b] = vectors[b] + vectors[a]
    active = [b for _, b in folded] + list(range(2 * extra, ranks))
    held = [(0, length)] * power
    distance, trail = 1, []
    while distance < power:
        wires, parts, messages = near if distance < min(members, power) else far, [], []
        for i in range(power):
            low, high = held[i]
            middle = (low + high) // 2
            kept, given = ((low, middle), (middle, high)) if not i & distance else ((middle, high), (low, middle))
            parts.append((kept, given))
            messages.append((active[i], active[i ^ distance], vectors[active[i]][slice(*given)].copy()))
        wires.round(messages)
        for i, (_, to, content) in enumerate(messages):
            vectors[to][slice(*parts[i][1])] += content
        trail.append((distance, wires, parts))
        held = [kept for kept, _ in parts]
        distance *= 2
    for distance, wires, parts in reversed(trail):
        messages = [
            (active[i], active[i ^ distance], vectors[active[i]][slice(*parts[i][0])].copy()) for i in range(power)
        ]
        wires.round(messages)
        for i, (_, to, content) in enumerate(messages):
            vectors[to][slice(*parts[i][0])] = content
    if folded:
        outer.round([(b, a, vectors[b].copy()) for a, b in folded])
        for a, b in folded:
            vectors[a] = vectors[b].copy()
    return vectors


def hierarchical(vectors: Vectors, members: int, near: Wires, far: Wires) -> Vectors:
    """Binomial reduction to each node's first rank, their ring, binomial broadcast."""
    nodes = len(vectors) // members
    distance, pairs = 1, []
    while distance < members:
        pairs.append([
            (node * members + m, node * members + m - distance)
            for node in range(nodes) for m in range(members) if m % (2 * distance) == distance
        ])  # fmt: skip
        distance *= 2
    for level in pairs:
        near.round([(a, b, vectors[a].copy()) for a, b in level])
        for a, b in level:
            vectors[b] = vectors[b] + vectors[a]
    leaders = [[node * members for node in range(nodes)]]
    scatter_around(leaders, vectors, far)
    gather_around(leaders, vectors, far)
    for level in reversed(pairs):
        near.round([(b, a, vectors[b].copy()) for a, b in level])
        for a, b in level:
            vectors[a] = vectors[b].copy()
    return vectors


def chain(ranks: int, size: float, chunks: int, wires: Wires) -> float:
    """Seconds until the last rank of a chain has the last chunk of a broadcast."""
    free, arrived = [0.0] * ranks, 0.0
    each = wires.latency_s + size / chunks * wires.s_per_byte
    for _ in range(chunks):
        arrived = 0.0
        for hop in range(ranks - 1):
            arrived = max(arrived, free[hop]) + each
            free[hop] = arrived
    return arrived


def parent(node: int, count: int) -> int | None:
    """Parent of a node in the binary tree whose leaves are the odd nodes, as NCCL builds it; None for the root, node 0."""
    if node == 0:
        return None
    bit = node & -node
    up = (node ^ bit) | (bit << 1)
    return up if up < count else node ^ bit


def two_trees(vectors: Vectors) -> tuple[Vectors, dict[int, int], int]:
    """All-reduce over two trees, half of the array on each: the vectors, the elements that each node sent, and levels.

    The second tree is the first with every node moved on by one, so that a leaf of one is inside the other.
    """
    count, length = len(vectors), len(vectors[0])
    sent: dict[int, int] = defaultdict(int)
    levels = 0
    for shift, half in enumerate(cut(length, 2)):
        parents = {(n + shift) % count: parent(n, count) for n in range(count)}
        up = {node: None if p is None else (p + shift) % count for node, p in parents.items()}
        depth = {}
        for node, above in up.items():
            steps, at = 0, above
            while at is not None:
                steps, at = steps + 1, up[at]
            depth[node] = steps
        levels = max(levels, *depth.values())
        for node in sorted(up, key=lambda n: -depth[n]):
            above = up[node]
            if above is not None:
                vectors[above][half] += vectors[node][half]
                sent[node] += half.stop - half.start
        for node in sorted(up, key=lambda n: depth[n]):
            above = up[node]
            if above is not None:
                vectors[node][half] = vectors[above][half]
                sent[above] += half.stop - half.start
    return vectors, dict(sent), levels
