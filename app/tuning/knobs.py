"""The run-time knobs of a tuning's best plan, tuned with real steps through the same back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.errors import WrongStateError
from app.knobs.tuning import KnobTuning
from app.tuning.backends import Backend
from app.tuning.rows import trial_row
from cost_models.errors import MeshwrightError

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
        What `meshwright knobs best` says; `trials`, those of this call, each with its values, its status and its seconds; and `stopped`,
        why there are not more of them, which is null where all were run. The same call goes on with what is kept.

    Raises:
        NotExpressibleError: the plan has no knobs.
        InvalidInputError: the launch files have no place for them.
    """
    try:
        tuning = KnobTuning.start(response, storage=storage, plan=rank, name=name, seed=seed)
    except WrongStateError:
        tuning = KnobTuning.resume(storage, name=name)
    row, ran, stopped = trial_row(response, rank), [], None
    counts = tuning.best()
    for _ in range(trials - counts["told"] - counts["failed"]):
        asked = tuning.ask()
        spelled: Json = {key: asked[key] for key in ("arguments", "config") if key in asked}
        try:
            record = backend.run(row, deadline_s=deadline_s, knobs=spelled)
        except KeyboardInterrupt:
            stopped = {"reason": "cancelled", "message": "Somebody stopped it."}
            break
        except MeshwrightError as error:
            stopped = {"reason": "failed", "message": f"{error.message} {error.hint}".rstrip()}
            break
        # A trial that failed is told without a time, which counts as worse than every other.
        tuning.tell(asked["trial"], record["step_time_s"])
        ran.append(
            {"values": asked["values"], **{key: record[key] for key in ("status", "reason", "step_time_s", "took_s")}}
        )
        if tell is not None:
            tell(asked["values"], record)
    return {**tuning.best(), "trials": ran, "stopped": stopped}
