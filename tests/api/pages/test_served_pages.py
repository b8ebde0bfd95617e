"""Every page: its headers, no inline script or style, errors in words, and hostile inputs that stay texts."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_CALIBRATION, EXAMPLE_PLAN_ID, EXAMPLE_TUNING_ID
from app.service.web.form.document import request_of
from app.service.web.form.fields import FIELDS
from app.service.web.form.values import values_of
from planner.request.checked_request import check_request

PAGES = ("/", "/plans", "/calibrations", "/calibrations/h100x4-nvls-off-2026", "/key", "/docs", f"/plans/{EXAMPLE_PLAN_ID}",
         f"/plans/{EXAMPLE_PLAN_ID}/ranked/1", f"/plans/{EXAMPLE_PLAN_ID}/compare?a=1&b=2",
         f"/plans/{EXAMPLE_PLAN_ID}/why-not", "/tunings", f"/tunings/{EXAMPLE_TUNING_ID}", "/nothing", "/plans/nothing",
         "/calibrations/nothing", "/tunings/nothing")  # fmt: skip
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}"


@pytest.fixture(scope="module", autouse=True)
def example(client: TestClient) -> None:
    """The example plan, finished."""
    end_at = time.monotonic() + 60.0
    while client.get(f"/v1/plans/{EXAMPLE_PLAN_ID}").json()["status"] != "succeeded":
        assert time.monotonic() < end_at
        time.sleep(0.1)


def offences(text: str) -> list[str]:
    """Whatever the policy would block, or would load from elsewhere."""
    # A block of data is no script: the policy lets it be, and nothing runs it.
    inline = re.findall(
        r"<script(?![^>]*\bsrc=)(?! type=\"application/json\")[^>]*>|<style[^>]*>|\sstyle=\"[^\"]*\"|\son\w+=\"[^\"]*\"|javascript:",
        text,
    )
    return inline + re.findall(r"(?:src|href|action)=\"(?:https?:)?//[^\"]*\"", text)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_under_its_policy(client: TestClient, browser: dict[str, str], path: str) -> None:
    answer = client.get(path, headers=browser)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert offences(answer.text) == []
    for loaded in re.findall(r"<(?:script|link)[^>]*(?:src|href)=\"(/[^\"]*)\"", answer.text):
        assert client.get(loaded).status_code == 200, loaded
    ids = re.findall(r'\bid="([^"]+)"', answer.text)
    assert len(ids) == len(set(ids))
    assert client.head(path, headers=browser).status_code == answer.status_code


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/plans/nothing", 404), (f"/plans/{EXAMPLE_PLAN_ID}/ranked/999", 404), ("/calibrations/nothing", 404),
     ("/plans?cursor=x", 422), (f"/plans/{EXAMPLE_PLAN_ID}/ranked/0", 422), ("/plans/" + "x" * 200, 422)],
)  # fmt: skip
def test_errors_are_pages_for_browsers_and_problems_for_programs(
    client: TestClient, browser: dict[str, str], path: str, status: int
) -> None:
    page = client.get(path, headers=browser)
    assert page.status_code == status
    assert "<h1>" in page.text
    problem = client.get(path, headers={"Accept": "application/json"})
    assert (problem.status_code, problem.headers["content-type"]) == (status, "application/problem+json")


def test_the_api_answers_browsers_with_problems_too(client: TestClient, browser: dict[str, str]) -> None:
    assert client.get("/v1/plans/nothing", headers=browser).headers["content-type"] == "application/problem+json"


def test_a_ranked_plan_can_be_read_and_launched(client: TestClient, browser: dict[str, str]) -> None:
    path = f"/plans/{EXAMPLE_PLAN_ID}"
    for each in (path, f"{path}/ranked/1"):
        assert "An example of the documentation: nobody asked for it here." in client.get(each, headers=browser).text
    archive = client.get(f"{path}/ranked/1/exports/megatron", headers=browser)
    assert archive.headers["content-type"] == "application/zip"
    assert archive.content == client.get(f"/v1{path}/exports/megatron", headers={"Accept": "application/zip"}).content
    assert f'href="{path}/ranked/1/exports/megatron"' in client.get(f"{path}/ranked/1", headers=browser).text
    trace = client.get(f"{path}/ranked/1/trace.json", headers=browser)
    assert {event["ph"] for event in trace.json()["traceEvents"]} == {"M", "X"}
    snapshot = client.get(f"{path}/ranked/1/memory.pickle", headers=browser)
    assert snapshot.content.startswith(b"\x80\x04"), "a pickle of protocol 4"
    for file in (archive, trace, snapshot):
        assert file.headers["content-disposition"].startswith("attachment")
    whole = client.get(f"{path}/response.json", headers=browser).json()
    assert whole["plans"][0] == client.get(f"/v1{path}/ranked/1").json(), "with every stage"


def test_two_plans_stand_side_by_side(client: TestClient, browser: dict[str, str]) -> None:
    path = f"/plans/{EXAMPLE_PLAN_ID}/compare"
    page = client.get(f"{path}?a=2&b=1", headers=browser)
    assert page.status_code == 200
    assert "Plans 2 and 1 of" in page.text
    assert client.get(f"{path}?a=1&b=999", headers=browser).status_code == 404
    assert client.get(f"{path}?a=x", headers=browser).status_code == 422


@pytest.mark.parametrize(
    ("filled", "status", "told"),
    [
        ({"tp": "3"}, 200, "It cannot run: tp 3"),
        ({"tp": "8", "micro_batch_size": "1"}, 200, 'data-verdict="fits"'),
        ({"tp": "x"}, 422, "tp is &#39;x&#39;; it must be a whole number."),
        ({"more": "["}, 422, "the other fields are no JSON object."),
        ({"more": json.dumps({HOSTILE: 1})}, 422, "is not a known field"),
    ],
)
def test_a_strategy_of_ones_own_is_judged(
    client: TestClient, own: dict[str, str], filled: dict[str, str], status: int, told: str
) -> None:
    path = f"/plans/{EXAMPLE_PLAN_ID}/why-not"
    assert 'name="tp"' in client.get(path, headers=own).text
    page = client.post(path, data=filled, headers=own)
    assert page.status_code == status
    assert told in page.text
    assert "<script>alert" not in page.text
    assert client.post(path, data=filled, headers={"Origin": "https://evil.example"}).status_code == 403


def test_a_report_is_computed_with_the_calibration_that_priced_it(
    client: TestClient, own: dict[str, str], asked: dict[str, Any], root: Path
) -> None:
    document = json.loads((root / "data" / "measured_h100" / "h100x4-full-run1.json").read_text())
    mine = client.post("/v1/calibrations", json=document).json()["id"]
    asked["cluster"] = {"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 4, "calibration": mine}
    plan = client.post("/v1/plans", json={**asked, "include": ["what_if"], "wait_s": 60}).json()
    page = client.get(f"/plans/{plan['id']}", headers=own)
    assert page.status_code == 200
    assert 'id="timeline-1"' in page.text
    assert "cannot be computed" not in page.text
    for path in (
        "ranked/1",
        "compare?a=1&b=2",
        "ranked/1/trace.json",
        "ranked/1/memory.pickle",
        "why-not",
        "ranked/1/exports/megatron",
    ):
        assert client.get(f"/plans/{plan['id']}/{path}", headers=own).status_code == 200, path


def test_hostile_names_stay_texts(client: TestClient, own: dict[str, str]) -> None:
    model = {"name": HOSTILE, "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512,
             "vocab_size": 1024}  # fmt: skip
    asked = {"model": model, "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 2, "name": HOSTILE},
             "training": {"seq_length": 512, "global_batch_size": 8, "precision": "bf16", "framework": "megatron"},
             "include": ["pareto", "what_if"]}  # fmt: skip
    plan = client.post("/v1/plans", json={**asked, "wait_s": 60}).json()
    assert plan["status"] == "succeeded"
    paths = ("", "/ranked/1", "/compare?a=1&b=2", "/why-not")
    for path in ("/plans", f"/?from={plan['id']}", *(f"/plans/{plan['id']}{each}" for each in paths)):
        page = client.get(path, headers=own)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "49" not in re.findall(r"onerror=alert\(1\)&gt;(\S\S)", page.text)
        assert "onerror=alert(1)&gt;{{7*7}}" in page.text


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_hostile_values_stay_texts_in_every_field(
    client: TestClient, form: dict[str, str], own: dict[str, str], name: str
) -> None:
    ways = {"model.by": "document", "cluster.by": "document"} if name.endswith(".document") else {}
    for path in ("/plans", "/web/check"):
        answer = client.post(path, data={**form, **ways, name: HOSTILE}, headers=own, follow_redirects=False)
        assert answer.status_code in (200, 303, 422)
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"x" * 2_000_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a%d=1" % i for i in range(5000)), "application/x-www-form-urlencoded", 415),
        (b"{}", "application/json", 415),
        (b"--x\r\n", "multipart/form-data; boundary=x", 415),
        (b"a=1", "", 415),
        (b"model.by=document&model.document=%22%5Cud800%22", "application/x-www-form-urlencoded", 422),
        (b"model.by=document&model.document=%ED%A0%80%00%FF", "application/x-www-form-urlencoded", 422),
        (b"model.by=document&model.document=" + b"[" * 100_000, "application/x-www-form-urlencoded", 422),
        (b"cluster.by=document&cluster.document=[]", "application/x-www-form-urlencoded", 422),
        (b"training.document=7&constraints.document=[]", "application/x-www-form-urlencoded", 422),
        (b"training.document={%22adapter%22:5}&training.adapter.rank=8", "application/x-www-form-urlencoded", 422),
        (b"training.seq_length=" + b"9" * 5000 + b"&top_k=1e999", "application/x-www-form-urlencoded", 422),
        (b"training.total_tokens=9e300T&training.seq_length=9e300", "application/x-www-form-urlencoded", 422),
        (b"model.by=nonsense&cluster.by=nonsense", "application/x-www-form-urlencoded", 422),
        (b"", "application/x-www-form-urlencoded", 422),
    ],
)  # fmt: skip
def test_hostile_bodies_are_refused(
    client: TestClient, own: dict[str, str], content: bytes, content_type: str, status: int
) -> None:
    headers = {**own, "Content-Type": content_type} if content_type else own
    answer = client.post("/plans", content=content, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    checked = client.post("/web/check", content=content, headers=headers)
    assert checked.status_code == (200 if status == 422 else status)


def test_a_file_of_another_tenant_of_the_address_is_not_served(client: TestClient) -> None:
    for path in (
        "/static/../main.py",
        "/static/%2e%2e/visitors.py",
        "/static/report/../pages.py",
        "/static/report/%2e%2e/pages.py",
    ):
        assert client.get(path).status_code == 404


def test_calibrations_of_ones_own_are_drawn(client: TestClient, browser: dict[str, str]) -> None:
    sizes = [2.0**n for n in range(20, 26)]
    collectives = [
        {"op": "all_reduce", "size_bytes": size, "ranks": 8, "ranks_per_node": 8, "time_s": 1e-5 + size / 1e11}
        for size in sizes
    ]
    document = {**EXAMPLE_CALIBRATION, "name": HOSTILE, "collectives": collectives}
    posted = client.post("/v1/calibrations", json=document)
    assert posted.status_code == 201, posted.text
    page = client.get(f"/calibrations/{posted.json()['id']}", headers=browser).text
    assert offences(page) == []
    # nccl-tests: the bus carries 2(n - 1)/n of an all-reduce, 1.75 of it for 8 ranks.
    drawn = dict(re.findall(r'data-x="([\d.]+)" data-y="([\d.]+)"', page.partition('data-series="all reduce"')[2]))
    for size in sizes:
        assert float(drawn[str(size)]) == pytest.approx(1.75 * size / (1e-5 + size / 1e11) / 1e9)
    # One product of 8192³ in 1.6 ms on a card of 989.4 TFLOP/s.
    (share,) = re.findall(r'data-y="([\d.]+)"', page.partition('data-series="bf16 forward"')[2])
    assert float(share) == pytest.approx(100 * 2 * 8192**3 / 0.0016 / 989.4e12)


@pytest.mark.parametrize(
    ("name", "text", "place", "number"),
    [
        ("training.seq_length", "128k", ("training", "seq_length"), 131072),
        ("training.global_batch_size", "2k", ("training", "global_batch_size"), 2048),
        ("training.total_tokens", "15T", ("training", "total_tokens"), 15 * 10**12),
        ("training.total_tokens", "0.3T", ("training", "total_tokens"), 3 * 10**11),
        ("training.seq_length", "8,192", ("training", "seq_length"), 8192),
        ("targets.min_tokens_per_s", "1.5M", ("targets", "min_tokens_per_s"), 1_500_000),
        ("targets.deadline_h", "30d", ("targets", "deadline_h"), 720),
        ("targets.deadline_h", "36", ("targets", "deadline_h"), 36),
        ("time_limit_s", "2m", ("time_limit_s",), 120),
        ("time_limit_s", "1.5", ("time_limit_s",), 1.5),
        ("top_k", "-1", ("top_k",), -1),
        ("top_k", "1,5", ("top_k",), "1,5"),
        ("training.seq_length", "1" * 50, ("training", "seq_length"), "1" * 50),
    ],
)
def test_amounts_are_read_as_people_write_them(name: str, text: str, place: tuple[str, ...], number: object) -> None:
    """A k is 1,024 in lengths and batches and 1,000 elsewhere, as on the command line; what is no number is left as it is."""
    found: Any = request_of({name: text}, max_depth=64)[0]
    for step in place:
        found = found[step]
    assert found == number


@pytest.mark.parametrize(
    "request_document",
    [
        {
            "constraints": {
                "fixed": {"tp": 2},
                "num_nodes": {"min": 1},
                "allow_at_risk": True,
                "memory_headroom_fraction": 0.05,
            }
        },
        {"cluster": {"preset": "dgx-h100", "num_nodes": 3, "network": {"oversubscription": 2}}},
        {"cluster": {"preset": "dgx-h100"}},
        {"cluster": {"preset": "dgx-h100", "num_nodes": 1, "calibration": ["h100x4-nvls-off-2026"]}},
        {"model": {"preset": "llama-3.1-8b", "num_layers": 30}},
        {
            "objective": "fewest_gpus",
            "targets": {"min_tokens_per_s": 1000.5},
            "top_k": 4,
            "time_limit_s": 2.5,
            "seed": 3,
        },
        {"include": ["what_if", "open_splits"]},
        {
            "training": {
                "adapter": {"rank": 8, "target_modules": ["q_proj", "v_proj"], "dora": True},
                "framework": "fsdp",
            }
        },
        {"training": {"adapter": {"rank": 8, "target_modules": "all-linear"}, "framework": "fsdp", "compile": False}},
        {
            "training": {
                "total_tokens": 2e12,
                "mean_document_length": 1000.5,
                "cross_entropy": "unfused",
                "recipe": None,
            }
        },
    ],
)
def test_the_form_filled_from_a_request_stands_for_that_request(
    asked: dict[str, Any], request_document: dict[str, Any]
) -> None:
    for part, given in request_document.items():
        asked[part] = {**asked["training"], **given} if part == "training" else given
    again, problems = request_of(values_of(asked), max_depth=64)
    assert problems == []
    # The same digest: the same job, limits and objective, however it is written.
    assert check_request(json.loads(json.dumps(again))).digest == check_request(asked).digest


def test_paths_in_links_are_quoted(client: TestClient, browser: dict[str, str]) -> None:
    text = client.get(f"/plans/{quote(HOSTILE, safe='')}", headers=browser).text
    assert "<script>alert" not in text
