"""The schedule's section: bars are read back from the figures and compared with the played tasks."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import pickletools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from timeline_rows import SPLIT, timeline_row

from app.report.build import build_report
from app.report.downloads import chrome_trace, memory_snapshot
from app.report.figures.timeline import Bar, Panel, Row, timeline_figure
from app.report.pages import report_file
from app.report.report import PlanView, Report
from app.report.sections.timeline import timeline
from builders import dense_model, request_of
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.timeline.orders import Kind
from planner.timeline.step import Timeline, plan_timeline

READ_BY_VIEWER = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK",
    "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE", "BINPUT", "BINUNICODE",
    "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM",
}  # fmt: skip
"""The opcodes that torch/utils/viz/MemoryViz.js (unpickle) knows."""


@pytest.fixture(scope="module")
def piped() -> Report:
    """Plans with four stages of two chunks and 32 micro-batches."""
    request = request_of(dense_model(16), num_nodes=1, seq_length=2048, global_batch_size=64)
    fixed = {"pp": 4, "tp": 1, "vpp": 2, "micro_batch_size": 1}
    return build_report(plan({**request, "constraints": {"fixed": fixed}, "top_k": 2}))


@pytest.fixture(scope="module")
def played(piped: Report) -> Timeline:
    view = piped.plans[0]
    return plan_timeline(view.row, view.evaluation)


def body(report: Report, view: PlanView | None = None) -> str:
    section = timeline(report, view or report.plans[0])
    assert section is not None
    return str(section.body)


def figures(text: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


Read = dict[tuple[str, int, str], list[tuple[float, float]]]
"""By panel, stage and kind: (start, end) in seconds of every bar."""


def bars(svg: ET.Element) -> Read:
    found: Read = defaultdict(list)
    for panel in svg.iter("g"):
        if "data-panel" not in panel.attrib:
            continue
        x, scale, begin = (float(panel.attrib[f"data-{name}"]) for name in ("x", "per-second", "from"))
        for row in panel.iter("g"):
            for path in row.findall("path") if "data-stage" in row.attrib else []:
                for left, long in re.findall(r"M([\d.]+) [-\d.]+h([\d.]+)", path.attrib["d"]):
                    start = begin + (float(left) - x) / scale
                    key = (panel.attrib["data-panel"], int(row.attrib["data-stage"]), path.attrib["data-kind"])
                    found[key].append((start, start + float(long) / scale))
    return found


def tolerance(svg: ET.Element) -> float:
    """Seconds of the tenth of a unit to which coordinates are written, and of the seam between bars."""
    scale = next(float(g.attrib["data-per-second"]) for g in svg.iter("g") if "data-panel" in g.attrib)
    return 0.75 / scale


def tasks(played: Timeline, rank: int, kind: Kind) -> list[tuple[float, float]]:
    events = played.events
    mine = (events.rank_E == rank) & (events.kind_E == kind)
    return list(zip(events.start_E[mine].tolist(), events.end_E[mine].tolist(), strict=True))


def test_the_whole_step_has_every_task_where_it_was_played(piped: Report, played: Timeline) -> None:
    _, whole = figures(body(piped))
    read, near = bars(whole), tolerance(whole)
    for rank in range(4):
        for kind, name in ((Kind.FORWARD, "forward"), (Kind.BACKWARD, "backward")):
            drawn, expected = sorted(read["step", rank, name]), tasks(played, rank, kind)
            assert len(drawn) == len(expected) == 64
            for (start, end), (begun, over) in zip(drawn, expected, strict=True):
                assert start == pytest.approx(begun, abs=near)
                assert end == pytest.approx(over, abs=near)


def test_idle_time_of_the_figure_is_the_tables(piped: Report, played: Timeline) -> None:
    """Lines where a stage waits, up to the last backward; what follows has bars of its own."""
    _, whole = figures(body(piped))
    read = bars(whole)
    for summary in played.summaries():
        idle = sum(end - start for start, end in read["step", summary.rank, "idle"])
        assert idle == pytest.approx(summary.idle_s + summary.sends_s, abs=60 * tolerance(whole))


def test_the_table_tells_every_stage_once(piped: Report, played: Timeline) -> None:
    """Stages that are told alike share a row, as "1 to 2"; the numbers are those of the summaries, with three digits."""
    rows = re.findall(r'<th scope="row">([^<]*)</th>\s*<td class="number">([^<]*)</td>', body(piped))
    stages: list[int] = []
    for named, forward in rows:
        first, last = (int(each) for each in (named.split(" to ") * 2)[:2])
        stages += range(first, last + 1)
        for stage in range(first, last + 1):
            assert float(forward) == pytest.approx(played.summaries()[stage].forward_s, rel=5e-3)
    assert stages == [0, 1, 2, 3]


def test_the_folded_figure_has_warm_up_one_period_and_cool_down(piped: Report, played: Timeline) -> None:
    folded, _ = figures(body(piped))
    (repeat,) = played.repeats
    read = bars(folded)
    assert {panel for panel, _, _ in read} == {"warm-up", "period", "cool-down"}
    for rank in range(4):
        # Four micro-batches pass both chunks of a rank in one period; a task that runs across its edge is drawn on both sides.
        assert 8 <= len(read["period", rank, "forward"]) <= 9
    titles = [text.text for text in folded.iter("text") if "data-title" in text.attrib]
    assert titles == ["warm-up", f"one period, × {repeat.count}", "cool-down"]
    (description,) = [element.text or "" for element in folded.iter("desc")]
    assert "The pipeline takes" in description


def test_the_ends_of_the_step_are_the_evaluations_terms(piped: Report, played: Timeline) -> None:
    _, whole = figures(body(piped))
    terms = piped.plans[0].evaluation["time_breakdown_s"]
    ((start, end),) = bars(whole)["step", 0, "jitter"]
    assert end - start == pytest.approx(terms["jitter"], abs=2 * tolerance(whole))
    assert end == pytest.approx(played.played_s, abs=2 * tolerance(whole))


def view_of(row: dict[str, Any]) -> PlanView:
    (evaluation,) = evaluate_rows([row])
    return PlanView(plan={"rank": 2, "strategy": row["strategy"]}, row=row, evaluation=evaluation, layers=None)


def test_a_long_step_cuts_its_waiting_short() -> None:
    """Of 512 micro-batches' wait for the slowest rank, 15 % of what else is drawn: warm-up, one period, cool-down."""
    view = view_of(timeline_row(pp=4, dp=2, training={"global_batch_size": 1024}))
    text, played = body(Report({}, (view,)), view), plan_timeline(view.row)
    (svg,) = figures(text)
    (repeat,) = played.repeats
    jitter = played.ends_s["jitter"]
    rest = played.played_s - jitter - repeat.end_s
    limit = 0.15 * (repeat.start_s + repeat.period_s + rest)
    assert jitter > 2 * limit
    ((start, end),) = bars(svg)["cool-down", 0, "jitter"]
    assert end - start == pytest.approx(limit, abs=2 * tolerance(svg))
    assert "is cut short" in text


