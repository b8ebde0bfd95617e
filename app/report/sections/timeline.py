"""The pipeline's schedule over one step: folded where it repeats, whole on demand, and as files for two viewers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from gzip import compress
from itertools import groupby
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from app.plan_cells import seconds
from app.report.downloads import entries_of, snapshot_micro_batches, snapshot_of, trace_of
from app.report.figures.timeline import WIDTH, Bar, Panel, Row, timeline_figure
from app.report.passes import passes
from app.report.report import PlanView, Report
from app.report.section import Section, section
from cost_models.errors import MeshwrightError
from cost_models.terms import TIME_TERMS
from planner.one_plan.neighbours import ChangedPriceError
from planner.timeline.memory import fullest_stage
from planner.timeline.orders import Kind
from planner.timeline.step import RankSummary, Timeline, plan_timeline

TITLE = "The schedule of one step"
MOST_BARS = 4096
"""Bars up to which the whole step is drawn."""
_FOLDED_BARS = 1000
"""Bars of the folded figure, 25 kB; where all stages together have more, some of them are drawn."""
_JITTER_DRAWN = 0.15
"""Most that is drawn of the wait for the slowest rank, as a share of what else is drawn of a folded step."""
_CUT_BARS = 800
"""Bars up to which a panel is drawn whole."""
_DETAILED_BARS = 320
"""Bars up to which micro-batches are numbered and communication is drawn upon them."""
_WIDE_BARS = 120.0
"""Bars in a row for which a figure as wide as the column has room."""
_SMALL = 1e-4
"""Share of a step below which a term that follows the pipeline is not told."""
_TELLING_DIFFERENCE = 1e-6
"""Share of a step from which the difference to the closed form is worth a sentence."""
_EMBEDDED_TASKS, _EMBEDDED_ENTRIES = 3000, 4000
"""Tasks of a trace and entries of a snapshot that are part of a file: at most 40 kB and 25 kB, compressed and as they stand there."""
TRACE_VIEWERS = "opens in Perfetto (ui.perfetto.dev) and chrome://tracing"
MEMORY_VIEWER = "drop it on pytorch.org/memory_viz"
SNAPSHOT_APPROXIMATES = "In the memory snapshot the activations of a micro-batch come and go whole, scaled so that the peak is that of the estimate."
_SERVED = "the report that meshwright serve shows has it"
_PHRASES = {term.name: term.phrase for term in TIME_TERMS}
_SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "gpipe": "GPipe",
    "zb-h1": "ZB-H1",
    "zb-v": "ZB-V",
    "dualpipe-v": "DualPipe-V",
}


def timeline(report: Report, view: PlanView, *, room_for_whole: bool = True) -> Section | None:
    """How the stages of a plan spend one optimizer step; the whole step only where the page has room for it."""
    try:
        found = plan_timeline(view.row, view.evaluation, extra=report.calibrations, allow_files=report.allow_files)
    except (ChangedPriceError, MeshwrightError) as error:
        return section(
            "timeline",
            TITLE,
            rank=view.rank,
            told=None,
            why=f"The schedule cannot be computed as the plan was priced: {error}.",
        )
    panels = _panels(found)
    ranks = _drawn_ranks(found, panels)
    panels = _cut(found, panels, ranks)
    # In a file the best plan alone is shown in full, so that ten plans keep it small.
    in_full = view.rank == 1 or report.address is not None
    downloads = _downloads(report, view, found) if in_full else None
    told = {
        "lead": _lead(found),
        "figure": _folded(found, ranks, panels, view),
        "caption": _caption(found, panels, len(ranks)),
        "rows": _table(found, view),
        "notes": _notes(found),
        "whole": _whole(found, view, room=room_for_whole) if in_full else None,
        "downloads": downloads,
        "snapshot": SNAPSHOT_APPROXIMATES if any("memory" in link["file"] for link in downloads or ()) else "",
    }
    return section("timeline", TITLE, rank=view.rank, told=told, why="")


def _lead(found: Timeline) -> str:
    """What the schedule is, and what the figure folds."""
    m = found.micro_batches
    batches = f"{m:,} micro-batch{'es' if m > 1 else ''}"
    if found.ranks == 1:
        text = f"There is no pipeline: every rank runs {batches} one after the other, forward and backward in turn."
    else:
        chunks = f" of {found.chunks} virtual stages each" if found.chunks > 1 else ""
        text = f"{_SCHEDULES[found.schedule.label]}: {batches} pass {found.ranks} stages{chunks}."
    if not found.repeats:
        return text + " No period of the schedule repeats often enough to be folded."
    parts = []
    for at, repeat in enumerate(found.repeats):
        count = repeat.count + (found.left_out if at == 0 else 0)
        what = f"{repeat.micro_batches} micro-batches" if repeat.micro_batches > 1 else "one micro-batch"
        parts.append(f"a period of {seconds(repeat.period_s)} s with {what} repeats {count:,} times")
    return f"{text} In the tasks as played, {' and '.join(parts)}; it is drawn once."


def _rows(found: Timeline, ranks: Sequence[int], panels: Sequence[Panel]) -> list[Row]:
    """The bars of these stages that lie in the panels: tasks, with what is repeated in front of a backward, and the step's end."""
    events, times = found.events, found.seconds
    whole_V = np.array(times.forward_V) + np.array(times.backward_V)
    share_V = np.divide(times.exposed_by_stage, whole_V, out=np.zeros_like(whole_V), where=whole_V > 0).tolist()
    bars: dict[int, list[Bar]] = {rank: [] for rank in ranks}
    chosen = np.flatnonzero(_in_panels(found, panels) & np.isin(events.rank_E, ranks))
    for task in passes(found, chosen):
        begin, told = task.start_s + task.repeated_s, bars[task.rank]
        if task.repeated_s:
            told.append(Bar("repeated", task.start_s, begin, task.chunk))
        share = share_V[task.stage]
        told.append(Bar(task.kind.label, begin, task.end_s, task.chunk, str(task.micro_batch), exposed_share=share))
    for each in bars.values():
        at = events.seconds
        for name, its in found.ends_s.items():
            if its > 0:
                each.append(Bar(name, at, at + its))
            at += its
    return [Row(rank, each) for rank, each in bars.items()]


