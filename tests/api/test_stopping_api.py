"""A service that is told to stop: who waits is answered, who watches is let go, and what ran is queued for the next service."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2

from app.service.db.engine import build_engine
from app.service.db.jobs import JobKey, JobStore
from app.service.jobs.runner import Kind
from app.settings import Settings
from live_service import listening


def test_who_waits_is_answered_and_jobs_are_queued_again(
    slow_settings: Settings, slow_kinds: dict[str, Kind], asked: dict[str, Any]
) -> None:
    """A job of a minute: its sender waits for it, a program watches its events and a browser its page."""
    answers: dict[str, tuple[int, httpx2.Headers, str]] = {}
    begun: dict[str, threading.Event] = {name: threading.Event() for name in ("post", "events", "page")}

    def ask(name: str, method: str, url: str, **sent: Any) -> threading.Thread:
        def answered() -> None:
            with httpx2.stream(method, url, timeout=60, **sent) as answer:
                parts = []
                for part in answer.iter_text():
                    parts.append(part)
                    # An answer has begun when its reader has been told something, not when its head is there.
                    begun[name].set()
                answers[name] = answer.status_code, answer.headers, "".join(parts)

        thread = threading.Thread(target=answered)
        thread.start()
        return thread

    with listening(slow_settings, kinds=slow_kinds) as address:
        plans = f"{address}/v1/plans"
        waiting = ask("post", "POST", plans, json={**asked, "seed": 600, "wait_s": 50})
        while not (items := httpx2.get(plans).json()["items"]) or items[0]["status"] != "running":
            time.sleep(0.02)
        plan_id = items[0]["id"]
        watching = ask("events", "GET", f"{plans}/{plan_id}/events")
        looking = ask("page", "GET", f"{address}/plans/{plan_id}/progress")
        assert begun["events"].wait(60)
        assert begun["page"].wait(60)
        begun_at = time.monotonic()
    stopped_s = time.monotonic() - begun_at
    for thread in (waiting, watching, looking):
        thread.join()

    status, headers, text = answers["post"]
    assert (status, headers["location"], json.loads(text)["status"]) == (202, f"/v1/plans/{plan_id}", "running")
    # httpx2 raises an error where a stream breaks off in the middle, as one does that uvicorn gives up on after three seconds.
    for name in ("events", "page"):
        assert "retry: 2000" in answers[name][2].splitlines()
    assert "event: started" in answers["events"][2]
    assert "event: finished" not in answers["page"][2]
    # The sender would have waited for fifty seconds, the readers for the whole minute.
    assert stopped_s < 15
    engine = build_engine(slow_settings.url)
    assert JobStore(engine, lease_s=1.0).status(JobKey("local", plan_id)) == "queued"
    engine.dispose()
