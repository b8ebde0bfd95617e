"""How the layers of one pipeline stage lie on its virtual stages, its *chunks*.

A step's time depends on what a stage holds in all and on how many layers it recomputes, its memory also on which chunks hold them:
an earlier chunk has more micro-batches in flight than a later one. So what a stage can hold at all is asked of the leanest chunks,
and of all that fit a split takes those that are most alike.
"""

from __future__ import annotations

from functools import lru_cache

Chunks = tuple[int, ...]


def chunk_layers(total: int, vpp: int, *, is_last: bool) -> Chunks:
    """How a stage's layers spread over its chunks where memory does not decide: nearly even, since the interleaved bubble is that
    of equal chunks.

    The chunk with the embedding is the first of its stage, that with the head the last: they get the smaller share.
    """
    base, extra = divmod(total, vpp)
    larger = range(extra) if is_last else range(vpp - extra, vpp)
    return tuple(base + (chunk in larger) for chunk in range(vpp))


@lru_cache(maxsize=1 << 16)
def leanest_chunks(total: int, vpp: int, *, block: int = 0, recomputed: int = 0) -> Chunks:
    """The chunks of so many layers that have the fewest micro-batches in flight.

    Args:
        total: layers of the stage.
        vpp: chunks of the stage, each of which may be without layers.
        block: layers that every chunk recomputes at most, where the strategy counts them by chunk; else 0.
        recomputed: layers that all chunks together then recompute, one of `recomputed_counts`.
    """
    # A chunk has no more micro-batches in flight than the one before it (M-5), so what may lie anywhere lies on the last one. What
    # is not recomputed lies behind a whole block, so the last chunk recomputes one before any other does.
    chunks, rest = [0] * vpp, recomputed
    for chunk in reversed(range(vpp)):
        chunks[chunk] = min(rest, block)
        rest -= chunks[chunk]
    chunks[-1] += total - recomputed
    return tuple(chunks)


def recomputed_counts(total: int, vpp: int, *, block: int) -> range:
    """The numbers of layers that a stage can recompute where every chunk recomputes its first `block` layers: the fewest where
    one chunk holds them all.
    """
    return range(min(total, block), min(total, block * vpp) + 1)


def towards_leanest(even: Chunks, leanest: Chunks) -> list[Chunks]:
    """Chunks from the first to the second, each with one layer more on the last chunk than the one before."""
    found, chunks = [even], list(even)
    while tuple(chunks) != leanest:
        largest = max(
            (chunk for chunk in range(len(chunks) - 1) if chunks[chunk] > leanest[chunk]),
            key=lambda chunk: (chunks[chunk], -chunk),
            default=None,
        )
        if largest is None:
            return [*found, leanest]
        chunks[largest] -= 1
        chunks[-1] += 1
        found.append(tuple(chunks))
    return found


def most_even(total: int, vpp: int, *, is_last: bool, block: int = 0, recomputed: int = 0) -> list[Chunks]:
    """Chunks of so many layers, the most even first and the leanest last; with `block` those that recompute so many."""
    leanest = leanest_chunks(total, vpp, block=block, recomputed=recomputed)
    graded = towards_leanest(chunk_layers(total, vpp, is_last=is_last), leanest)
    if block:
        graded = [chunks for chunks in graded if sum(min(held, block) for held in chunks) == recomputed]
    return graded if graded and graded[-1] == leanest else [*graded, leanest]
