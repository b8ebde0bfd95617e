"""Which open splits can hold the model at all, for many strategies at once, before any of them is built.

Stages are asked for the most layers that they hold in time and in memory. Where all of them together hold fewer than there
are, no split exists. Of several kinds of layer only the commonest is placed, as if the others took neither time nor room, so
that nothing is left out that could hold the model. Array suffixes: J layer kinds, N strategies, Q questions, each of which is
one stage of one strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.specs.model import Model
from cost_models.step.total import jitter_fraction
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.splits.lone_stages import Headroom, fits_alone
from planner.splits.model import SplitNumbers, slowest_allowed_s

SCREENED = (0, 2, 5, 12, 30)
"""Stages of a cluster that are asked beside the last two: the first ones hold the most micro-batches."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Stages that are asked, shape (Q,), the stages of a strategy in order."""

    row: Ints
    """Position of the strategy."""
    stage: Ints
    pool: Ints
    time_s: Floats
    """Seconds per micro-batch that it has for layers."""
    layer_s: Floats
    """Seconds of one of them."""
    stands_for: Ints
    """Stages that hold no more than this one, itself included, and are not asked themselves."""
    order: Ints
    """When it is asked: a strategy that early answers rule out is not asked again."""
    early_only_rule_out: bool = False
    """Whether early turns ask no more than whether a strategy is out, and the last turn asks every stage for its most. That
    is cheaper where no stage stands for others: an early answer then narrows little."""
    again_s: Floats | None = None
    """Seconds to recompute a layer, where a stage that recomputes in full may recompute as many as there is time for."""


def commonest_kind(model: Model) -> tuple[int, int]:
    """The kind that most layers are of, and how many."""
    counts = [model.layer_kinds.count(kind) for kind in model.distinct_kinds]
    return int(np.argmax(counts)), max(counts)


