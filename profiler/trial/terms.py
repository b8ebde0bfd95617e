"""One traced step, sorted into the named terms of time. It reads events as PyTorch's profiler exports them, and knows no torch.

Every kernel belongs to a term by the operation that launched it: by the part of the model that this lies in, or, on the way back, that
its forward operation lay in. A communication counts where no computation runs beside it, and what is left of the step, in which the
device waits for the host, is `launch`; so the terms sum to the step.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from cost_models.terms import TIME_NAMES
from profiler.trial.host_spans import HostSpans, Span

STEP, SETTLE, EMBEDDING, HEAD, LOSS, OPTIMIZER = (
    f"meshwright:{part}" for part in ("step", "settle", "embedding", "head", "loss", "optimizer")
)
"""Names of the annotations that a traced step carries."""
_PARTS = {EMBEDDING: "embedding", HEAD: "head", LOSS: "loss", OPTIMIZER: "optimizer"}
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_COMMUNICATION_KERNEL = re.compile(r"^(?:nccl|rccl)", re.IGNORECASE)
# Stages send and receive in one call, whose kernel tells neither its group nor its size.
_TRANSFER_KERNEL, _BATCHED = re.compile(r"SendRecv", re.IGNORECASE), "nccl:coalesced"
# On processors nothing tells the group. DTensor's collectives are functional ones, as those of experts and of context are, which
# count as tensor parallelism's here; only stages send to each other.
_TENSORS_ON_HOST, _STAGES_ON_HOST = re.compile(r"^_c10d_functional::"), re.compile(r"^(?:gloo|c10d):+(?:send|recv)")
_COMMUNICATION_ON_HOST = re.compile(r"^(?:gloo:|c10d::)")
_ATTENTION = re.compile(
    r"scaled_dot_product|ScaledDotProduct|flash_attention|efficient_attention|flex_attention|FlashAttn", re.IGNORECASE
)
# Of launches whose loss no annotation names.
_LOSS = re.compile(r"cross_entropy|nll_loss|NllLoss|log_softmax|LogSoftmax", re.IGNORECASE)
_PRODUCT = re.compile(r"^aten::(?:mm|addmm|bmm|baddbmm|_grouped_mm|_scaled_mm|_scaled_grouped_mm|_addmm_activation)$")
_PRODUCT_KERNEL = re.compile(r"gemm|nvjet|cutlass.*(?:Gemm|Grouped)|xmma|cublas|_mm_", re.IGNORECASE)
# FSDP2 copies shards into and out of what its collectives carry; the cost models count these copies with the collectives [C-14].
_FSDP = re.compile(r"^(?:FSDP::|fsdp::)")
_GROUP = "Process Group Description"
_BY_GROUP = {"tp": "tp_comm", "cp": "cp_comm", "ep": "ep_comm", "pp": "pp_comm"}
# A dimension of a mesh that spans all ranks has no group of its own: PyTorch takes the first group of all, whatever the dimension.
_OF_ALL = "default_pg"


class Precedence(IntEnum):
    """What a moment belongs to where several things run: the first of these that does."""

    COMPUTATION = 0
    COMMUNICATION = 1
    UNTOLD = 2
    """A communication that may be another one's part on another thread."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something that ran, from `start` to `end` in the trace's microseconds, and the term that it belongs to."""

    term: str
    start: float
    end: float
    precedence: Precedence = Precedence.COMPUTATION
    alike: tuple[Any, ...] | None = None
    """Of a transfer that may begin by waiting for its peer: which others carry the same; None where that is not told apart."""


def terms_of_trace(
    events: Sequence[Mapping[str, Any]], *, pipeline: bool, spans_all: str | None = None
) -> dict[str, float]:
    """Seconds of one rank's traced step by term; they sum to the step, whose annotation is `STEP`.

    Args:
        events: `traceEvents` of a trace in Chrome's format.
        pipeline: whether stages wait for each other, so that waiting is the bubble.
        spans_all: the degree that holds all ranks, such as "tp"; None where several do, or replicas and shards.
    """
    spans = HostSpans(events)
    step = spans.named(STEP)
    on_device = [event for event in events if event.get("cat") in _DEVICE_WORK]
    if on_device:
        works = [_of_kernel(event, spans, pipeline=pipeline, spans_all=spans_all) for event in on_device]
    else:
        works = list(_of_host(spans, pipeline=pipeline))
    return shares(_waiting_apart(works), start=step.start, end=step.end)


def shares(works: Iterable[Work], *, start: float, end: float) -> dict[str, float]:
    """Seconds of each term between two moments of a trace.

    What computes at the same time shares the time evenly. Communication counts only while nothing computes, and `launch` is the
    time in which nothing runs at all.
    """
    changes: list[tuple[float, int, Work]] = []
    for work in works:
        begins, stops = max(work.start, start), min(work.end, end)
        if stops > begins:
            changes += [(begins, 1, work), (stops, -1, work)]
    changes.sort(key=lambda change: change[0])
    spent: dict[str, float] = defaultdict(float)
    active: dict[Precedence, Counter[str]] = {precedence: Counter() for precedence in Precedence}
    now = start
    for moment, change, work in changes:
        _spend(spent, active, moment - now)
        active[work.precedence][work.term] += change
        now = moment
    _spend(spent, active, end - now)
    return {name: spent[name] / 1e6 for name in TIME_NAMES if spent[name] > 0}


def _spend(spent: dict[str, float], active: Mapping[Precedence, Counter[str]], span: float) -> None:
    counts = next((counts for counts in active.values() if counts.total()), None)
    if counts is None:
        spent["launch"] += span
        return
    for term, count in counts.items():
        spent[term] += span * count / counts.total()


def waits_least(ranks: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The terms of the rank that waits least: in a pipeline the stage that sets the pace."""
    return min(ranks, key=lambda terms: terms.get("launch", 0.0) + terms.get("pp_bubble", 0.0))


