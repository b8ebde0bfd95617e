"""What every stage of an open split may hold: within a time, within reach of the other stages, and within its GPU's memory.

Array suffixes as in `planner.splits.model`: C choices of a stage, J layer kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from cost_models.errors import MeshwrightError
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Ints, Strategies
from planner.splits.lone_stages import Headroom, fits_alone
from planner.splits.model import SplitModel, StageChoices
from planner.splits.stage_contents import own_counts, products_of, runs_of
from planner.splits.virtual_stages import is_played

MOST_CHOICES = 40_000
"""Choices over all stages above which a model is not built: the bound on stage time prunes far below this."""


class TooManyChoicesError(MeshwrightError):
    """The stages of a strategy have more choices than are weighed, so that its best split stays unknown."""

    code = "split-too-large"


# A stage that takes exactly the longest allowed time must not be lost to the last bit of a sum.
_SLACK = 1.0 + 1e-12
Split = TypeVar("Split", bound=SplitModel)


def with_choices(
    bare: Split, *, slowest_s: float, headroom_fraction: Headroom, most_layers: Ints | None = None
) -> Split | None:
    """The model with the choices of every stage, None where some stage has none, memory aside.

    Args:
        bare: the model without choices.
        slowest_s: seconds per micro-batch that no stage may exceed; infinite where nothing is known.
        headroom_fraction: share of capacity that stays free; None where plans may be at risk.
        most_layers: the most layers that fit on each stage, where there is one kind of layer and they are known.

    Raises:
        TooManyChoicesError: there are more than MOST_CHOICES.
    """
    choices = []
    known: dict[tuple[int, bool, bool], StageChoices] = {}
    for stage, pool in enumerate(bare.pools):
        # Stages differ in what they could hold only by their pool and by the ends of the model.
        alike = (pool, stage == 0, stage == bare.pp - 1)
        found = known.get(alike) or known.setdefault(alike, _all_choices(bare, stage))
        kept = found.time_s <= slowest_s * _SLACK
        choices.append(found.take(kept if most_layers is None else kept & (found.layers <= most_layers[stage])))
    if not all(map(len, choices)):
        return None
    choices = _within_reach(choices, len(bare.kind_of_layer))
    if not all(map(len, choices)):
        return None
    if sum(map(len, choices)) > MOST_CHOICES:
        message = f"the stages of some strategies can hold more than {MOST_CHOICES:,} combinations of layers, which are not weighed"
        raise TooManyChoicesError(message, hint="Fix vpp, or list the splits to compare.")
    # Memory is asked last, since it costs the most: time and reach have left few choices by then.
    if most_layers is None:
        choices = _fitting(bare, choices, headroom_fraction=headroom_fraction)
    if bare.per_stage_recompute:  # what fits only with layers recomputed may take too long with them
        choices = [each.take(each.time_s <= slowest_s * _SLACK) for each in choices]
    return replace(bare, choices=tuple(choices), headroom_fraction=headroom_fraction)


def _all_choices(bare: SplitModel, stage: int) -> StageChoices:
    """Everything that a stage could hold, memory aside; nothing recomputed where stages choose that themselves."""
    contents = runs_of(tuple(bare.kind_of_layer.tolist())) if bare.vpp == 1 else _products(bare)
    totals = contents.sum(axis=1)
    if bare.per_stage_recompute:
        return _priced(bare, stage, contents, np.zeros_like(totals))
    which, counts = own_counts(bare.row, totals)
    return _priced(bare, stage, contents[which], counts)


def _products(bare: SplitModel) -> Ints:
    """Contents of a stage whose chunks lie apart in the model: any so many layers of each kind."""
    return products_of(np.bincount(bare.kind_of_layer, minlength=bare.num_kinds))


def _priced(bare: SplitModel, stage: int, contents: Ints, recomputed: Ints) -> StageChoices:
    """These contents as choices of a stage."""
    numbers, is_first, is_last = bare.numbers[bare.pools[stage]], stage == 0, stage == bare.pp - 1
    # Which layers are recomputed is left open, so each counts as the average of those that the stage holds.
    totals = np.maximum(contents.sum(axis=1), 1)
    again_s = recomputed / totals * (contents @ numbers.again_JN[:, 0])
    ends_s = float(numbers.first[0]) * is_first + float(numbers.last[0]) * is_last
    ends = float(numbers.embedding[0]) * is_first + float(numbers.head[0]) * is_last
    return StageChoices(
        contents_CJ=contents,
        recomputed=recomputed,
        time_s=contents @ numbers.layer_JN[:, 0] + again_s + ends_s,
        dense=contents @ numbers.dense_JN[:, 0] + ends,
        expert=contents @ numbers.expert_JN[:, 0] + float(numbers.head_expert[0]) * is_last,
    )


def _within_reach(choices: list[StageChoices], num_layers: int) -> list[StageChoices]:
    """Choices with which the other stages can hold the rest."""
    most, least = (sum(int(edge(found.layers)) for found in choices) for edge in (np.max, np.min))
    return [
        found.take(
            (found.layers >= num_layers - (most - found.layers.max()))
            & (found.layers <= num_layers - (least - found.layers.min()))
        )
        for found in choices
    ]


def _fitting(bare: SplitModel, choices: list[StageChoices], *, headroom_fraction: Headroom) -> list[StageChoices]:
    """The choices that fit their own pool's GPU; all of a pool are asked of the memory model at once."""
    found = list(choices)
    for pool in dict.fromkeys(bare.pools):
        stages = [stage for stage, its in enumerate(bare.pools) if its == pool]
        stage = np.repeat(stages, [len(choices[stage]) for stage in stages])
        held = np.concatenate([choices[stage].contents_CJ for stage in stages])
        fits = partial(_fits, bare.jobs[pool], bare.row, headroom_fraction)
        if bare.per_stage_recompute:
            count = fewest_recomputed(held, partial(_fits_with, fits, stage, held))
            for number in stages:
                own = (stage == number) & (count >= 0)
                found[number] = _priced(bare, number, held[own], count[own])
        else:
            asked = np.concatenate([choices[stage].recomputed for stage in stages]) if bare.block else None
            good = fits(stage, held, asked)
            for number in stages:
                found[number] = choices[number].take(good[stage == number])
                if bare.block and bare.num_kinds == 1 and not is_played(bare):
                    # Which chunks hold the layers is the stage's own affair, and recomputing more is never faster.
                    fewest = np.unique(found[number].layers, return_index=True)[1]
                    found[number] = found[number].take(fewest)
    return found


