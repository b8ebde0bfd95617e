"""Who is given which trial, and when a tuning begins and ends.

Everything here is done under the claim of the tuning, in steps that may be cut off anywhere: the service's tables are the truth, and
before anything is chosen the study is told what it does not know. A trial that was chosen and never stored is given back to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import structlog
from sqlalchemy import Engine

from app.errors import NotFoundError, problem_document
from app.service.db.jobs import FINISHED
from app.service.db.plan_result import encoded
from app.service.db.plans import PlanStore
from app.service.db.studies import study_storage
from app.service.db.tuning_trials import NewTrial, TrialLeases, TrialRow
from app.service.db.tunings import Claim, TuningRow, TuningStore
from app.service.tunings.documents import document_of, limits_of, outcome_of
from app.service.tunings.knob_trials import KnobPhase, knob_trials, plan_trials
from app.service.tunings.left_studies import study_name
from app.service.tunings.trial_jobs import Subject
from app.tuning.loop import refusals_said
from cost_models.errors import MeasurementError
from planner.search.standing import Standing, Stop
from planner.search.tuner import TuningStudy, forget_study

log = structlog.get_logger("meshwright.tunings")
_HINT = "GET /v1/tunings/{id} lists how each trial ended."


class Conductor:
    """Moves tunings on. Every call is for one tenant, and any number of services may make them at once."""

    def __init__(self, engine: Engine, *, plans: PlanStore, tunings: TuningStore, trials: TrialLeases) -> None:
        self._engine = engine
        self._plans, self._tunings, self._trials = plans, tunings, trials
        self._storage: Any = None
        self._lock = Lock()

    def next_trial(self, tenant: str, agent_id: str, *, instance: str) -> TrialRow | None:
        """The trial that the agent is to run now; None where there is none for it.

        `instance` tells its program from an earlier run of it.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        found = self._trials.lease_again(tenant, agent_id, instance=instance)
        if found is not None:
            return found
        if self._trials.over_quota(tenant) is not None:
            for tuning_id in self._tunings.open_for(tenant, agent_id):
                self.advance(tenant, tuning_id)
            return None
        # The oldest tuning first, so that one that was begun is finished before the next takes its agents.
        for tuning_id in self._tunings.open_for(tenant, agent_id):
            found = self._under_claim(
                tenant, tuning_id, lambda claim: self._choose(claim, agent_id=agent_id, instance=instance)
            )
            if found is not None:
                return found
        return None

    def advance(self, tenant: str, tuning_id: str) -> None:
        """Does what is due: begins a tuning whose plan is there, tells its study what was found, and ends it where it has stopped."""
        self._under_claim(tenant, tuning_id, self._only_settle)

    def read(self, tenant: str, tuning_id: str) -> tuple[TuningRow, list[TrialRow]]:
        """A tuning and its trials, with what is due done before.

        Raises:
            NotFoundError: the tenant has no such tuning.
        """
        self._trials.look_for_silent(tenant)
        tuning, trials = self._both(tenant, tuning_id)
        # Mostly nothing is due, and reading then takes no claim from an agent that asks for a trial.
        is_over = tuning.status in FINISHED
        untold = any(each.record is not None and not each.told for each in trials)
        if tuning.status == "queued" or (untold and not is_over) or (is_over and tuning.document is None):
            self.advance(tenant, tuning_id)
            return self._both(tenant, tuning_id)
        return tuning, trials

    def remove(self, tenant: str, tuning_id: str, *, cancel_only: bool = False) -> bool:
        """Cancels a tuning that has not ended (True), keeping what it has found, or deletes one that has with its study (False).

        Raises:
            NotFoundError: the tenant has no such tuning.
            WrongStateError: it has ended, and is only to be cancelled.
        """
        is_kept = self._tunings.remove(tenant, tuning_id, cancel_only=cancel_only)
        if is_kept:
            self.advance(tenant, tuning_id)
        else:
            forget_study(study_name(tenant, tuning_id), storage=self._opened())
        return is_kept

    def _both(self, tenant: str, tuning_id: str) -> tuple[TuningRow, list[TrialRow]]:
        return self._tunings.get(tenant, tuning_id), self._trials.of(tenant, tuning_id)

    def _under_claim(self, tenant: str, tuning_id: str, step: Callable[[Claim], TrialRow | None]) -> TrialRow | None:
        claim = self._tunings.claim(tenant, tuning_id)
        if claim is None:  # somebody else does it just now
            return None
        try:
            return step(claim)
        except NotFoundError:  # deleted meanwhile
            return None
        finally:
            self._tunings.unclaim(claim)

    def _choose(self, claim: Claim, *, agent_id: str, instance: str) -> TrialRow | None:
        running = self._settle(claim)
        if running is None:
            return None
        tuning, study, standing = running
        ask = study.ask(owner=claim.token)
        if ask is None:
            # Either it waits for trials that run, or what was just told was the last of a plan.
            return self._choose_knobs(claim, agent_id=agent_id, instance=instance)
        subject, wanted = _subject(tuning), tuning.wanted
        rank, deadline_s = subject.ranks[ask.candidate], wanted.limits.trial_limit_s
        # The best of this moment: a trial that began later is compared with what was found until then.
        above_s = standing.hopeless_above_s
        given = subject.job(rank, backend=wanted.backend, deadline_s=deadline_s, hopeless_above_s=above_s)
        # Free of races, since only the holder of the claim adds trials.
        number = 1 + max((each.number for each in self._trials.of(claim.tenant, claim.tuning_id)), default=0)
        new = NewTrial(number, ask.candidate, given["gpus"], encoded(given), ask.expected_step_time_s)
        trial = self._trials.add(claim, new, agent_id=agent_id, instance=instance)
        if trial is None:
            study.release(ask.number)
            return None
        return trial if trial.status == "running" else None

    def _choose_knobs(self, claim: Claim, *, agent_id: str, instance: str) -> TrialRow | None:
        running = self._settle(claim)
        if running is None:
            return None
        tuning, _, standing = running
        trials = self._trials.of(claim.tenant, claim.tuning_id)
        phase = None if standing.stop is None else KnobPhase.of(tuning, _subject(tuning), standing, trials)
        if phase is None or not phase.wants_more or self._trials.over_quota(claim.tenant) is not None:
            return None
        new = phase.next(number=1 + max(each.number for each in trials))
        trial = self._trials.add(claim, new, agent_id=agent_id, instance=instance)
        return trial if trial is not None and trial.status == "running" else None

    def _goes_on_with_knobs(
        self, claim: Claim, tuning: TuningRow, standing: Standing, trials: Sequence[TrialRow]
    ) -> bool:
        """Whether a tuning whose plans were tried goes on with the knobs of the best one."""
        phase = KnobPhase.of(tuning, _subject(tuning), standing, trials)
        if phase is None or phase.is_over:
            return False
        return self._trials.over_quota(claim.tenant) is None or _is_running(trials)

    def _only_settle(self, claim: Claim) -> None:
        self._settle(claim)

    def _settle(self, claim: Claim) -> tuple[TuningRow, TuningStudy, Standing] | None:
        """The tuning, its study, which knows of every trial, and how that stands; None where the tuning does not run, or has now ended."""
        tuning = self._tunings.get(claim.tenant, claim.tuning_id)
        if tuning.status == "queued":
            tuning = self._begun(claim, tuning)
        if tuning.status != "running":
            self._seal(claim, tuning)
            return None
        all_trials = self._trials.of(claim.tenant, claim.tuning_id)
        trials = plan_trials(all_trials)
        study = self._study(claim, tuning)
        if _holds_another(study, trials):
            # A study cannot take back what it was told. Its trials are all here, so that it is made anew.
            forget_study(study.name, storage=self._opened())
            study = self._study(claim, tuning)
        self._reconcile(claim, study, trials)
        # The sampler of knobs is made from these rows whenever it is asked, so that it knows of them.
        if known := [each for each in knob_trials(all_trials) if each.record and not each.told]:
            self._trials.mark_told(claim, known)
        standing = study.standing()
        stop = standing.stop
        if stop is None and not _is_running(trials):
            said = self._trials.over_quota(claim.tenant)
            stop = None if said is None else Stop("gpu-hours", f"{said[0].upper()}{said[1:]}.")
        if stop is None or self._goes_on_with_knobs(claim, tuning, standing, all_trials):
            return tuning, study, standing
        self._end(claim, stop, measured=bool(standing.measured_s), trials=trials)
        return None

    def _begun(self, claim: Claim, tuning: TuningRow) -> TuningRow:
        """The tuning, running if its plan is there now, or ended where it never will be."""
        try:
            plan = self._plans.get(claim.tenant, tuning.wanted.plan_id)
        except NotFoundError:
            self._fail(claim, f"plan {tuning.wanted.plan_id} was deleted before its first trial")
            return self._tunings.get(claim.tenant, claim.tuning_id)
        if plan.status in ("queued", "running"):
            return tuning
        if plan.status != "succeeded":
            why = json.loads(plan.error)["detail"] if plan.error else "somebody cancelled it"
            self._fail(claim, f"plan {plan.id} {plan.status}: {why}")
            return self._tunings.get(claim.tenant, claim.tuning_id)
        subject = Subject.of_plan(plan, backend=tuning.wanted.backend)
        if subject.ranks:
            self._tunings.begin(claim, subject.text())
        else:
            told = " ".join(refusals_said({int(rank): why for rank, why in subject.refused.items()}))
            nothing = "no plan satisfies the request, so that there is nothing to try"
            self._fail(claim, f"the back end can run none of the plans. {told}" if told else nothing)
        return self._tunings.get(claim.tenant, claim.tuning_id)

    def _study(self, claim: Claim, tuning: TuningRow) -> TuningStudy:
        """The study of a tuning, made anew where it is not there: before the first trial, or after a backup was restored."""
        name, storage = study_name(claim.tenant, claim.tuning_id), self._opened()
        try:
            return TuningStudy.resume(name, storage=storage)
        except KeyError:
            # A service that ended while it made the study has left half of one.
            forget_study(name, storage=storage)
        return TuningStudy.start(
            _subject(tuning).candidates(),
            name=name,
            storage=storage,
            seed=int(json.loads(tuning.wanted.asked)["seed"]),
            limits=limits_of(tuning),
        )

    def _opened(self) -> Any:
        # Not when the service starts: loading Optuna takes a second, and most services never tune.
        with self._lock:
            if self._storage is None:
                self._storage = study_storage(self._engine)
            return self._storage

    def _reconcile(self, claim: Claim, study: TuningStudy, trials: Sequence[TrialRow]) -> None:
        """Tells the study what it does not know."""
        rows = {each.candidate: each for each in trials}
        known = study.standing()
        running = {each.candidate: each.number for each in known.running}
        told = {each.candidate for each in known.told}
        for candidate, number in running.items():
            if candidate not in rows:
                # Whoever chose it ended before it was stored.
                study.release(number)
        for candidate, row in rows.items():
            if candidate in told:
                continue
            if candidate not in running:
                running[candidate] = study.take(candidate, owner=claim.token, expected_s=row.expected_s).number
            if row.record is not None:
                study.tell(running[candidate], outcome_of(row))
        self._trials.mark_told(claim, [row for row in trials if row.record is not None and not row.told])

    def _end(self, claim: Claim, stop: Stop, *, measured: bool, trials: Sequence[TrialRow]) -> None:
        stopped = {"reason": stop.reason, "message": stop.message}
        if measured:
            self._tunings.finish(claim, status="succeeded", stopped=stopped)
        else:
            ended = [json.loads(each.record) for each in trials if each.record is not None]
            reasons = "; ".join(dict.fromkeys(f"{each['status']}: {each['reason']}" for each in ended))
            failed = f"none of the {len(ended)} trials could be measured: {reasons}"
            error = MeasurementError((failed if ended else stop.message)[:2000], hint=_HINT)
            self._tunings.finish(claim, status="failed", stopped=stopped, error=problem_document(error))
        self._seal(claim, self._tunings.get(claim.tenant, claim.tuning_id))
        log.info("tuning ended", tuning=claim.tuning_id, reason=stop.reason, trials=len(trials))

    def _fail(self, claim: Claim, message: str) -> None:
        error = problem_document(MeasurementError(message, hint="Ask for another plan, or for other constraints."))
        self._tunings.finish(claim, status="failed", stopped={"reason": "failed", "message": message}, error=error)

    def _seal(self, claim: Claim, tuning: TuningRow) -> None:
        if tuning.status in FINISHED and tuning.document is None:
            trials = self._trials.of(claim.tenant, claim.tuning_id)
            self._tunings.seal(claim, encoded(document_of(tuning, trials)))


def _holds_another(study: TuningStudy, trials: Sequence[TrialRow]) -> bool:
    """Whether a study was told otherwise of a trial: its record came after it had been given up."""
    untold = [each for each in trials if each.record is not None and not each.told]
    if not untold:
        return False
    told = {each.candidate: each.outcome.record for each in study.told()}
    return any(told.get(each.candidate) not in (None, outcome_of(each).record) for each in untold)


def _is_running(trials: Sequence[TrialRow]) -> bool:
    return any(each.status == "running" for each in trials)


def _subject(tuning: TuningRow) -> Subject:
    assert tuning.answer is not None
    return Subject.of_text(tuning.answer)