def test_forwards_that_do_not_repeat_are_drawn_from_both_ends() -> None:
    """GPipe, whose stages run their forwards each at its own pace, with 1,024 micro-batches: the file stays small."""
    view = view_of(
        timeline_row("torchtitan", pp=2, dp=1, schedule="gpipe", training={**SPLIT, "global_batch_size": 1024})
    )
    text = body(Report({}, (view,)), view)
    assert len(text) <= 30_000
    (svg,) = figures(text)
    names = [panel.attrib["data-panel"] for panel in svg.iter("g") if "data-panel" in panel.attrib]
    assert names[:2] == ["warm-up", "warm-up-end"]
    assert "the middle is left out" in text


def test_sizes(piped: Report) -> None:
    """A folded figure takes at most 25 kB, and each download 40 kB."""
    text = body(piped)
    folded = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert folded is not None
    assert len(folded[0]) <= 25_000
    links = re.findall(r'href="(data:[^"]*)"', text)
    assert len(links) == 2
    assert all(len(link) <= 40_000 for link in links)


def test_four_thousand_bars_take_at_most_98_kib() -> None:
    rows = [
        Row(stage, [Bar("forward" if at % 2 else "backward", at * 1.0, at + 1.0, at % 4) for at in range(256)])
        for stage in range(16)
    ]
    drawn = timeline_figure(
        rows, [Panel("step", "one step", 0.0, 256.0)], name="n", title="t", description="d", width=4160.0, details=False
    )
    assert len(drawn) <= 98 * 1024
    assert sum(map(len, bars(ET.fromstring(str(drawn))).values())) == 4096