def _fits(
    job: Job, row: Strategies, headroom_fraction: Headroom, stage: Ints, held: Ints, recomputed: Ints | None
) -> Bools:
    return fits_alone(
        job,
        row.take(np.zeros(len(stage), np.int64)),
        stage=stage,
        contents_NJ=held,
        recomputed=recomputed,
        headroom_fraction=headroom_fraction,
    )


def _fits_with(fits: partial[Bools], stage: Ints, held: Ints, which: Ints, recomputed: Ints) -> Bools:
    return np.asarray(fits(stage[which], held[which], recomputed))


def fewest_recomputed(held: Ints, fits: Callable[[Ints, Ints], Bools]) -> Ints:
    """The fewest recomputed layers with which each stage fits, -1 where none do: more of them free more memory.

    Args:
        held: layers of each kind on each stage, shape (N, J).
        fits: whether the stages at these positions fit with so many recomputed layers each.
    """
    totals = held.sum(axis=1)
    found = np.full(len(totals), -1)
    # Where layers differ, recomputing the last one may hold more for its own backward than it frees, so both are asked.
    for most in (totals, np.maximum(totals - 1, 0))[: held.shape[1]]:
        rest = np.flatnonzero(found < 0)
        good = fits(rest, most[rest])
        found[rest[good]] = most[rest[good]]
    # Bisection for all stages at once; a stage that does not fit at all has -1 and is never asked again.
    low = np.zeros(len(totals), np.int64)
    while (rest := np.flatnonzero(low < found)).size:
        middle = (low[rest] + found[rest]) // 2
        good = fits(rest, middle)
        found[rest[good]] = middle[good]
        low[rest[~good]] = middle[~good] + 1
    return found