def _in_panels(found: Timeline, panels: Sequence[Panel]) -> NDArray[np.bool_]:
    """Whether each task lies in a panel, shape (E,)."""
    events = found.events
    inside = [(events.start_E < panel.end_s) & (events.end_E > panel.start_s) for panel in panels]
    return np.asarray(np.any(inside, axis=0))


def _bars_of(found: Timeline, panels: Sequence[Panel], ranks: Sequence[int] | None = None) -> int:
    """How many bars the tasks in these panels are, on these stages together; on all where none are named."""
    # A backward that begins with repeated forwards is drawn as two bars.
    pieces = 1 + (np.array(found.seconds.repeated_V) > 0)[found.events.stage_E]
    pieces[np.isin(found.events.kind_E, (Kind.FORWARD, Kind.WEIGHT_GRADIENT))] = 1
    chosen = _in_panels(found, panels)
    if ranks is not None:
        chosen &= np.isin(found.events.rank_E, ranks)
    return int(pieces[chosen].sum())


def _end_s(found: Timeline) -> float:
    """When the step ends, in the time of the played tasks."""
    return found.events.seconds + sum(found.ends_s.values())


def _panels(found: Timeline) -> list[Panel]:
    """Warm-up, one period of each stretch that repeats, what lies between, and cool-down with the end of the step."""
    end = _end_s(found)
    if not found.repeats:
        return [Panel("step", "one step", 0.0, end)]
    panels, at, late = [], 0.0, 0.0
    for number, repeat in enumerate(found.repeats):
        if repeat.start_s - at > 1e-9 * end:
            panels.append(
                Panel(
                    "between" if number else "warm-up",
                    "until then" if number else "warm-up",
                    at,
                    repeat.start_s,
                    at + late,
                )
            )
        count = repeat.count + (found.left_out if number == 0 else 0)
        # Bars are those of the first period; the axis tells when it begins in the whole step.
        period = Panel(
            "period",
            f"one period, × {count:,}",
            repeat.start_s,
            repeat.start_s + repeat.period_s,
            repeat.start_s + late,
        )
        panels.append(period)
        late += found.left_out_s if number == 0 else 0.0
        at = repeat.end_s
    if end - at > 1e-9 * end:
        # In a long step, waiting for the slowest rank is longer than all that is drawn of the pipeline.
        told = end - found.ends_s["jitter"]
        drawn = sum(panel.end_s - panel.start_s for panel in panels) + told - at
        end = told + min(found.ends_s["jitter"], _JITTER_DRAWN * drawn)
        is_drained = found.events.seconds - at <= 1e-9 * end
        panels.append(Panel("cool-down", "end of the step" if is_drained else "cool-down", at, end, at + late))
    return panels


