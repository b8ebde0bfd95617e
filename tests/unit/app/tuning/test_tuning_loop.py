"""The loop of a tuning, with trials that are answered from a table: what it runs, what it keeps, and what its document says."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.errors import UnavailableError, WrongStateError
from app.knobs.storage import running
from app.tuning.backends import backend_name, until_hopeless
from app.tuning.document import candidate_plans
from app.tuning.loop import NotKept, Tuning, runnable
from app.tuning.machine import unlike
from app.tuning.owners import has_died, this_process
from app.tuning.stored import opened
from builders import dense_model, request_of
from cost_models.errors import InvalidInputError, MeasurementError
from planner.plan import plan
from planner.search.standing import Limits, Stop
from profiler.machine.node import Node

GIB = 2**30
Json = dict[str, Any]


@pytest.fixture(scope="module")
def response() -> Json:
    """Plans for four GPUs, best first."""
    asked = request_of(dense_model(8), "torchtitan", cluster={"gpus_per_node": 4})
    return plan(asked | {"top_k": 12})


@dataclass
class TableBackend:
    """Answers trials by a function of the strategy; what it was asked to run is kept."""

    answer: Callable[[Mapping[str, Any]], float | str]
    """Seconds of a step, or the status of a failure."""
    refuses: Callable[[Mapping[str, Any]], str | None] = lambda _row: None
    ran: list[Mapping[str, Any]] = field(default_factory=list)
    name: Any = "pytorch"

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        return self.refuses(row)

    def run(
        self, row: Mapping[str, Any], *, deadline_s: float, hopeless: Any = None, knobs: Mapping[str, Any] | None = None
    ) -> Json:
        found = self.answer(row["strategy"])
        self.ran.append(row["strategy"])
        ok = not isinstance(found, str)
        return {
            "row": dict(row), "backend": "pytorch", "status": "ok" if ok else found, "reason": None if ok else "it failed",
            "step_time_s": found if ok else None, "step_s": [found] * 3 if ok else [], "peak_allocated_bytes": GIB if ok else None,
            "terms_s": None, "took_s": 10.0, "gpu_seconds": 40.0, "started_at": "2026-11-29T12:00:00Z",
        }  # fmt: skip


def _slowest_first(response: Json) -> TableBackend:
    """Every plan takes as long as predicted, but the analytic first twice as long."""
    seconds = {json.dumps(p["strategy"], sort_keys=True): p["evaluation"]["step_time_s"] for p in response["plans"]}
    first = json.dumps(response["plans"][0]["strategy"], sort_keys=True)
    seconds[first] *= 2.0
    return TableBackend(lambda strategy: seconds[json.dumps(strategy, sort_keys=True)])


def test_the_best_measured_plan_is_chosen_over_the_analytic_first(response: Json) -> None:
    backend, limits = _slowest_first(response), Limits(max_trials=6)
    tuning = Tuning.start(response, backend, name="t", limits=limits)
    tuning.run(backend)
    document = tuning.document(backend="pytorch")
    assert backend.ran[0] == response["plans"][0]["strategy"]
    assert len({json.dumps(each, sort_keys=True) for each in backend.ran}) == len(backend.ran)
    measured = {trial["rank"]: trial["step_time_s"] for trial in document["trials"]}
    best = min(measured, key=lambda rank: measured[rank])
    assert document["best"]["rank"] == best != 1
    assert document["best"]["gain_fraction"] == pytest.approx(1.0 - measured[best] / measured[1])
    assert document["ranking"][0]["rank_before"] == best
    assert document["ranking"][0]["rank_after"] == 1
    assert sorted(each["rank_before"] for each in document["ranking"]) == sorted(
        p["rank"] for p in candidate_plans(response)
    )
    assert document["used"] == {
        "seconds": 10.0 * len(measured), "trials": len(measured), "gpu_hours": pytest.approx(len(measured) / 90),
    }  # fmt: skip
    assert document["status"] == "succeeded"
    assert document["trials"][0]["predicted_step_time_s"] == response["plans"][0]["evaluation"]["step_time_s"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_failures_are_kept_with_their_reasons(response: Json) -> None:
    backend = TableBackend(lambda _strategy: "crash")
    tuning = Tuning.start(response, backend, name="t", limits=Limits(max_trials=3))
    tuning.run(backend)
    document = tuning.document(backend="pytorch")
    assert (document["status"], document["best"]) == ("failed", None)
    assert [(each["status"], each["reason"]) for each in document["trials"]] == [("crash", "it failed")] * 3
    assert all(each["rank_after"] is None for each in document["ranking"] if each["rank_before"] == 1)
    assert document["stopped"]["reason"] == "max-trials"


def test_what_a_back_end_cannot_run_is_not_tried_and_told(response: Json) -> None:
    def refuses(row: Mapping[str, Any]) -> str | None:
        return "it knows no pipeline" if row["strategy"]["pp"] > 1 else None

    backend = TableBackend(lambda _strategy: 1.0, refuses)
    candidates, refused = runnable(response, backend)
    tried = candidate_plans(response)
    piped = sorted(each["rank"] for each in tried if each["strategy"]["pp"] > 1)
    assert sorted(refused) == piped
    assert len(candidates) == len(tried) - len(piped)
    nothing = TableBackend(lambda _strategy: 1.0, lambda _row: "it runs nothing")
    with pytest.raises(MeasurementError, match="it runs nothing"):
        Tuning.start(response, nothing, name="t", limits=Limits())


def test_what_is_interrupted_is_given_back_and_the_rest_is_kept(response: Json, tmp_path: Path) -> None:
    storage, limits = f"sqlite:///{tmp_path / 'tune.db'}", Limits(max_trials=4)
    backend = _slowest_first(response)
    usual = backend.answer

    def interrupted(strategy: Mapping[str, Any]) -> float | str:
        if len(backend.ran) == 2:
            raise KeyboardInterrupt
        return usual(strategy)

    backend.answer = interrupted
    tuning = opened(response, backend, storage=storage, name="t", seed=0, limits=limits)
    with pytest.raises(KeyboardInterrupt):
        tuning.run(backend)
    document = tuning.document(backend="pytorch", ended=Stop("cancelled", "By hand."))
    assert (document["status"], len(document["trials"])) == ("cancelled", 2)
    backend.answer = usual
    again = opened(response, backend, storage=storage, name="t", seed=0, limits=limits)
    again.run(backend)
    ended = again.document(backend="pytorch")
    assert ended["trials"][:2] == document["trials"]
    assert len(ended["trials"]) == 4
    assert len({each["rank"] for each in ended["trials"]}) == 4
    assert ended["created_at"] == document["created_at"]


def test_a_study_of_other_plans_or_of_another_back_end_is_not_continued(response: Json, tmp_path: Path) -> None:
    storage, backend = f"sqlite:///{tmp_path / 'tune.db'}", TableBackend(lambda _strategy: 1.0)
    opened(response, backend, storage=storage, name="t", seed=0, limits=Limits())
    with pytest.raises(WrongStateError, match="another request"):
        opened(response | {"request_digest": "0" * 64}, backend, storage=storage, name="t", seed=0, limits=Limits())
    other = TableBackend(lambda _strategy: 1.0, name="export")
    with pytest.raises(WrongStateError, match="--backend pytorch"):
        opened(response, other, storage=storage, name="t", seed=0, limits=Limits())


@pytest.mark.parametrize(
    "change",
    [
        "update study_user_attributes set value_json = '[]' where key = 'candidates'",
        "update study_user_attributes set value_json = 'not JSON' where key = 'seed'",
        "update trial_user_attributes set value_json = '{}' where key = 'outcome'",
        "update trial_user_attributes set value_json = '99' where key = 'candidate'",
        "update trial_user_attributes set value_json = '\"x\"' where key = 'expected_s'",
        "delete from trial_user_attributes",
    ],
)
def test_a_study_that_somebody_has_changed_is_not_continued(response: Json, tmp_path: Path, change: str) -> None:
    path, backend = tmp_path / "tune.db", TableBackend(lambda _strategy: 1.0)

    def again() -> Tuning:
        return opened(response, backend, storage=f"sqlite:///{path}", name="t", seed=0, limits=Limits(max_trials=1))

    again().run(backend)
    assert len(again().document(backend="pytorch")["trials"]) == 1
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(change).rowcount > 0
        database.commit()
    with pytest.raises(WrongStateError, match="did not start, or that was changed since"):
        again()


def test_a_trial_that_its_storage_does_not_take_is_told(response: Json, tmp_path: Path) -> None:
    path, told = tmp_path / "tune.db", list[Any]()

    def fails(_strategy: Mapping[str, Any]) -> float:
        path.write_bytes(b"nothing of a database")
        return 1.0

    backend = TableBackend(fails)
    tuning = opened(response, backend, storage=f"sqlite:///{path}", name="t", seed=0, limits=Limits())
    with pytest.raises(UnavailableError), running():
        tuning.run(backend, tell=told.append)
    assert isinstance(told[-1], NotKept)
    assert (told[-1].record["step_time_s"], told[-1].record["row"]["strategy"]) == (1.0, backend.ran[0])


def test_trials_of_processes_that_are_gone_are_told_from_those_that_run() -> None:
    own = this_process()
    host, number, _ = own.split("|")
    # Nothing of this process runs while it looks, so that what it left behind is given back.
    assert has_died(own)
    assert not has_died(f"another-host|{number}|1")
    assert not has_died("")
    assert has_died(f"{host}|{2**22 + 1}|1")
    # Process 1 is there, but was not started at that moment: the number was given again.
    assert has_died(f"{host}|1|0")


@pytest.mark.parametrize(
    ("framework", "asked", "found"),
    [("torchtitan", None, "pytorch"), ("torchtitan", "export", "export"), ("deepspeed", None, "export")],
)
def test_what_is_measured_is_what_will_run(framework: str, asked: str | None, found: str) -> None:
    assert backend_name(framework, asked) == found


def test_nothing_is_saved_against_a_plan_that_was_not_measured(response: Json) -> None:
    """The back end cannot run the plan that was predicted to be the fastest, so that no other plan stands for it."""
    backend = TableBackend(lambda _: 1.0, lambda row: "no such option" if row["id"] == "plan-1" else None)
    tuning = Tuning.start(response, backend, name="t", limits=Limits(max_trials=1))
    tuning.run(backend)
    best = tuning.document(backend="pytorch")["best"]
    assert (best["rank"] > 1, best["gain_fraction"]) == (True, None)


def test_another_program_than_the_planned_one_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="the plans are for deepspeed") as refused:
        backend_name("deepspeed", "pytorch")
    assert refused.value.problems[0].pointer == "/backend"
    assert "Leave --backend out" in refused.value.problems[0].hint


@pytest.mark.parametrize(
    ("changed", "pointer", "said"),
    [
        ({}, None, ""),
        ({"gpus_per_node": 1}, None, ""),
        # Whoever gives figures of their own says by these that it is this GPU.
        ({"gpu": {"name": "mine", "memory_gib": 141}}, None, ""),
        ({"gpu": "H100-SXM-80GB"}, "/cluster/gpu", "this machine has H200-SXM-141GB"),
        ({"num_nodes": 2}, "/cluster/num_nodes", "the request is for 4 GPUs, but this machine has 2"),
        ({"pools": [{}]}, "/cluster/pools", "several kinds of node"),
    ],
)
def test_a_cluster_that_is_not_this_machine_is_told(changed: Json, pointer: str | None, said: str) -> None:
    cluster = {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2} | changed
    found = unlike(cluster, Node("H200-SXM-141GB", 2))
    assert [each.pointer for each in found] == ([] if pointer is None else [pointer])
    assert all(said in each.message and each.hint for each in found)


def test_plans_that_run_the_same_are_tried_once(response: Json) -> None:
    first = response["plans"][0]
    alone = first["strategy"] | {"dp": 1, "cp": 1, "tp": 4, "pp": 1, "zero": 2}
    plans = [
        {**first, "rank": rank, "strategy": alone | changes}
        for rank, changes in enumerate(
            ({}, {"zero": 3}, {"cp_comm": "a2a"}, {"micro_batch_size": 7}, {"dp": 2, "zero": 3}), start=1
        )
    ]
    # ZeRO shares nothing among one replica, and nobody exchanges keys without context parallelism.
    assert [plan["rank"] for plan in candidate_plans(response | {"plans": plans})] == [1, 4, 5]


def test_a_trial_is_asked_after_each_step_that_counts_whether_it_goes_on() -> None:
    goes_on = until_hopeless(lambda steps: len(steps) >= 2 and min(steps) > 1.0, warm_up=1)
    # The step of the warm-up is slow in every trial, and is not counted.
    assert [goes_on(number, seconds) for number, seconds in enumerate((9.0, 1.5, 1.2))] == [True, True, False]
    assert all(until_hopeless(None, warm_up=0)(number, 99.0) for number in range(5))
