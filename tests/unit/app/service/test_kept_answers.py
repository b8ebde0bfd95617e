"""Finished plans in memory: bounded, looked up again once a second, and gone when they are deleted."""

from __future__ import annotations

from dataclasses import replace

from app.service.intake.plan_requests import PreparedRequest
from app.service.kept import KeptAnswers, KeptRequests

PREPARED = PreparedRequest(digest="sha256:1", payload="{}", time_limit_s=10.0, wait_s=1.0, names_stored=False)


class Stored:
    """Plans of a database, how often it was asked, and a clock that stands still."""

    def __init__(self, *ids: tuple[str, str]) -> None:
        self.ids = set(ids)
        self.asked = 0
        self.now_s = 0.0

    def exists(self, tenant: str, plan_id: str) -> bool:
        self.asked += 1
        return (tenant, plan_id) in self.ids

    def kept(self, *, max_bytes: int = 10_000) -> KeptAnswers:
        return KeptAnswers(self.exists, max_bytes=max_bytes, clock=lambda: self.now_s)


def test_a_kept_answer_is_looked_up_again_after_a_second():
    stored = Stored(("a", "plan-1"))
    kept = stored.kept()
    kept.keep("a", "plan-1", digest="d", body=b"1", mark=kept.mark())
    stored.now_s = 1.0
    assert kept.fresh("a", "plan-1") == b"1"
    stored.now_s = 1.1
    assert kept.fresh("a", "plan-1") is None
    assert kept.holds("a", "plan-1")
    assert kept.rechecked("a", "plan-1") == b"1"
    assert stored.asked == 1
    stored.now_s = 2.1
    assert kept.fresh("a", "plan-1") == b"1"


def test_a_plan_that_another_process_deleted_is_gone_at_the_next_look():
    stored = Stored()
    kept = stored.kept()
    kept.keep("a", "plan-1", digest="d", body=b"1", mark=kept.mark())
    assert kept.rechecked("a", "plan-1") is None
    assert not kept.holds("a", "plan-1")
    assert kept.id_of("a", "d") is None


def test_a_kept_answer_is_its_tenant_s_alone():
    kept = Stored().kept()
    kept.keep("a", "plan-1", digest="d", body=b"1", mark=kept.mark())
    assert kept.fresh("b", "plan-1") is None
    assert kept.id_of("b", "d") is None
    assert kept.id_of("a", "d") == "plan-1"


def test_a_plan_that_is_deleted_while_it_is_read_is_not_kept():
    kept = Stored().kept()
    mark = kept.mark()
    kept.drop("a", "plan-1")
    kept.keep("a", "plan-1", digest="d", body=b"1", mark=mark)
    assert not kept.holds("a", "plan-1")


def test_kept_answers_are_bounded_by_their_bytes():
    kept = Stored().kept(max_bytes=10_000)
    for number in range(4):
        kept.keep("a", f"plan-{number}", digest=str(number), body=bytes(4_000), mark=kept.mark())
    # Two of 4,000 bytes and what an entry costs besides fit into 10,000.
    assert [kept.holds("a", f"plan-{number}") for number in range(4)] == [False, False, True, True]
    kept.keep("a", "large", digest="large", body=bytes(20_000), mark=kept.mark())
    assert not kept.holds("a", "large")
    assert kept.holds("a", "plan-3")


def test_a_request_that_names_calibrations_is_checked_anew():
    kept = KeptRequests(max_bytes=10_000)
    kept.keep("1", PREPARED)
    kept.keep("2", replace(PREPARED, names_stored=True))
    assert kept.get("1") == PREPARED
    assert kept.get("2") is None


def test_no_request_is_kept_without_room():
    kept = KeptRequests(max_bytes=0)
    kept.keep("1", PREPARED)
    assert kept.get("1") is None
