"""Stored observations on every database: told once or twice, listed, used, limited and deleted, each by its owner alone."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from sqlalchemy import Engine

from app.errors import NotFoundError, QuotaError
from app.service.db.audit import page_of_audit
from app.service.db.engine import reading
from app.service.db.observations import ObservationStore
from app.service.db.quotas import Quotas, usage_of


def document(name: str, *, used: bool = True, text: str = "") -> dict[str, Any]:
    return {
        "id": name, "used": used, "flags": [], "predicted": None, "remarks": [text],
        "measured": {"step_time_s": 1.5, "peak_memory_gib": None},
    }  # fmt: skip


def add(store: ObservationStore, name: str, *, tenant: str = "a", **options: Any) -> dict[str, Any]:
    text = store.add(tenant, document(name, **options), framework="megatron", gpu="H100")
    found: dict[str, Any] = json.loads(text)
    return found


def test_one_told_twice_is_kept_once_with_its_first_time(engine: Engine) -> None:
    store = ObservationStore(engine)
    first = add(store, "o1")
    assert add(store, "o1") == first
    assert json.loads(store.document("a", "o1")) == first
    (row,) = store.page("a", limit=9)
    assert (row.id, row.used, json.loads(row.headline)["step_time_s"]) == ("o1", True, 1.5)
    assert [(entry.action, entry.object) for entry in page_of_audit(engine, "a", limit=9)] == [
        ("observation.create", "o1")
    ]


def test_many_that_tell_the_same_at_once_get_the_same(engine: Engine) -> None:
    store = ObservationStore(engine)
    found: list[str] = []
    barrier = threading.Barrier(4)

    def tell() -> None:
        barrier.wait()
        found.append(store.add("a", document("o1"), framework="megatron", gpu="H100"))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(page_of_audit(engine, "a", limit=9)) == 1


def test_only_its_owner_finds_one(engine: Engine) -> None:
    store = ObservationStore(engine)
    add(store, "o1")
    assert store.page("b", limit=9) == []
    assert store.used("b", limit=9) == []
    for act in (store.document, store.delete):
        with pytest.raises(NotFoundError):
            act("b", "o1")
    store.delete("a", "o1")
    with pytest.raises(NotFoundError):
        store.document("a", "o1")


def test_what_is_used_comes_newest_first_and_without_the_rest(engine: Engine) -> None:
    store = ObservationStore(engine)
    for number in range(4):
        add(store, f"o{number}", used=number != 2)
    assert [json.loads(text)["id"] for text in store.used("a", limit=2)] == ["o3", "o1"]


def test_a_tenant_has_as_many_as_it_may_and_their_bytes_count(engine: Engine) -> None:
    store = ObservationStore(engine, quotas=Quotas(max_observations=2))
    for name in ("o1", "o2"):
        add(store, name)
    with pytest.raises(QuotaError) as refused:
        add(store, "o3")
    assert {name: refused.value.context[name] for name in ("quota", "limit", "used")} == {
        "quota": "observations", "limit": 2, "used": 2,
    }  # fmt: skip
    assert "observations that you no longer need" in refused.value.hint
    add(store, "o2")
    add(store, "o3", tenant="b")
    with reading(engine) as connection:
        used = usage_of(connection, "a").stored_bytes
    assert used > 0
    tight = ObservationStore(engine, quotas=Quotas(max_stored_bytes=used + 10))
    with pytest.raises(QuotaError, match="plans, calibrations, tunings and observations take"):
        add(tight, "o4")