def test_exposed_communication_is_a_share_of_a_bars_height() -> None:
    """A quarter of a row's 29 units, rounded to a tenth, under two bars that touch: one strip as long as both."""
    rows = [Row(0, [Bar("forward", 0.0, 1.0, exposed_share=0.25), Bar("forward", 1.0, 3.0, exposed_share=0.25)])]
    drawn = timeline_figure(rows, [Panel("step", "one step", 0.0, 4.0)], name="n", title="t", description="d")
    svg = ET.fromstring(str(drawn))
    (strip,) = svg.findall(".//g[@data-stage]/path[@data-kind='exposed']")
    assert strip.attrib["stroke-width"] == "7.2"
    ((start, end),) = bars(svg)["step", 0, "exposed"]
    assert (start, end) == (pytest.approx(0.0), pytest.approx(3.0, abs=0.01))


RECURRING = "gradients are reduced in every micro-batch"
SNAPSHOT = "come and go whole, scaled so that the peak is that of the estimate"


@pytest.mark.parametrize(
    ("grad_sync", "batch", "is_said"), [("each", 64, True), ("last", 64, False), ("each", 4, False)]
)
def test_reductions_that_recur_are_said_where_the_plan_has_them(grad_sync: str, batch: int, is_said: bool) -> None:
    """Drawn behind the last backward; with one micro-batch that is where they are."""
    training = {"global_batch_size": batch}
    view = view_of(timeline_row("deepspeed", tp=1, pp=1, dp=4, zero=1, grad_sync=grad_sync, training=training))
    assert plan_timeline(view.row).ends_s["dp_comm"] > 0
    assert (RECURRING in body(Report({}, (view,)), view)) == is_said


def test_reductions_within_the_passes_are_not_told_as_drawn_at_the_end() -> None:
    view = view_of(timeline_row("torchtitan", pp=1, dp=8, zero=3, grad_sync="each", training=SPLIT))
    assert RECURRING not in body(Report({}, (view,)), view)


def test_the_snapshots_approximation_is_said_beside_it(piped: Report) -> None:
    assert SNAPSHOT in body(piped)
    assert SNAPSHOT in body(replace(piped, address="/plans/plan_1"), piped.plans[1])
    # Of the other plans a file has no snapshot.
    assert SNAPSHOT not in body(piped, piped.plans[1])


def test_other_plans_of_a_file_have_neither_the_whole_step_nor_downloads(piped: Report) -> None:
    text = body(piped, piped.plans[1])
    assert len(figures(text)) == 1
    assert "download=" not in text


def test_served_pages_link_the_downloads(piped: Report) -> None:
    text = body(replace(piped, address="/plans/plan_1"), piped.plans[1])
    assert re.findall(r'href="([^"]*)"', text) == [
        "/plans/plan_1/ranked/2/trace.json",
        "/plans/plan_1/ranked/2/memory.pickle",
    ]


def test_the_embedded_downloads_are_the_functions_answers(piped: Report) -> None:
    trace, memory = re.findall(r'href="data:application/gzip;base64,([^"]*)"', body(piped))
    assert gzip.decompress(base64.b64decode(trace)) == chrome_trace(piped.plans[0])
    assert gzip.decompress(base64.b64decode(memory)) == memory_snapshot(piped.plans[0])


def test_a_changed_price_is_said(piped: Report) -> None:
    view = piped.plans[0]
    other = replace(view, evaluation={**view.evaluation, "step_time_s": 1.0})
    assert "cannot be computed as the plan was priced" in body(piped, other)


