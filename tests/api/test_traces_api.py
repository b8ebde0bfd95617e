"""Traces as a collector of OpenTelemetry receives them, and their absence where nobody asked for them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.main import create_app
from app.settings import Settings

TRACE = "0af7651916cd43dd8448eb211c80319c"
PLAN = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 2048, "global_batch_size": 8, "precision": "bf16", "framework": "megatron"},
}


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Address of a collector that takes OTLP over HTTP, and the resources with spans that it was sent."""
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="extra `otel`")
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            assert self.path == "/v1/traces"
            received.extend(messages.ExportTraceServiceRequest.FromString(raw).resource_spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def told(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def test_requests_jobs_and_statements_are_traced(
    collector: tuple[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    settings = Settings(data_dir=tmp_path, pool_size=1, log_level="error", seed_examples=False, traces=True)
    with TestClient(create_app(settings)) as client:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        plan = client.post("/v1/plans", json=PLAN, headers=headers).json()["id"]
        assert client.get(f"/v1/plans/{plan}x").status_code == 404
    assert {told(each.resource.attributes)["service.name"] for each in received} == {"meshwright"}
    spans = [span for each in received for scope in each.scope_spans for span in scope.spans]
    by_name = {span.name: span for span in spans}
    posted = by_name["POST /v1/plans"]
    assert (posted.trace_id.hex(), told(posted.attributes)["http.response.status_code"]) == (TRACE, 201)
    assert told(by_name["GET /v1/plans/{plan_id}"].attributes)["http.response.status_code"] == 404
    job = by_name["job plan"]
    assert told(job.attributes) == {
        "meshwright.job.id": plan,
        "meshwright.job.kind": "plan",
        "meshwright.job.outcome": "succeeded",
    }
    ids = {span.span_id: span for span in spans}

    def within(span: Any, outer: Any) -> bool:
        return span.span_id == outer.span_id or (span.parent_span_id in ids and within(ids[span.parent_span_id], outer))

    statements = [span for span in spans if "db.query.text" in told(span.attributes)]
    of_post = [told(span.attributes)["db.query.text"] for span in statements if within(span, posted)]
    of_job = [told(span.attributes)["db.query.text"] for span in statements if within(span, job)]
    assert any(text.startswith("INSERT INTO jobs") for text in of_post)
    assert any(text.startswith("UPDATE plans") for text in of_job)
    assert all(span.parent_span_id for span in statements), "the runner's looks at its queue are no traces of their own"
    assert plan not in str([told(span.attributes)["db.query.text"] for span in statements]), "values are not told"


def test_nothing_of_the_sdk_is_loaded_unless_it_is_asked_for(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from app.service.main import create_app; from app.settings import Settings\n"
        f"create_app(Settings(data_dir=Path({str(tmp_path)!r})))\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
