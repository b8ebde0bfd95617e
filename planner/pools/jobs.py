"""A job on pools from the three specifications of a request: the job of every pool, priced by that pool's own calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import CalibrationError, InvalidInputError, NotModelledError, Problem
from cost_models.frameworks import frameworks_where
from cost_models.job import PooledJob
from cost_models.specs.cluster import PooledCluster
from cost_models.specs.model import Model
from cost_models.specs.model_input import resolve_model
from cost_models.specs.pools_input import resolve_pools
from cost_models.specs.training import Training
from cost_models.specs.training_input import resolve_training
from planner.request.habits import with_habits
from planner.request.job import JOBS, Documents, missing_or_wrong

WITHOUT_PIPELINE = frameworks_where(lambda facts: not facts.choices.pipelines)
"""Frameworks whose groups would span the kinds of node: stages are what a pool holds."""


def resolve_pooled_job(
    document: Mapping[str, Any],
    *,
    calibration: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
    states_version: bool = False,
) -> PooledJob:
    """The job on pools of a document's `model`, `cluster` (with `pools`) and `training`; see `planner.request.job.resolve_job`.

    Raises:
        InvalidInputError: with the problems of all three parts; NotModelledError where one is refused.
        CalibrationError: a pool's calibration is missing, damaged, or of another GPU.
    """
    errors: list[InvalidInputError] = []
    model: Model | None = None
    cluster: PooledCluster | None = None
    try:
        model = resolve_model(_object(document, "model"))
    except InvalidInputError as error:
        errors.append(error)
    try:
        cluster = resolve_pools(document["cluster"])
    except InvalidInputError as error:
        errors.append(error)
    trainings: list[Training] = []
    try:
        given = _object(document, "training")
        if model is not None and cluster is not None:
            trainings = [resolve_training(given, model=model, cluster=pool.cluster) for pool in cluster.pools]
            if trainings[0].framework in WITHOUT_PIPELINE:
                raise _no_pipeline(trainings[0].framework)
    except InvalidInputError as error:
        errors.append(error)
    if errors:
        refused = any(isinstance(error, NotModelledError) for error in errors)
        problems = [problem for error in errors for problem in error.problems]
        raise (NotModelledError if refused else InvalidInputError)(problems)
    assert model is not None
    assert cluster is not None
    jobs = []
    for position, (pool, training) in enumerate(zip(cluster.pools, trainings, strict=True)):
        try:
            job = JOBS.job(
                model,
                pool.cluster,
                training,
                calibration=calibration,
                extra=extra or {},
                files=allow_files,
                states_version=states_version,
            )
        except CalibrationError as error:
            at = f"/cluster/pools/{position}/calibration"
            message = f"pool {pool.name!r}: {error.message}"
            raise CalibrationError(message, hint=error.hint, context={"field": at}) from error
        jobs.append(job)
    return PooledJob(cluster=cluster, jobs=tuple(jobs))


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    given = document.get(name)
    if not isinstance(given, Mapping):
        raise missing_or_wrong(document, name)
    return given


def _no_pipeline(framework: str) -> NotModelledError:
    message = (
        f"{framework} has no pipeline parallelism, so its replicas would lie on different kinds of GPU and need unequal "
        f"shares of the batch, which it cannot be told and which is not modelled"
    )
    able = " or ".join(
        sorted(frameworks_where(lambda facts: facts.choices.pipelines and facts.splits.told is not None))
    )
    hint = f"Use {able}, or plan each pool as a cluster of its own."
    return NotModelledError([Problem("/training/framework", message, hint, "pools-not-supported")])


def assumed_of(pooled: PooledJob, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Every default applied to a job on pools and one of its strategies, by contract field.

    A training default that follows from the GPU is listed under the pools' names where it differs.
    """
    first = pooled.jobs[0]
    training: dict[str, Any] = {}
    for field, value in first.training.assumed.items():
        values = [job.training.assumed.get(field, value) for job in pooled.jobs]
        same = all(other == value for other in values)
        training[field] = value if same else dict(zip(pooled.names, values, strict=True))
    return with_habits(first, {**first.model.assumed, **pooled.cluster.assumed, **training, **strategy})