def of_step(terms_s: Mapping[str, float], *, step_time_s: float) -> dict[str, float]:
    """The terms of a traced step as those of a step that was not traced.

    Tracing slows the host, not the kernels: the difference is taken from `launch`, and what is more than that from all terms alike.
    """
    busy_s = sum(terms_s.values()) - terms_s.get("launch", 0.0)
    if busy_s <= step_time_s:
        left = {"launch": step_time_s - busy_s} if step_time_s > busy_s else {}
        return {name: value for name, value in {**terms_s, "launch": 0.0, **left}.items() if value > 0}
    return {name: value * step_time_s / busy_s for name, value in terms_s.items() if name != "launch"}


def _of_kernel(event: Mapping[str, Any], spans: HostSpans, *, pipeline: bool, spans_all: str | None) -> Work:
    start = float(event["ts"])
    end = start + float(event.get("dur", 0.0))
    launched_by = spans.launching(event)
    name = str(event["name"])
    if _COMMUNICATION_KERNEL.match(name):
        told = event.get("args", {})
        if _GROUP not in told:
            told = next((span.arguments for span in spans.around(launched_by) if "Group size" in span.arguments), told)
        above = list(spans.around(launched_by))
        # Shards may lie on all ranks, too, and then share the group; what FSDP launches says so.
        if spans_all is not None and told.get(_GROUP) == _OF_ALL and not any(_FSDP.match(span.name) for span in above):
            told = {**told, _GROUP: spans_all}
        if pipeline and _GROUP not in told and _TRANSFER_KERNEL.search(name) and above and above[0].name == _BATCHED:
            told = {**told, _GROUP: "mesh_pp"}
        return _communication(told, start, end, above, pipeline=pipeline)
    around = list(spans.around(launched_by))
    placed = _placed(around, spans, start, end, is_product=bool(_PRODUCT_KERNEL.search(name)))
    # A compiled region launches kernels under its own name, and theirs say what they are.
    return Work("attention" if placed[0] == "elementwise" and _ATTENTION.search(name) else placed[0], *placed[1:])


