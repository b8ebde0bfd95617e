"""How a framework spreads decoder layers over pipeline stages: the types of a rule, and the splits that several share.

A split lists the layers of each of the pp*vpp virtual stages in model order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cost_models.specs.model import Model

Split = tuple[int, ...]
ENDS = 2
"""Virtual stages that need no layer: the first, which holds the embedding, and the last, which holds the head."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """What becomes of a model's layers where nobody tells the framework, and what it can be told."""

    name: str
    """As the documents of the frameworks call it; `even` refuses layers that don't divide by stages."""
    own: Callable[[Model, int, str], Split | None]
    """The framework's own split of a model over so many virtual stages at a release; None where it refuses."""
    told: Callable[[int, int, int, str], Split | None] | None = None
    """A nearly even split of so many layers over pp and vpp that a release can be told; None where there is no such split, or
    where the framework takes none at all."""
    can_leave_stages_empty: bool = False
    """`own` refuses because a stage would be without layers, not because these don't divide."""


def even_split(num_layers: int, stages: int) -> Split | None:
    """The same number of layers everywhere, None where they don't divide."""
    return (num_layers // stages,) * stages if num_layers % stages == 0 else None


def own_even_split(model: Model, stages: int, _version: str) -> Split | None:
    """The same number of layers everywhere, as a `SplitRule` asks for it."""
    return even_split(model.num_layers, stages)


def suggested_split(num_layers: int, stages: int) -> Split:
    """A nearly even split whose ends, which also hold the embedding and the head, are the smaller ones."""
    base, extra = divmod(num_layers, stages)
    before = (stages - extra) // 2
    return (base,) * before + (base + 1,) * extra + (base,) * (stages - extra - before)


def told_any_split(num_layers: int, pp: int, vpp: int, _version: str) -> Split:
    """`suggested_split`, by a framework whose every release can be told any split."""
    return suggested_split(num_layers, pp * vpp)


EVEN = SplitRule("even", own_even_split)
