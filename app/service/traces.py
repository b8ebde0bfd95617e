"""Traces, as an option: spans of requests, jobs and statements of the database, sent by OpenTelemetry to a collector.

Nothing of its SDK is loaded where they are not asked for. Requests are FastAPI's own spans; statements are traced only within a request or
a job, since the runner's looks at its queue would drown everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from app.service.db.jobs import ClaimedJob
from app.settings import Settings
from cost_models.errors import InvalidInputError, Problem
from planner.request.checked_request import PRODUCT_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SPANS = "meshwright_spans"
"""Where a connection keeps the spans of its statements that are running."""


class Traces:
    """The spans of one process; none where it has no provider."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider

    def for_requests(self) -> dict[str, Any]:
        """What FastAPI is told of traces, as arguments of its application."""
        if self._provider is None:
            return {}
        chosen = {"tracing": True, "metrics": False, "logs": False, "auto_configure": False}
        return {"telemetry": {**chosen, "tracer_provider": self._provider}}

    @contextmanager
    def job(self, job: ClaimedJob) -> Iterator[Callable[[str], None]]:
        """A span around a job. What it yields is told how the job ended."""
        if self._provider is None:
            yield lambda _outcome: None
            return
        from opentelemetry.trace import Status, StatusCode

        tracer = self._provider.get_tracer("meshwright", PRODUCT_VERSION)
        about = {"meshwright.job.id": job.key.id, "meshwright.job.kind": job.kind}
        with tracer.start_as_current_span(f"job {job.kind}", attributes=about) as span:

            def ended(outcome: str) -> None:
                span.set_attribute("meshwright.job.outcome", outcome)
                if outcome == "failed":
                    span.set_status(Status(StatusCode.ERROR))

            yield ended

    def watch(self, engine: Engine) -> None:
        """Begins a span for every statement that a request or a job sends to this database. Its values are not told."""
        if self._provider is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span

        tracer = self._provider.get_tracer("meshwright", PRODUCT_VERSION)
        system = {"db.system.name": engine.dialect.name}

        # The arguments are SQLAlchemy's: connection, cursor, statement, parameters, context, whether many rows are sent.
        def begin(connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            span = None
            if get_current_span().is_recording():
                about = {**system, "db.query.text": statement}
                span = tracer.start_span(statement.split(None, 1)[0], kind=SpanKind.CLIENT, attributes=about)
            connection.info.setdefault(_SPANS, []).append(span)

        def end(connection: Any, *_rest: Any) -> None:
            span = connection.info[_SPANS].pop()
            if span is not None:
                span.end()

        def fail(context: Any) -> None:
            running = context.connection.info.get(_SPANS) if context.connection is not None else None
            span = running.pop() if running else None
            if span is not None:
                # The message of the database may hold values; its class says enough.
                span.set_status(Status(StatusCode.ERROR, type(context.original_exception).__name__))
                span.end()

        event.listen(engine, "before_cursor_execute", begin)
        event.listen(engine, "after_cursor_execute", end)
        event.listen(engine, "handle_error", fail)

    def close(self) -> None:
        """Sends what has not been sent yet."""
        if self._provider is not None:
            self._provider.shutdown()


def traces_of(settings: Settings) -> Traces:
    """The traces of a process with these settings. `OTEL_…` variables say where they go.

    Raises:
        InvalidInputError: traces are wanted, but the extra `otel` is not installed.
    """
    if not settings.traces:
        return Traces(None)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        message = f"traces need the extra `otel`, whose package {error.name} is not installed"
        hint = "Run pip install 'meshwright[otel]', or leave MESHWRIGHT_TRACES out."
        raise InvalidInputError([Problem("", message, hint)]) from error
    # The usual variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) come before our name.
    named = Resource({SERVICE_NAME: "meshwright"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)
