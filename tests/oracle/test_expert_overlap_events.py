"""The time that overlapped experts leave exposed, against an event-by-event pipeline that runs passes in pairs.

Megatron Core combines one micro-batch's forward with another's backward (pipeline_parallel/combined_1f1b.py). While the pipeline
fills there are forwards alone, one chunk more than otherwise (schedules.py, get_pp_rank_microbatches), and while it drains there
are as many backwards alone. A pair takes less than its two passes by what it hides.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.inputs.model import resolve_model
from cost_models.step.pipeline import unpaired_fraction
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, build_strategies

Pass = tuple[str, int, int]
"""("F" or "B"; chunk; micro-batch)."""
Order = list[tuple[Pass, ...]]
"""Single passes, and pairs of a forward and a backward."""


def combined(rank: int, *, ranks: int, micro_batches: int, chunks: int) -> Order:
    """Interleaved 1F1B with one more chunk of warm-up, whose steady state consists of pairs."""
    total = micro_batches * chunks
    warm_up = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1, total)

    def one(kind: str, position: int) -> Pass:
        group, inside = divmod(position, ranks * chunks)
        chunk = inside // ranks
        return kind, chunk if kind == "F" else chunks - 1 - chunk, group * ranks + inside % ranks

    steady = [(one("F", warm_up + k), one("B", k)) for k in range(total - warm_up)]
    alone = [(one("B", position),) for position in range(total - warm_up, total)]
    return [(one("F", position),) for position in range(warm_up)] + steady + alone


def simulated_s(orders: list[Order], *, forward: float, backward: float, hidden: float) -> float:
    """Seconds until every rank is done; a chunk's passes take `forward` and `backward` alone, `hidden` less as a pair."""
    ranks = len(orders)
    last = ranks * (1 + max(chunk for task in orders[0] for _, chunk, _ in task)) - 1
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * ranks, [0] * ranks

    def needed(one: Pass, rank: int) -> tuple[str, int, int] | None:
        kind, chunk, m = one
        stage = chunk * ranks + rank
        if kind == "F":
            return ("F", stage - 1, m) if stage else None
        return ("B", stage + 1, m) if stage < last else ("F", stage, m)

    while any(position[r] < len(orders[r]) for r in range(ranks)):
        moved = False
        for r in range(ranks):
            if position[r] == len(orders[r]):
                continue
            task = orders[r][position[r]]
            needs = [key for key in (needed(one, r) for one in task) if key is not None]
            if any(key not in done for key in needs):
                continue
            seconds = sum(forward if kind == "F" else backward for kind, _, _ in task) - hidden * (len(task) - 1)
            clock[r] = max([clock[r], *(done[key] for key in needs)]) + seconds
            done |= {(kind, chunk * ranks + r, m): clock[r] for kind, chunk, m in task}
            position[r] += 1
            moved = True
        assert moved, "deadlock"
    return max(clock)


def strategy(*, pp: int, vpp: int, micro_batches: int) -> Strategies:
    sizes = {
        "num_layers": pp * vpp,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    layouts = build_layouts([Layout(pp, vpp, (1,) * (pp * vpp))], model=resolve_model(sizes))
    row = dict.fromkeys(ARRAY_FIELDS, 1) | {"pp": pp, "vpp": vpp, "layout": 0, "num_micro_batches": micro_batches}
    row["schedule"] = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    return build_strategies({name: [value] for name, value in row.items()}, layouts=layouts)


def closed_form_s(*, pp: int, vpp: int, micro_batches: int, forward: float, backward: float, hidden: float) -> float:
    """m * t + (p - 1) / v * t of equal stages, t between what a micro-batch takes in pairs and what it takes alone."""
    share = float(unpaired_fraction(strategy(pp=pp, vpp=vpp, micro_batches=micro_batches))[0])
    each_s = vpp * (forward + backward - hidden + share * hidden)
    return micro_batches * each_s + (pp - 1) / vpp * each_s


times = st.floats(min_value=0.2, max_value=1.0)


def test_the_simulator_itself_by_hand() -> None:
    """One rank, two micro-batches: a forward of 1, a pair of 1 + 2 - 0.5, a backward of 2."""
    order = combined(0, ranks=1, micro_batches=2, chunks=1)
    assert order == [(("F", 0, 0),), (("F", 0, 1), ("B", 0, 0)), (("B", 0, 1),)]
    assert simulated_s([order], forward=1.0, backward=2.0, hidden=0.5) == 5.5


@given(micro_batches=st.integers(1, 12), forward=times, ratio=st.floats(1.0, 3.0), share=st.floats(0.0, 0.9))
def test_without_a_pipeline_the_first_forward_and_the_last_backward_are_alone(
    micro_batches: int, forward: float, ratio: float, share: float
) -> None:
    shape = {"forward": forward, "backward": ratio * forward, "hidden": share * forward}
    order = combined(0, ranks=1, micro_batches=micro_batches, chunks=1)
    closed = closed_form_s(pp=1, vpp=1, micro_batches=micro_batches, **shape)
    assert closed == pytest.approx(simulated_s([order], **shape))


@given(
    ranks=st.integers(2, 5), groups=st.integers(1, 5), chunks=st.integers(2, 4), forward=times, ratio=st.floats(1.0, 3.0),
    share=st.floats(0.0, 0.9),
)  # fmt: skip
def test_filling_and_draining_hide_nothing(
    ranks: int, groups: int, chunks: int, forward: float, ratio: float, share: float
) -> None:
    """Exact with two groups of p micro-batches or more; with one group pairs are few, and the form is within a tenth."""
    shape = {"forward": forward, "backward": ratio * forward, "hidden": share * forward}
    micro_batches = groups * ranks
    orders = [combined(rank, ranks=ranks, micro_batches=micro_batches, chunks=chunks) for rank in range(ranks)]
    closed = closed_form_s(pp=ranks, vpp=chunks, micro_batches=micro_batches, **shape)
    assert closed == pytest.approx(simulated_s(orders, **shape), rel=1e-9 if groups > 1 else 0.1)
