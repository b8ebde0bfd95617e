"""How a stage's layers lie on its chunks, against every way to lay them."""

from __future__ import annotations

from itertools import product

import pytest

from planner.splits.chunks import leanest_chunks, most_even, recomputed_counts


def in_flight(chunks: tuple[int, ...], *, pp: int, stage: int) -> int:
    """Layers times the micro-batches in flight of their chunk: of the 2 (p - s - 1) + (v - 1) p + 1 chunks that a stage runs
    before its first backward, each chunk runs p in a row (Narayanan et al. 2021).
    """
    vpp = len(chunks)
    counts = [0] * vpp
    for number in range(2 * (pp - stage - 1) + (vpp - 1) * pp + 1):
        counts[number // pp % vpp] += 1
    return sum(count * held for count, held in zip(counts, chunks, strict=True))


def every_way(total: int, vpp: int) -> list[tuple[int, ...]]:
    return [way for way in product(range(total + 1), repeat=vpp) if sum(way) == total]


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (3, 2), (2, 3), (4, 3)])
def test_the_leanest_chunks_are_the_leanest_of_all_ways(pp: int, vpp: int) -> None:
    for stage in range(pp):
        for total in range(9):
            ways = every_way(total, vpp)
            found = leanest_chunks(total, vpp)
            assert found in ways
            assert in_flight(found, pp=pp, stage=stage) == min(in_flight(way, pp=pp, stage=stage) for way in ways)
            for block in range(1, 7):
                by_count: dict[int, list[tuple[int, ...]]] = {}
                for way in ways:
                    by_count.setdefault(sum(min(held, block) for held in way), []).append(way)
                assert list(recomputed_counts(total, vpp, block=block)) == sorted(by_count)
                for count, alike in by_count.items():
                    lean = leanest_chunks(total, vpp, block=block, recomputed=count)
                    assert lean in alike
                    least = min(in_flight(way, pp=pp, stage=stage) for way in alike)
                    assert in_flight(lean, pp=pp, stage=stage) == least
                    assert set(most_even(total, vpp, is_last=stage == pp - 1, block=block, recomputed=count)) <= set(
                        alike
                    )