def test_the_trace_has_every_task_in_microseconds(piped: Report, played: Timeline) -> None:
    document = json.loads(chrome_trace(piped.plans[0]))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    for rank in range(4):
        forwards = [event for event in events if event["pid"] == rank and event["name"] == "forward"]
        assert [(event["ts"], event["ts"] + event["dur"]) for event in forwards] == [
            (round(1e6 * start), round(1e6 * end)) for start, end in tasks(played, rank, Kind.FORWARD)
        ]
        assert {event["args"]["chunk"] for event in forwards} == {0, 1}
        assert {event["args"]["micro_batch"] for event in forwards} == set(range(32))
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert names == {f"plan 1, stage {stage}" for stage in range(4)}


def snapshot(view: PlanView) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(memory_snapshot(view))
    return found


def test_the_snapshot_rises_to_the_peak_as_the_viewer_adds_it_up(piped: Report) -> None:
    """What the viewer starts with are the active blocks of the segments that no entry takes; then it follows the entries."""
    view = piped.plans[0]
    document = snapshot(view)
    (segment,), (entries,) = document["segments"], document["device_traces"]
    now = sum(block["requested_size"] for block in segment["blocks"] if block["state"] == "active_allocated")
    most = now
    for entry in entries:
        now += entry["size"] * {"alloc": 1, "free_requested": 0, "free_completed": -1}[entry["action"]]
        most = max(most, now)
    peak = max(stage["peak_allocated_bytes"] for stage in view.evaluation["memory"]["stages"])
    assert most == pytest.approx(peak, abs=200)


def test_no_two_blocks_of_the_snapshot_share_memory(piped: Report) -> None:
    document = snapshot(piped.plans[0])
    (segment,), (entries,) = document["segments"], document["device_traces"]
    begin, end = segment["address"], segment["address"] + segment["total_size"]
    alive = {
        block["address"]: block["requested_size"] for block in segment["blocks"] if block["state"] == "active_allocated"
    }
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    for entry in entries:
        if entry["action"] == "alloc":
            _assert_free(entry["addr"], entry["size"], alive=alive, begin=begin, end=end)
            alive[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert alive.pop(entry["addr"]) == entry["size"]


def _assert_free(address: int, size: int, *, alive: dict[int, int], begin: int, end: int) -> None:
    assert begin <= address
    assert address + size <= end
    assert all(address + size <= other or other + held <= address for other, held in alive.items())


def test_the_viewer_can_read_the_pickle(piped: Report) -> None:
    opcodes: Sequence[Any] = list(pickletools.genops(memory_snapshot(piped.plans[0])))
    assert {opcode.name for opcode, _, _ in opcodes} <= READ_BY_VIEWER
    assert next(argument for opcode, argument, _ in opcodes if opcode.name == "PROTO") == 4


def test_torch_reads_the_snapshot(piped: Report) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    document = snapshot(piped.plans[0])
    assert "allocated" in viewer.segsum(document)
    assert "cudaMalloc" not in viewer.trace(document)
    assert "MemoryViz.js" in viewer.trace_plot(document)


def test_where_room_is_short_the_whole_step_is_left_out_and_the_file_says_so(piped: Report) -> None:
    """The folded figure of the same schedule stays, and so does everything else of the first plan."""
    roomy = report_file(piped, scripts=False)
    short = report_file(piped, scripts=False, most_bytes=50_000)
    title = "The whole schedule of plan 1"
    assert title in roomy
    assert title not in short
    assert "The file has no room for the whole step of" in short
    assert "the report that meshwright serve shows has it" in short
    names = [f'id="{name}-1"' for name in ("memory", "time", "timeline", "mesh", "layers", "launch")]
    assert all(name in short and name in roomy for name in names)


def test_what_rounding_leaves_of_a_step_is_no_bubble() -> None:
    """One stage waits for no other; eleven micro-batches of its passes add up to the step but for the last digits of a double."""
    request = request_of(dense_model(6), num_nodes=1, global_batch_size=88)
    fixed = {"pp": 1, "dp": 8, "micro_batch_size": 1, "zero": 1, "recompute": "none"}
    report = build_report(plan({**request, "constraints": {"fixed": fixed}, "top_k": 1}))
    assert not re.findall(r"[0-9]e-1[0-9]", re.sub(r"<svg.*?</svg>", "", body(report), flags=re.DOTALL))
