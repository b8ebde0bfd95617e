"""The run-time knobs of a tuning's best plan, tuned with real steps through the same back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.knobs.tuning import KnobTuning
from app.tuning.backends import Backend
from app.tuning.rows import trial_row

Json = dict[str, Any]


def tune_knobs(
    response: Mapping[str, Any],
    rank: int,
    backend: Backend,
    *,
    trials: int,
    deadline_s: float,
    storage: str,
    name: str,
    seed: int = 0,
    tell: Callable[[Json, Json], None] | None = None,
) -> Json:
    """Runs trials of one plan with other values of its knobs, the framework's defaults first.

    Args:
        response: the plan response.
        rank: rank of the plan.
        backend: what runs the trials.
        trials: how many are run.
        deadline_s: seconds that each may take.
        storage: SQLAlchemy URL where the tuning of the knobs is kept.
        name: its name there.
        seed: seed of the sampler.
        tell: called after each trial with the values and the trial record.

    Returns:
        What `meshwright knobs best` says, and `trials`, each with its values, its status and its seconds.

    Raises:
        NotExpressibleError: the plan has no knobs.
        InvalidInputError: the launch files have no place for them.
    """
    tuning = KnobTuning.start(response, storage=storage, plan=rank, name=name, seed=seed)
    row, ran = trial_row(response, rank), []
    for _ in range(trials):
        asked = tuning.ask()
        spelled: Json = {key: asked[key] for key in ("arguments", "config") if key in asked}
        record = backend.run(row, deadline_s=deadline_s, knobs=spelled)
        # A trial that failed is told without a time, which counts as worse than every other.
        tuning.tell(asked["trial"], record["step_time_s"])
        ran.append(
            {"values": asked["values"], **{key: record[key] for key in ("status", "reason", "step_time_s", "took_s")}}
        )
        if tell is not None:
            tell(asked["values"], record)
    return {**tuning.best(), "trials": ran}
