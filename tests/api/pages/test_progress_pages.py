"""A plan's page before there is a report: how far the search is, and why there will be none."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.errors import UnavailableError
from app.service.db.engine import writing
from app.service.db.tables import plans
from app.service.main import create_app
from app.service.web.progress import gap
from app.settings import Settings


def queued(client: TestClient, asked: dict[str, Any], *, tenths: int) -> str:
    """Path of a plan whose search takes so many tenths of a second."""
    return "/plans/" + client.post("/v1/plans", json={**asked, "seed": tenths, "wait_s": 0}).json()["id"]


def figures(text: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))


def when(client: TestClient, path: str, headers: dict[str, str], is_so: Callable[[str], bool]) -> str:
    end_at = time.monotonic() + 30.0
    while not is_so(text := client.get(path, headers=headers).text):
        assert time.monotonic() < end_at, text
        time.sleep(0.05)
    return text


def test_the_page_tells_how_far_the_search_is(
    slow_client: TestClient, asked: dict[str, Any], own: dict[str, str]
) -> None:
    """The search reports a best step of 2 s and a bound of 1 s: a plan twice as fast is not ruled out."""
    path = queued(slow_client, asked, tenths=20)
    text = when(slow_client, path, own, lambda text: "2.00 s a step" in text)
    told = figures(text)
    assert told["State"] == "Searching"
    assert (told["Best so far"], told["No plan is faster than"]) == ("2.00 s a step", "1.00 s a step")
    assert told["Gap"] == "at most 50.0% to gain"
    assert re.fullmatch(r"\d+ s", told["Elapsed"])
    # Without scripts the page loads itself again.
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in text
    slow_client.post(f"{path}/cancel", headers=own)


def test_the_page_is_told_of_every_change_and_of_the_end(
    slow_client: TestClient, asked: dict[str, Any], own: dict[str, str]
) -> None:
    path = queued(slow_client, asked, tenths=6)
    with slow_client.stream("GET", f"{path}/progress", headers=own) as stream:
        lines = list(stream.iter_lines())
    assert stream.headers["content-type"].startswith("text/event-stream")
    named = [line for line in lines if line.startswith("event:")]
    assert named == ["event: finished"]
    assert lines.index("event: finished") > max(i for i, line in enumerate(lines) if "<dl" in line)
    assert any("2.00 s a step" in line for line in lines)
    # A part of a page and nothing that the policy would block.
    assert not [line for line in lines if "<script" in line or "style=" in line]
    answer = slow_client.get(f"{path}/finished", headers=own)
    assert (answer.status_code, answer.headers["hx-refresh"]) == (204, "true")


def test_a_search_can_be_cancelled_and_asked_again(
    slow_client: TestClient, asked: dict[str, Any], own: dict[str, str]
) -> None:
    path = queued(slow_client, asked, tenths=100)
    assert slow_client.post(f"{path}/cancel", headers={"Origin": "https://evil.example"}).status_code == 403
    answer = slow_client.post(f"{path}/cancel", headers=own, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    text = when(slow_client, path, own, lambda text: "was cancelled" in text)
    assert f'href="/?from={path.rpartition("/")[2]}"' in text
    # A second press, on a page that was not loaded again, finds it cancelled and shows so.
    assert slow_client.post(f"{path}/cancel", headers=own, follow_redirects=False).status_code == 303
    assert slow_client.get(f"{path}/ranked/1", headers=own).status_code == 409


def test_a_failed_search_says_why_and_what_to_do(
    slow_client: TestClient, asked: dict[str, Any], own: dict[str, str]
) -> None:
    """The worker of this plan is killed."""
    path = queued(slow_client, asked, tenths=666)
    text = html.unescape(when(slow_client, path, own, lambda text: "The search failed" in text))
    error = slow_client.get(f"/v1{path}").json()["error"]
    assert error["detail"] in text
    assert error["hint"] in text
    assert "/?from=" in text


def test_too_many_jobs_do_not_cost_the_form(
    slow_client: TestClient, asked: dict[str, Any], form: dict[str, str], own: dict[str, str]
) -> None:
    paths = [queued(slow_client, {**asked, "top_k": n}, tenths=100) for n in range(1, 5)]
    page = slow_client.post("/plans", data=form, headers=own)
    assert page.status_code == 429
    assert "you already have 4 unfinished jobs" in page.text
    assert 'name="training.seq_length" value="4k"' in page.text
    for path in paths:
        slow_client.post(f"{path}/cancel", headers=own)


@pytest.mark.parametrize(
    ("best", "bound", "told"),
    [(None, None, "not known yet"), (2.0, None, "not known yet"), (2.0, 2.0, "at most 0.0% to gain"),
     (4.0, 3.0, "at most 25.0% to gain"), (1.0, 1.1, "at most 0.0% to gain")],
)  # fmt: skip
def test_the_gap_is_what_could_still_be_gained(best: float | None, bound: float | None, told: str) -> None:
    assert gap(best, bound) == told


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[TestClient]:
    """A service two of whose pages fail."""
    app = create_app(Settings(data_dir=tmp_path, pool_size=1, log_level="error", seed_examples=False))

    @app.get("/broken", include_in_schema=False)
    def bug() -> None:
        raise ZeroDivisionError("<b>secret</b>")

    @app.get("/away", include_in_schema=False)
    def away() -> None:
        raise UnavailableError("the database cannot be reached", hint="Try again in a moment.")

    with TestClient(app) as client:
        yield client


def test_a_defect_is_a_page_without_a_traceback(broken: TestClient, browser: dict[str, str]) -> None:
    page = broken.get("/broken", headers=browser)
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "content-security-policy" in page.headers
    assert page.headers["x-request-id"] in page.text
    assert "secret" not in page.text


def test_a_service_that_cannot_work_says_when_to_come_back(broken: TestClient, browser: dict[str, str]) -> None:
    page = broken.get("/away", headers=browser)
    assert (page.status_code, page.headers["retry-after"]) == (503, "2")
    assert "the database cannot be reached" in page.text


def test_older_plans_are_behind_a_link(slow_client: TestClient, asked: dict[str, Any], own: dict[str, str]) -> None:
    """Twenty stand on a page; of 23 the three oldest stand on the second, and no plan on both."""
    paths = []
    for n in range(1, 24):
        paths.append(queued(slow_client, {**asked, "top_k": n}, tenths=0))
        when(slow_client, paths[-1], own, lambda text: "Searching for the best plan" not in text)
    first = slow_client.get("/plans", headers=own).text
    (older,) = re.findall(r'href="(/plans\?cursor=[^"]+)"', first)
    second = slow_client.get(html.unescape(older), headers=own).text
    assert re.findall(r'href="(/plans/plan-[^"]+)"', first) == paths[:2:-1]
    assert re.findall(r'href="(/plans/plan-[^"]+)"', second) == paths[2::-1]
    assert "cursor=" not in second


def test_an_answer_of_another_version_is_not_drawn_with_this_one(
    client: TestClient, asked: dict[str, Any], own: dict[str, str]
) -> None:
    plan = client.post("/v1/plans", json={**asked, "top_k": 2, "wait_s": 60}).json()
    written = json.dumps({**plan, "model_revision": "0123456789ab"})
    with writing(client.app.state.service.engine) as connection:  # type: ignore[attr-defined]
        connection.execute(update(plans).where(plans.c.id == plan["id"]).values(response=written))
    page = client.get(f"/plans/{plan['id']}", headers=own)
    assert page.status_code == 200
    assert "0123456789ab" in page.text
    for way_on in (f"/?from={plan['id']}", f"/plans/{plan['id']}/response.json"):
        assert f'href="{way_on}"' in page.text
    assert client.get(f"/plans/{plan['id']}/response.json", headers=own).json()["model_revision"] == "0123456789ab"
    assert client.get(f"/plans/{plan['id']}/ranked/1", headers=own).status_code == 422