def most_layers(
    jobs: Sequence[Job], rows: Strategies, asked: Questions, *, headroom_fraction: Headroom
) -> tuple[Bools, Ints]:
    """Where all stages together could hold all layers of the commonest kind, shape (N,), and for such strategies the most
    layers on every stage that was asked, shape (Q,).

    A stage need not hold fewer than all layers less what the other stages could hold: below that the strategy is out. So
    what earlier answers took from the room that is left narrows the later questions.
    """
    _, total = commonest_kind(jobs[0].model)
    row, weight = asked.row, asked.stands_for
    in_time = np.clip(np.floor(asked.time_s / asked.layer_s + 1e-9), -1.0, float(total)).astype(np.int64)
    held = in_time.copy()
    possible = ~_any_of_row(row, in_time < 0, len(rows))  # an end of the model alone takes too long
    room = _sum_of_row(row, weight * np.maximum(held, 0), len(rows))

    def least_of(which: Ints) -> Ints:
        """The fewest layers that a stage must hold, given what the others may: below that its strategy is out."""
        return np.maximum(in_time[which] - (room - total)[row[which]] // weight[which], 0)

    *early, last = np.unique(asked.order).tolist() or [0]
    for turn in early if asked.early_only_rule_out else []:
        here = np.flatnonzero((asked.order == turn) & (possible & (room >= total))[row])
        fits = _fit(jobs, rows, asked, here, least_of(here), headroom_fraction=headroom_fraction)
        possible[row[here[~fits]]] = False
    for turn in [last] if asked.early_only_rule_out else [*early, last]:
        possible &= room >= total
        here = np.flatnonzero(((asked.order == turn) | asked.early_only_rule_out) & possible[row])
        least = least_of(here)
        held[here] = _most_that_fit(
            jobs, rows, asked, here, least=least, most=in_time[here], headroom=headroom_fraction
        )
        possible &= ~_any_of_row(row[here], held[here] < least, len(rows))
        room -= _sum_of_row(row[here], weight[here] * (in_time - held)[here], len(rows))
    return possible & (room >= total), held


def _any_of_row(row: Ints, flags: Bools, count: int) -> Bools:
    return np.bincount(row[flags], minlength=count) > 0


def _sum_of_row(row: Ints, values: Ints, count: int) -> Ints:
    return np.bincount(row, weights=values, minlength=count).astype(np.int64)


def _most_that_fit(
    jobs: Sequence[Job], rows: Strategies, asked: Questions, which: Ints, *, least: Ints, most: Ints, headroom: Headroom
) -> Ints:
    """The most layers between these that each stage holds, -1 where not even the least do; fewer layers need less memory."""
    low, high = least - 1, most.copy()
    # The least mostly rules a strategy out, which an early turn has already tried, and the most mostly settles the question.
    for tried in (most,) if asked.early_only_rule_out else (least, most):
        rest = np.flatnonzero((low < high) & (tried > low))
        good = _fit(jobs, rows, asked, which[rest], tried[rest], headroom_fraction=headroom)
        low[rest[good]] = tried[rest[good]]
        high[rest[~good]] = tried[rest[~good]] - 1
    while (rest := np.flatnonzero(low < high)).size:
        middle = (low[rest] + high[rest] + 1) // 2
        good = _fit(jobs, rows, asked, which[rest], middle, headroom_fraction=headroom)
        low[rest[good]] = middle[good]
        high[rest[~good]] = middle[~good] - 1
    return np.where(low < least, -1, low)


def _fit(
    jobs: Sequence[Job], rows: Strategies, asked: Questions, which: Ints, layers: Ints, *, headroom_fraction: Headroom
) -> Bools:
    """Whether these questions' stages hold so many layers of the commonest kind, shape of `which`."""
    found = np.zeros(len(which), np.bool_)
    model = jobs[0].model
    contents = np.zeros((len(which), len(model.distinct_kinds)), np.int64)
    contents[:, commonest_kind(model)[0]] = layers
    recomputed = np.full(len(which), -1)
    if asked.again_s is not None:
        left_s = np.maximum(asked.time_s[which] - layers * asked.layer_s[which], 0.0)
        again = np.floor(left_s / np.maximum(asked.again_s[which], 1e-30) + 1e-9)
        in_full = rows.recompute[asked.row[which]] == Recompute.FULL
        recomputed = np.where(in_full, np.minimum(again, layers), -1).astype(np.int64)
    for pool in np.unique(asked.pool[which]).tolist():
        here = np.flatnonzero(asked.pool[which] == pool)
        found[here] = fits_alone(
            jobs[pool],
            rows.take(asked.row[which[here]]),
            stage=asked.stage[which[here]],
            contents_NJ=contents[here],
            recomputed=recomputed[here],
            headroom_fraction=headroom_fraction,
        )
    return found


def could_hold(
    job: Job, rows: Strategies, numbers: SplitNumbers, *, limit_s: Floats, headroom_fraction: Headroom
) -> Bools:
    """Where the stages of a cluster of one kind can hold all layers in less than `limit_s` a step, shape (N,).

    A stage holds no more layers than a later one that holds no end of the model, since it has more micro-batches in flight:
    an answer stands for the stages before it that are not asked.
    """
    counts_J = np.array([job.model.layer_kinds.count(kind) for kind in job.model.distinct_kinds])
    kind, _ = commonest_kind(job.model)
    work_s = counts_J @ numbers.layer_JN + numbers.first + numbers.last
    allowed_s = slowest_allowed_s(rows, work_s, limit_s / (1.0 + jitter_fraction(job, rows))) * (1.0 + 1e-9)
    row, stage, stands_for, order = _screened(rows.pp.astype(np.int64))
    ends_s = numbers.first[row] * (stage == 0) + numbers.last[row] * (stage == rows.pp[row] - 1)
    asked = Questions(
        row=row,
        stage=stage,
        pool=np.zeros(len(row), np.int64),
        time_s=allowed_s[row] - ends_s,
        layer_s=numbers.layer_JN[kind][row],
        stands_for=stands_for,
        order=order,
        again_s=numbers.again_JN[kind][row],
    )
    return most_layers((job,), rows, asked, headroom_fraction=headroom_fraction)[0]


def _screened(pp: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Strategy, stage, how many stages it stands for, and when it is asked: SCREENED, then the last two stages."""
    turns: list[tuple[Ints, Ints]] = []
    for number in SCREENED:
        early = np.flatnonzero(number + 2 < pp if number > 0 else pp > 0)
        turns.append((early, np.full(len(early), number)))
    for number in (2, 1):
        late = np.flatnonzero(pp > number)
        turns.append((late, pp[late] - number))
    row, stage = (np.concatenate([turn[part] for turn in turns]) for part in (0, 1))
    order = np.repeat(np.arange(len(turns)), [len(rows) for rows, _ in turns])
    in_order = np.lexsort((stage, row))
    row, stage, order = row[in_order], stage[in_order], order[in_order]
    before = np.append(-1, stage[:-1])
    before[stage == 0] = -1
    return row, stage, np.where(stage == pp[row] - 1, 1, stage - before), order