def _drawn_ranks(found: Timeline, panels: Sequence[Panel]) -> list[int]:
    """All stages, or some of them, the first and the last included, where there are too many bars to be told apart."""
    # Stages between the ends look much alike, so that evenly spaced ones tell what all do.
    total, ranks = _bars_of(found, panels), found.ranks
    if total <= _FOLDED_BARS or ranks <= 2:
        return list(range(ranks))
    count = max(2, min(ranks, _FOLDED_BARS * ranks // total))
    return sorted({round(at) for at in np.linspace(0, ranks - 1, count).tolist()})


def _cut(found: Timeline, panels: Sequence[Panel], ranks: Sequence[int]) -> list[Panel]:
    """The panels, with the middle left out of those that do not repeat and still have more bars than a figure can show."""
    kept = []
    for panel in panels:
        count, long = _bars_of(found, [panel], ranks), panel.end_s - panel.start_s
        if count <= _CUT_BARS:
            kept.append(panel)
            continue
        part = long * _CUT_BARS / (2 * count)
        told = panel.start_s if panel.told_at_s is None else panel.told_at_s
        end = Panel(f"{panel.name}-end", "… its end", panel.end_s - part, panel.end_s, told + long - part)
        kept += [replace(panel, end_s=panel.start_s + part), end]
    return kept


def _folded(found: Timeline, ranks: Sequence[int], panels: Sequence[Panel], view: PlanView) -> Markup:
    return timeline_figure(
        _rows(found, ranks, panels),
        panels,
        name=view.name("timeline"),
        title=f"The schedule of plan {view.rank}" + (", folded" if found.repeats else ""),
        description=_description(found),
        details=_bars_of(found, panels) <= _DETAILED_BARS,
    )


def _description(found: Timeline) -> str:
    """The numbers of the figure in sentences."""
    parts = [f"The pipeline takes {seconds(found.pipeline_s)} s, from the first forward to the last backward."]
    if found.repeats:
        first, last = found.repeats[0], found.repeats[-1]
        parts.append(
            f"The warm-up ends after {seconds(first.start_s)} s; the cool-down begins at "
            f"{seconds(last.end_s + found.left_out_s)} s."
        )
    if found.ranks > 1:
        idle = [each.idle_s for each in found.summaries()]
        least, most = int(np.argmin(idle)), int(np.argmax(idle))
        parts.append(
            f"Stage {least} waits least in the bubble, {seconds(idle[least])} s, and stage {most} longest, "
            f"{seconds(idle[most])} s."
        )
    if ends := _ends(found):
        parts.append(f"After the last backward: {', '.join(ends)}.")
    return " ".join(parts)


def _caption(found: Timeline, panels: Sequence[Panel], drawn: int) -> str:
    """What a reader must know to read the figure, where it is not plain."""
    parts = []
    if found.chunks > 1:
        parts.append("Shades tell the virtual stages of a stage apart.")
    if any(panel.name.endswith("-end") for panel in panels):
        parts.append("Of what does not repeat, the middle is left out.")
    if panels[-1].end_s < _end_s(found) * (1 - 1e-9):
        parts.append("Waiting for the slowest rank is cut short.")
    if drawn < found.ranks:
        parts.append(f"{drawn} of {found.ranks} stages are drawn; the numbers below are those of all.")
    return " ".join(parts)


def _table(found: Timeline, view: PlanView) -> list[dict[str, Any]]:
    """A row for each stage; neighbours that are told alike share one."""
    pools = [stage.get("pool") for stage in view.evaluation["memory"]["stages"]]
    told = [(pools[each.rank], _told(found, each)) for each in found.summaries()]
    table, first = [], 0
    for (pool, numbers), group in groupby(told):
        last = first + len(list(group)) - 1
        stages = str(first) if first == last else f"{first} to {last}"
        table.append({"stages": stages, "pool": pool, **numbers})
        first = last + 1
    return table


_ROUNDING = 1e-9
"""Share of a pipeline's seconds below which a bubble is none."""


def _told(found: Timeline, rank: RankSummary) -> dict[str, str | None]:
    """What is told of a stage, in words."""
    # Passes are added up in another order than the step, so that a stage which never waits is left with the last digits of a double.
    idle_s = rank.idle_s if rank.idle_s > _ROUNDING * found.pipeline_s else 0.0
    return {
        "forward": seconds(rank.forward_s),
        "backward": seconds(rank.backward_s),
        "repeated": seconds(rank.repeated_s) if any(found.seconds.repeated_V) else None,
        "exposed": seconds(sum(rank.exposed_s.values())),
        "sends": seconds(rank.sends_s),
        "idle": seconds(idle_s),
        "idle_share": f"{100.0 * idle_s / found.pipeline_s:.1f} %",
    }


def _notes(found: Timeline) -> str:
    """What the figure approximates, said where it matters."""
    notes = []
    if any(found.seconds.exposed_by_stage):
        notes.append(
            "Where in a pass exposed communication falls is not modelled; it is told as a share of forward and backward together."
        )
    ends = _ends(found)
    if ends:
        told = f"After the last backward stand {', '.join(ends)}"
        notes.append(told + ("; the last lies spread over the whole step." if found.ends_s["jitter"] > 0 else "."))
    if _repeats_reductions(found):
        notes.append(
            "With grad_sync each, gradients are reduced in every micro-batch, though these reductions are drawn at the end."
        )
    if any(found.events.paired_E):
        notes.append("A forward and a backward that overlap are drawn one after the other; both end together.")
    difference = found.difference_s
    if abs(difference) > _TELLING_DIFFERENCE * found.step_time_s:
        share = 100.0 * abs(difference) / found.step_time_s
        notes.append(
            f"Played task by task, the step is {1000.0 * abs(difference):,.3g} ms ({share:.2g} %) "
            f"{'shorter' if difference > 0 else 'longer'} than the closed form says that priced the plan."
        )
    return " ".join(notes)


def _repeats_reductions(found: Timeline) -> bool:
    """Whether reductions that recur in every micro-batch are told among what follows the pipeline."""
    each = bool(found.strategies.grad_sync_each[0]) and found.micro_batches > 1
    return each and found.ends_s["dp_comm"] > _SMALL * found.step_time_s


def _ends(found: Timeline) -> list[str]:
    """What follows the last backward, but for what nobody would see."""
    return [
        f"{_PHRASES[name]} {seconds(its)} s" for name, its in found.ends_s.items() if its > _SMALL * found.step_time_s
    ]


def _whole(found: Timeline, view: PlanView, *, room: bool) -> dict[str, Any] | None:
    """The whole step, or why it is not drawn; None where the folded figure is whole."""
    if not found.repeats:
        return None
    panels = [Panel("step", "one step", 0.0, _end_s(found))]
    count = _bars_of(found, panels)
    if count > MOST_BARS or not found.is_whole:
        bars = f"{count:,}" if found.is_whole else f"more than {count:,}"
        return {"figure": None, "why": f"The whole step has {bars} bars, too many to be drawn here."}
    if not room:
        return {"figure": None, "why": f"The file has no room for the whole step of {count:,} bars; {_SERVED}."}
    wide = next(each for each in (1, 2, 4) if each == 4 or count / found.ranks <= each * _WIDE_BARS)
    drawn = timeline_figure(
        _rows(found, range(found.ranks), panels),
        panels,
        name=view.name("timeline-whole"),
        title=f"The whole schedule of plan {view.rank}",
        description=_description(found),
        width=wide * WIDTH,
        details=count <= MOST_BARS // 4,
    )
    return {"figure": drawn, "wide": wide, "count": f"{count:,}", "why": ""}


def _downloads(report: Report, view: PlanView, found: Timeline) -> list[dict[str, str]]:
    """Links to the trace and the memory snapshot: paths on served pages, the data itself in a file."""
    stage = fullest_stage(found)
    trace = "the step as a Chrome trace"
    memory = f"the predicted memory of stage {stage} over the step, the fullest, as a memory snapshot"
    # A page that is served need not carry what it can fetch.
    if report.address is not None:
        base = report.link(view.rank)
        return [
            {"href": f"{base}/{path}", "file": f"plan-{view.rank}-{path}", "what": what, "viewer": viewer}
            for path, what, viewer in (("trace.json", trace, TRACE_VIEWERS), ("memory.pickle", memory, MEMORY_VIEWER))
        ]
    links = []
    if len(found.events) <= _EMBEDDED_TASKS and found.is_whole:
        packed = trace_of(found, title=f"plan {view.rank}")
        links.append(_embedded(packed, file=f"plan-{view.rank}-trace.json.gz", what=trace, viewer=TRACE_VIEWERS))
    shown = snapshot_micro_batches(found, most_entries=_EMBEDDED_ENTRIES)
    if entries_of(found, shown) <= _EMBEDDED_ENTRIES:
        if shown < found.micro_batches:
            memory += f", with {shown} of its {found.micro_batches:,} micro-batches"
        packed = snapshot_of(found, most_entries=_EMBEDDED_ENTRIES)
        file = f"plan-{view.rank}-memory.pickle.gz"
        links.append(_embedded(packed, file=file, what=memory, viewer=f"unpack it and {MEMORY_VIEWER}"))
    return links


def _embedded(data: bytes, *, file: str, what: str, viewer: str) -> dict[str, str]:
    """A link that holds what it leads to, compressed: a page is no place for more."""
    packed = b64encode(compress(data, 9, mtime=0)).decode()
    return {"href": f"data:application/gzip;base64,{packed}", "file": file, "what": what, "viewer": viewer}
