"""Where tunings are kept: a study by its name in an Optuna storage, found again or begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.errors import WrongStateError
from app.knobs.storage import opened_storage, running, storage_shown
from app.tuning.backends import Backend
from app.tuning.loop import Tuning
from cost_models.inputs.fields import STRICT, Name, validated
from planner.search.bayes import StudyExistsError
from planner.search.standing import Limits
from planner.search.tuner import TuningStudy, has_study


class _Named(BaseModel):
    model_config = STRICT
    name: Annotated[Name, Field(pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$")]


def opened(
    response: Mapping[str, Any], backend: Backend, *, storage: str | None, name: str | None, seed: int, limits: Limits
) -> Tuning:
    """The tuning of that name, continued where the storage has it, else begun.

    Args:
        response: the plan response whose plans are measured.
        backend: what runs the trials.
        storage: SQLAlchemy URL; in memory where None.
        name: by default made of the request's digest.
        seed: of the draws by which chances are estimated.
        limits: what it may spend in all, earlier runs included.

    Raises:
        InvalidInputError: the storage or the name cannot be used.
        WrongStateError: the storage holds something else of that name.
        UnavailableError: the storage does not answer.
        MeasurementError: the back end can run none of the plans.
    """
    name = f"{response['request_digest'][:12]}-tune" if name is None else name
    validated(_Named, {"name": name}, pointer="")
    if storage is None:
        return Tuning.start(response, backend, name=name, seed=seed, limits=limits)
    kept = opened_storage(storage, must_exist=False)
    with running():
        if has_study(name, storage=kept):
            return _continued(response, backend, name=name, storage=kept, shown=storage_shown(storage), limits=limits)
        try:
            return Tuning.start(response, backend, name=name, storage=kept, seed=seed, limits=limits)
        except StudyExistsError:  # another process began it in between
            return _continued(response, backend, name=name, storage=kept, shown=storage_shown(storage), limits=limits)


def _continued(
    response: Mapping[str, Any], backend: Backend, *, name: str, storage: Any, shown: str, limits: Limits
) -> Tuning:
    try:
        study = TuningStudy.resume(name, storage=storage)
        digest, ran_by = study.about["request_digest"], study.about["backend"]
        # Also what is needed only later: a trial that cannot be read would else end the tuning when its trials have run.
        places = [each.candidate for each in study.told()] + [each.candidate for each in study.running()]
        if not study.candidates or not all(0 <= place < len(study.candidates) for place in places):
            raise ValueError(places)  # noqa: TRY301 - as what cannot be read
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"{name} in {shown} is a study that `meshwright tune` did not start, or that was changed since"
        raise WrongStateError(message, hint="Choose another --name or another --storage.") from error
    # Times of other plans, or of another program, would be taken for those of these.
    if digest != response["request_digest"]:
        message = f"{name} in {shown} tunes another request, or was begun by another version of meshwright"
        raise WrongStateError(message, hint="Choose another --name.")
    if ran_by != backend.name:
        message = f"{name} in {shown} was begun with --backend {ran_by}"
        raise WrongStateError(message, hint=f"Continue it with --backend {ran_by}, or choose another --name.")
    # Limits are those of this run's options, and count what earlier runs have spent.
    study.go_on(limits)
    return Tuning.resume(response, study)
