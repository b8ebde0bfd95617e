"""The host's side of a trace: operations and annotations as they lie in one another, and what launched a kernel.

A trace is what PyTorch's profiler exports (Chrome's format, times in microseconds).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ON_HOST = frozenset({"cpu_op", "user_annotation"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_EVALUATE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"Backward\d*$")

Thread = tuple[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """One operation or annotation on a thread."""

    name: str
    start: float
    end: float
    thread: Thread
    parent: Span | None
    is_operation: bool
    sequence: int | None
    """Number that an operation of the forward shares with its node of the backward; None where it makes no node."""
    arguments: Mapping[str, Any]

    @property
    def is_backward_node(self) -> bool:
        """Whether it is the engine's evaluation of one node of the backward."""
        return self.name.startswith(_EVALUATE)

    def is_of_node(self, node: Span) -> bool:
        """Whether it is the node's own function rather than an operation inside of it."""
        return self.name == node.name.removeprefix(_EVALUATE) or bool(_NODE.search(self.name))


class HostSpans:
    """All spans of a trace's host threads."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        by_thread: dict[Thread, list[Mapping[str, Any]]] = defaultdict(list)
        self._launches: dict[Any, tuple[Thread, float]] = {}
        for event in events:
            if event.get("ph") != "X":
                continue
            thread = (event.get("pid"), event.get("tid"))
            if event.get("cat") in _ON_HOST:
                by_thread[thread].append(event)
            elif event.get("cat") in _RUNTIME:
                self._launches[event.get("args", {}).get("correlation")] = (thread, float(event["ts"]))
        # Per thread: the moments at which its innermost span changes, and that span from then on.
        self._changes: dict[Thread, tuple[list[float], list[Span | None]]] = {}
        self._by_name: dict[str, Span] = {}
        self._by_id: dict[Any, Span] = {}
        self._forward: dict[int, Span] = {}
        for thread, own in by_thread.items():
            self._changes[thread] = self._nested(thread, own)

    def named(self, name: str) -> Span:
        """The first span of a name, which must be there."""
        return self._by_name[name]

    def launching(self, event: Mapping[str, Any]) -> Span | None:
        """The innermost span from which a kernel was launched; None if the trace does not say."""
        arguments = event.get("args", {})
        # By the moment of the launch rather than by the number of the operation, which leaves out annotations inside of it.
        launch = self._launches.get(arguments.get("correlation"))
        found = None if launch is None else self._innermost_at(*launch)
        return found or self._by_id.get(arguments.get("External id"))

    def around(self, span: Span | None) -> Iterator[Span]:
        """The span and those around it, innermost first."""
        while span is not None:
            yield span
            span = span.parent

    def forward_of(self, node: Span) -> Span | None:
        """The operation of the forward whose backward a node is."""
        return None if node.sequence is None else self._forward.get(node.sequence)

    def innermost(self) -> Iterator[tuple[Span, float, float]]:
        """What each thread was in, from when to when."""
        for moments, spans in self._changes.values():
            for span, start, end in zip(spans, moments, moments[1:], strict=False):
                if span is not None and end > start:
                    yield span, start, end

    def _innermost_at(self, thread: Thread, moment: float) -> Span | None:
        moments, spans = self._changes.get(thread, ([], []))
        place = bisect_right(moments, moment) - 1
        return spans[place] if place >= 0 else None

    def _nested(self, thread: Thread, events: list[Mapping[str, Any]]) -> tuple[list[float], list[Span | None]]:
        # Of two that begin at once the longer one is the outer one.
        events.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
        moments: list[float] = []
        spans: list[Span | None] = []
        open_spans: list[Span] = []

        def close_until(moment: float) -> None:
            while open_spans and open_spans[-1].end <= moment:
                moments.append(open_spans.pop().end)
                spans.append(open_spans[-1] if open_spans else None)

        for event in events:
            span = self._span(event, thread, open_spans, close_until)
            moments.append(span.start)
            spans.append(span)
            open_spans.append(span)
        close_until(float("inf"))
        return moments, spans

    def _span(self, event: Mapping[str, Any], thread: Thread, open_spans: list[Span], close_until: Any) -> Span:
        start = float(event["ts"])
        close_until(start)
        arguments = event.get("args", {})
        sequence = arguments.get("Sequence number")
        # Rounding may let an operation end after the one around it.
        end = min(start + float(event.get("dur", 0.0)), open_spans[-1].end if open_spans else float("inf"))
        span = Span(
            name=str(event["name"]), start=start, end=end, thread=thread,
            parent=open_spans[-1] if open_spans else None, is_operation=event["cat"] == "cpu_op",
            sequence=sequence if isinstance(sequence, int) and sequence >= 0 else None, arguments=arguments,
        )  # fmt: skip
        self._by_name.setdefault(span.name, span)
        if (number := arguments.get("External id")) is not None:
            self._by_id.setdefault(number, span)
        # Numbers count the nodes that a thread has made; the last operation of a number is the one that made the node. Operations
        # inside of a backward are of a graph that is thrown away, or of none.
        if span.sequence is not None and not any(each.is_backward_node for each in (span, *open_spans)):
            self._forward[span.sequence] = span
        return span
