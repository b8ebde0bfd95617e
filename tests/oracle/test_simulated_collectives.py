"""Closed forms of collectives against simulators that move every byte, over drawn sizes and ranks; and published right values.

The simulators also check themselves: every rank must end with the sum.
"""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.hardware import textbook
from cost_models.hardware.nccl_tuner import Group, nccl_ways
from cost_models.hardware.textbook import Link
from tests.oracle import simulated_collectives as simulated
from tests.oracle.simulated_collectives import Vectors, Wires

A, B = 5e-6, 1e-9
NEAR, FAR = (1e-6, 1e-10), (5e-6, 1e-9)
LINK, NEAR_LINK, FAR_LINK = Link(A, 1 / B), Link(NEAR[0], 1 / NEAR[1]), Link(FAR[0], 1 / FAR[1])
US = 1e-6


def fresh(ranks: int, length: int, seed: int = 0) -> tuple[Vectors, Vectors]:
    vectors = list(np.random.default_rng(seed).integers(0, 1000, (ranks, length)).astype(np.float64))
    return vectors, [sum(vectors)] * ranks


def arrays(*values: float) -> list[np.ndarray]:
    return [np.array([float(value)]) for value in values]


# --- right values: latency 5 us, 1 ns a byte, 7,680 elements of one byte --------------------------------------------------


@pytest.mark.parametrize(("ranks", "us"), [(4, 41.52), (5, 52.288), (8, 83.44), (16, 164.4)])
def test_ring_takes_the_right_values(ranks: int, us: float) -> None:
    """2 (n - 1) (5 + 7.68 / n) us; n 4: 6 x (5 + 1.92) = 41.52."""
    vectors, total = fresh(ranks, 7680)
    wires = Wires(A, B)
    np.testing.assert_array_equal(simulated.ring(vectors, wires), total)
    cost = textbook.ring(*arrays(7680, ranks), LINK, rounds_of=2.0)
    assert wires.seconds == pytest.approx(us * US, rel=1e-9)
    assert cost.seconds[0] == pytest.approx(us * US, rel=1e-9)


@pytest.mark.parametrize(("ranks", "us"), [(4, 31.52), (8, 43.44), (16, 54.40), (5, 56.88), (6, 56.88), (12, 68.80)])
def test_halving_and_doubling_takes_the_right_values(ranks: int, us: float) -> None:
    """n 4: 2 x 2 x 5 + 2 x 3/4 x 7.68 = 31.52; n 5, 6: that and a fold of 2 x (5 + 7.68)."""
    vectors, total = fresh(ranks, 7680)
    wires = Wires(A, B)
    np.testing.assert_array_equal(simulated.halving_doubling(vectors, wires, wires, members=ranks), total)
    size, members, nodes = arrays(7680, ranks, 1)
    cost = textbook.halving_doubling(size, members=members, nodes=nodes, near=LINK, far=LINK)
    assert wires.seconds == pytest.approx(us * US, rel=1e-9)
    assert cost.seconds[0] == pytest.approx(us * US, rel=1e-9)


@pytest.mark.parametrize(
    ("members", "nodes", "torus_us", "leaders_us"),
    [(8, 4, 46.784, 52.128), (8, 2, 26.304, 28.288), (4, 3, 27.856, 30.656)],
)
def test_two_levels_take_the_right_values(members: int, nodes: int, torus_us: float, leaders_us: float) -> None:
    """960 k bytes; near 1 us and 0.1 ns, far 5 us and 1 ns. 8 x 4 torus: 14 (1 + .096) + 6 (5 + .24) = 46.784 us."""
    length = 960 * members
    arguments = dict(zip(("size", "members", "nodes"), arrays(length, members, nodes), strict=True))
    size = arguments.pop("size")
    for run, form, us in (
        (simulated.torus, textbook.torus_2d, torus_us), (simulated.hierarchical, textbook.hierarchical, leaders_us),
    ):  # fmt: skip
        vectors, total = fresh(members * nodes, length)
        near, far = Wires(*NEAR), Wires(*FAR)
        np.testing.assert_array_equal(run(vectors, members, near, far), total)
        assert near.seconds + far.seconds == pytest.approx(us * US, rel=1e-9)
        assert form(size, **arguments, near=NEAR_LINK, far=FAR_LINK).seconds[0] == pytest.approx(us * US, rel=1e-9)


# --- drawn sizes -----------------------------------------------------------------------------------------------------------


