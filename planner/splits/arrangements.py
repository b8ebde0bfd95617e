"""Which layers of a model's order make stages over virtual stages hold what they should, where layers are of several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.splits.model import SplitModel, layers_in_order

# Orders that exist are mostly found at once, and CP-SAT looks for the others.
_MOST_STEPS = 400
"""Virtual stages that are tried in search of an order."""


def arrangements(model: SplitModel, split: Sequence[int], *, exactly: bool) -> Iterator[tuple[int, ...]]:
    """Layers of every virtual stage that hold as many on each stage as these choices; whether they fit is not asked.

    First nearly even chunks, whatever kinds these then hold; then, with `exactly`, chunks that hold what the choices say.
    """
    totals = [int(choices.layers[index]) for choices, index in zip(model.choices, split, strict=True)]
    yield layers_in_order(totals, model.vpp)
    if exactly:
        found = _Order(model, split).find()
        if found is not None:
            yield found


class _Order:
    """A search for chunks that together hold what every stage should, virtual stage by virtual stage."""

    def __init__(self, model: SplitModel, split: Sequence[int]) -> None:
        self.pp, self.vpp = model.pp, model.vpp
        self.kinds = model.kind_of_layer.tolist()
        self.rest = [choices.contents_CJ[index].tolist() for choices, index in zip(model.choices, split, strict=True)]
        self.steps = 0

    def find(self) -> tuple[int, ...] | None:
        """Layers of every virtual stage, None where none were found."""
        return self._from(0, 0)

    def _from(self, number: int, position: int) -> tuple[int, ...] | None:
        if number == self.pp * self.vpp:
            return () if position == len(self.kinds) else None
        rest = self.rest[number % self.pp]
        left = sum(rest)
        chunks = self.vpp - number // self.pp
        sizes = range(left + 1) if chunks > 1 else range(left, left + 1)
        for size in sorted(sizes, key=lambda size: (abs(size - left / chunks), size)):
            self.steps += 1
            if self.steps > _MOST_STEPS:
                return None
            held = self.kinds[position : position + size]
            if len(held) < size or any(held.count(kind) > count for kind, count in enumerate(rest)):
                continue
            for kind in held:
                rest[kind] -= 1
            found = self._from(number + 1, position + size)
            for kind in held:
                rest[kind] += 1
            if found is not None:
                return (size, *found)
        return None
