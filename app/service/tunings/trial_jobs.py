"""What a tuning may try, what an agent is given to run, and the record of a trial that could not be run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.service.db.plan_result import encoded
from app.service.db.plans import PlanRow
from app.tuning.backends import PyTorchBackend, one_line, world_of
from app.tuning.document import candidate_plans
from app.tuning.exports import target_of, with_knobs
from app.tuning.rows import trial_row
from cost_models.calibration import CalibrationDocument
from cost_models.errors import MeshwrightError
from planner.export.export import export_row
from planner.search.beliefs import Candidate
from profiler.trial.record import TrialMachine, TrialRecord
from profiler.trial.record import one_line as as_reason

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """The plans that a tuning tries, kept as they were when it began, so that it outlives the plan that it was asked of."""

    response: Document
    ranks: Sequence[int]
    """Ranks of the plans that the back end can run, in the order of candidates."""
    refused: Mapping[str, str]
    """Why it cannot run the others, by rank as text."""
    calibrations: Mapping[str, Document]
    """Calibrations that the plan was priced with and that its launch files mention, by name."""
    target: str
    """Whose launch files are run, where the back end is `export`."""

    @classmethod
    def of_plan(cls, plan: PlanRow, *, backend: str) -> Subject:
        """What is to be tried of a plan that has succeeded."""
        assert plan.response is not None
        response = json.loads(plan.response)
        calibrations = json.loads(plan.request)["calibrations"]
        ranks = [each["rank"] for each in candidate_plans(response)]
        # Which files can say a plan is a matter of its job, such as an adapter, which all plans of a response share.
        framework = response["request"]["training"]["framework"]
        target = target_of(framework, trial_row(response, ranks[0])) if ranks else ""
        subject = cls(response, ranks, {}, calibrations, target)
        refused = {}
        for rank in subject.ranks:
            if (why := subject.refusal(rank, backend=backend)) is not None:
                refused[str(rank)] = why
        return cls(response, [rank for rank in ranks if str(rank) not in refused], refused, calibrations, target)

    @classmethod
    def of_text(cls, text: str) -> Subject:
        """What `text` gave."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The subject as JSON."""
        fields = {"response": self.response, "ranks": list(self.ranks), "refused": dict(self.refused)}
        return encoded({**fields, "calibrations": dict(self.calibrations), "target": self.target})

    def candidates(self) -> list[Candidate]:
        """The plans that are tried, best first."""
        plans = {plan["rank"]: plan for plan in self.response["plans"]}
        return [Candidate.of_plan(plans[rank]) for rank in self.ranks]

    def refusal(self, rank: int, *, backend: str) -> str | None:
        """Why the back end cannot run a plan, in one line; None where it can."""
        row = trial_row(self.response, rank)
        # Asked without a GPU: what a back end cannot run of a plan follows from the plan alone.
        if backend == "pytorch":
            return PyTorchBackend().refusal(row)
        try:
            self.files(row)
        except MeshwrightError as error:
            return one_line(error)
        return None

    def files(self, row: Mapping[str, Any], *, knobs: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Launch files of a row by path, with these values of run-time knobs as `planner.knobs.spelled` says them.

        Raises:
            InvalidInputError, NotExpressibleError: the target cannot say it, or has no place for the knobs.
        """
        # No paths of this machine: names of calibrations are those of the tenant's own, or shipped ones.
        extra = {name: CalibrationDocument.model_validate(each) for name, each in self.calibrations.items()}
        files = with_knobs(export_row(row, self.target, extra=extra), knobs or {})
        return {file.path: file.content for file in files}

    def job(
        self,
        rank: int,
        *,
        backend: str,
        deadline_s: float,
        hopeless_above_s: float | None = None,
        knobs: Mapping[str, Any] | None = None,
    ) -> Document:
        """What an agent is given to try one plan: a `LeasedTrial` without the names of its tuning and trial."""
        row = trial_row(self.response, rank)
        return {
            "row": row,
            "backend": backend,
            "gpus": world_of(row),
            "deadline_s": deadline_s,
            "hopeless_above_s": hopeless_above_s,
            "files": self.files(row, knobs=knobs) if backend == "export" else None,
        }


def record_of_failure(job: str, reason: str) -> str:
    """The record of a trial that no machine could run, as JSON.

    Args:
        job: what agents were given, as JSON.
        reason: what went wrong.
    """
    given = json.loads(job)
    # A crash of no step: neither a time nor memory is known, and the study leaves the plan alone from then on.
    record = TrialRecord(
        row=given["row"],
        backend=given["backend"],
        status="crash",
        reason=as_reason(reason) or "nothing was said",
        took_s=0.0,
        gpu_seconds=0.0,
        machine=TrialMachine(gpu=str(gpu_of(given["row"])), gpus=given["gpus"]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )
    return encoded(record.to_json())


def gpu_of(row: Mapping[str, Any]) -> str:
    """Name of the GPU of a row's cluster."""
    gpu = row["cluster"]["gpu"]
    return str(gpu["name"] if isinstance(gpu, Mapping) else gpu)