def test_closed_forms_are_the_simulated_seconds_over_drawn_sizes() -> None:
    """Equal where every chunk is whole; with others a round waits for the longest chunk, which is at most one byte longer."""
    drawn = np.random.default_rng(19)
    for _ in range(40):
        members, nodes = int(drawn.integers(1, 9)), int(drawn.integers(1, 6))
        ranks = members * nodes
        if ranks < 2:
            continue
        length = int(drawn.integers(ranks, 5000))
        near, far = (float(drawn.uniform(0.5, 9.0)) * US for _ in range(2))
        near_b, far_b = (float(drawn.uniform(0.1, 5.0)) * 1e-9 for _ in range(2))
        size, k, n = arrays(length, members, nodes)
        levels = {"near": Link(near, 1 / near_b), "far": Link(far, 1 / far_b)}
        for run, form in (
            (simulated.torus, textbook.torus_2d), (simulated.hierarchical, textbook.hierarchical),
        ):  # fmt: skip
            vectors, total = fresh(ranks, length)
            wires = Wires(near, near_b), Wires(far, far_b)
            np.testing.assert_array_equal(run(vectors, members, *wires), total)
            slack = (2 * members * near_b + 4 * nodes * far_b) * 1.0001
            found = form(size, members=k, nodes=n, **levels).seconds[0]
            assert -1e-12 <= sum(w.seconds for w in wires) - found <= slack
        vectors, total = fresh(ranks, length)
        wires = Wires(near, near_b)
        np.testing.assert_array_equal(simulated.ring(vectors, wires), total)
        found = textbook.ring(size, np.array([float(ranks)]), levels["near"], rounds_of=2.0).seconds[0]
        assert -1e-12 <= wires.seconds - found <= 2 * ranks * near_b


@pytest.mark.parametrize(("members", "nodes"), [(1, 8), (2, 4), (4, 4), (8, 2), (4, 1), (8, 3), (4, 3)])
def test_halving_with_neighbours_first_keeps_long_messages_inside_nodes(members: int, nodes: int) -> None:
    """1,024 k N bytes. Where p cuts through a node's ranks (8 x 3: p 16), folded pairs are taken to be far, as in the simulation."""
    length = 1024 * members * nodes
    vectors, total = fresh(members * nodes, length)
    near, far = Wires(*NEAR), Wires(*FAR)
    np.testing.assert_array_equal(simulated.halving_doubling(vectors, near, far, members), total)
    size, k, n = arrays(length, members, nodes)
    cost = textbook.halving_doubling(size, members=k, nodes=n, near=NEAR_LINK, far=FAR_LINK)
    assert cost.seconds[0] == pytest.approx(near.seconds + far.seconds, rel=1e-9)


def test_a_chain_passes_a_broadcast_on_in_chunks() -> None:
    """(K - 2 + c) (a + S b / c), seed 000:322 without latency: K 4 and 8 chunks take 10/8 of what one link takes for all."""
    assert simulated.chain(4, 1.0, 8, Wires(0.0, 1.0)) == pytest.approx(10 / 8)
    for ranks in (2, 3, 8):
        seconds = {c: simulated.chain(ranks, 1e6, c, Wires(A, B)) for c in range(1, 400)}
        size, n = arrays(1e6, ranks)
        for chunks in (1, 7, 64):
            found = textbook.chain(size, n, LINK, chunks=float(chunks)).seconds[0]
            assert found == pytest.approx(seconds[chunks], rel=1e-9)
        best = textbook.best_chunks(size, n, LINK)
        # The root is a real number, the simulation takes whole chunks: it is never above it by more than a flat minimum's width.
        assert textbook.chain(size, n, LINK, chunks=best).seconds[0] <= min(seconds.values()) * (1 + 1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7, 8, 13, 16, 32])
def test_two_trees_send_the_array_twice_and_climb_log2_levels(nodes: int) -> None:
    """NCCL prices 2 S / B and 2 floor(log2 N) hops; trees over other numbers of nodes than powers of two are one level deeper."""
    vectors, total = fresh(nodes, 64)
    found, sent, levels = simulated.two_trees(vectors)
    np.testing.assert_array_equal(found, total)
    assert max(sent.values()) <= 2 * 64
    if nodes > 3:
        assert max(sent.values()) == 2 * 64
    (n,) = arrays(nodes)
    group = Group(n, n / n, n, "nvlink", "hopper", 1e9, 1e9)
    tree = next(way for way in nccl_ways("all_reduce", np.array([64.0]), group) if way.algorithm == "tree")
    hops = round((tree.latency_s[0] / US - 6.8) / 5.0, 6)  # LL: 6.8 us and 5 us a hop
    assert hops == 2 * np.floor(np.log2(nodes))
    assert 0 <= levels - hops / 2 <= 1
