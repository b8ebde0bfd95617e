"""What every answer tells a browser, whoever gives it: a route, a refusal, a file, or the program when it is at fault."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

EVERY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200), ("GET", "/docs", 200), ("GET", "/openapi.json", 200), ("GET", "/healthz", 200), ("GET", "/metrics", 200),
        ("GET", "/v1/plans", 200), ("GET", "/v1/plans/plan-example", 200), ("GET", "/v1/plans/none", 404), ("GET", "/none", 404),
        ("PUT", "/v1/plans", 405), ("POST", "/v1/plans", 415), ("GET", "/v1/plans?limit=0", 422), ("GET", "/static/none", 404),
        ("POST", "/plans", 403), ("GET", "/v1/plans/plan-example/events", 200),
    ],
)  # fmt: skip
def test_every_answer_tells_the_browser_the_same(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert {name: answer.headers.get_list(name) for name in EVERY} == {name: [value] for name, value in EVERY.items()}
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    # What one visitor may see, no cache on the way may show to another.
    (kept,) = answer.headers.get_list("cache-control")
    assert kept == "private, no-cache" or "no-store" in kept or kept == "no-cache"


def test_a_file_that_tells_its_version_may_be_kept(client: TestClient) -> None:
    page = client.get("/").text
    path = page.partition('href="/static/')[2].partition('"')[0]
    answer = client.get(f"/static/{path}")
    assert answer.status_code == 200
    assert "etag" in answer.headers
    assert "cache-control" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