def _of_host(spans: HostSpans, *, pipeline: bool) -> Iterable[Work]:
    """What ran where there is no device but the processors: operations as the innermost ones of their threads."""
    for span, start, end in spans.innermost():
        around = list(spans.around(span))
        names = [each.name for each in around]
        if SETTLE in names:
            yield _communication({}, start, end, around, pipeline=pipeline)
        elif any(map(_TENSORS_ON_HOST.match, names)):
            yield _communication({_GROUP: "mesh_tp"}, start, end, around, pipeline=pipeline)
        elif any(map(_STAGES_ON_HOST.match, names)):
            yield replace(_communication({_GROUP: "mesh_pp"}, start, end, around, pipeline=pipeline), alike=None)
        elif any(map(_COMMUNICATION_ON_HOST.match, names)):
            yield replace(_communication({}, start, end, around, pipeline=pipeline), precedence=Precedence.UNTOLD)
        elif any(each.is_operation or _FSDP.match(each.name) for each in around):
            yield Work(*_placed(around, spans, start, end, is_product=False))


def _communication(
    told: Mapping[str, Any], start: float, end: float, around: Iterable[Span], *, pipeline: bool
) -> Work:
    """A collective or transfer, by the group of ranks that it runs in; meshes call theirs `mesh_` and a name."""
    names = {span.name for span in around}
    group = str(told.get(_GROUP, "")).removeprefix("mesh_")
    if SETTLE in names:
        return Work("pp_bubble" if pipeline else "jitter", start, end, Precedence.COMMUNICATION)
    # Clipping sums the norm over all ranks, a number; across stages that waits for the last of them.
    if OPTIMIZER in names:
        return Work("pp_bubble" if group == "pp" else "optimizer", start, end, Precedence.COMMUNICATION)
    # Groups of replicas and shards have many names, alone and flattened; the others have one.
    term = _BY_GROUP.get(group, "dp_comm")
    size = tuple(told.get(key) for key in ("Collective name", "In msg nelems", "Out msg nelems"))
    return Work(term, start, end, Precedence.COMMUNICATION, alike=size if term == "pp_comm" else None)


def _placed(
    around: Sequence[Span], spans: HostSpans, start: float, end: float, *, is_product: bool
) -> tuple[str, float, float, Precedence]:
    """The fields of what was launched inside of these spans, innermost first."""
    if any(_FSDP.match(span.name) for span in around):
        return "dp_comm", start, end, Precedence.COMMUNICATION
    return _term_of(around, spans, is_product=is_product), start, end, Precedence.COMPUTATION


def _term_of(around: Sequence[Span], spans: HostSpans, *, is_product: bool) -> str:
    """The term of a computation that was launched inside of these spans, innermost first."""
    node = next((place for place, span in enumerate(around) if span.is_backward_node), None)
    # Before recomputation, which only layers have.
    if (part := _part(around)) is not None:
        return part
    if node is not None:
        # Operations that a later backward could ask for, run on the way back: a forward that is done again.
        if any(span.sequence is not None and not span.is_of_node(around[node]) for span in around[:node]):
            return "recompute"
        if "AccumulateGrad" in around[node].name:
            return "grad_accumulation"
        if (forward := spans.forward_of(around[node])) is not None and (part := _part(list(spans.around(forward)))):
            return part
    if any(_LOSS.search(span.name) for span in around):
        return "loss"
    if any(_ATTENTION.search(span.name) for span in around):
        return "attention"
    if is_product or any(_PRODUCT.match(span.name) for span in around):
        return "gemm"
    return "elementwise"


def _part(around: Sequence[Span]) -> str | None:
    for span in around:
        if span.name in _PARTS:
            return _PARTS[span.name]
        if span.name.startswith("Optimizer."):
            return "optimizer"
    return None


def _waiting_apart(works: Sequence[Work]) -> Iterable[Work]:
    """The same with every transfer between stages cut in two: waiting for the peer, which is the bubble, and sending.

    Sending takes what the fastest transfer of the same size took; the data come at the end.
    """
    shortest: dict[tuple[Any, ...], float] = {}
    for work in works:
        if work.alike is not None:
            shortest[work.alike] = min(shortest.get(work.alike, float("inf")), work.end - work.start)
    for work in works:
        if work.alike is None:
            yield work
            continue
        sent_from = work.end - shortest[work.alike]
        yield replace(work, term="pp_bubble", end=sent_from)
        yield replace(work, start=sent_from)
