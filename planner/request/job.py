"""A job from the three specifications of a request: on every pool of its cluster, with the calibration that prices it there.

Specifications repeat from row to row and from request to request, and cost models keep what they have computed for a job.
Equal documents therefore give the same `Job` object, as long as it is among the last few hundred.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from cost_models import presets
from cost_models.calibration import CalibrationDocument
from cost_models.corrections import NO_CORRECTIONS, CorrectionSet
from cost_models.errors import CalibrationError, InvalidInputError, NotModelledError, Problem
from cost_models.frameworks import frameworks_where
from cost_models.hardware import Calibration, load_calibration
from cost_models.hints import nearest, shown
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.corrections import resolve_corrections
from cost_models.inputs.model import resolve_model
from cost_models.inputs.pools import lists_pools, resolve_pools
from cost_models.inputs.training import resolve_training
from cost_models.job import Job, PooledJob
from cost_models.specs.cluster import Cluster, Pool, PooledCluster
from cost_models.specs.model import Model
from cost_models.specs.training import EXAMPLE_TRAINING, Training

_MOST_KEPT = 512
_PRICED = tuple(
    field.name for field in fields(Training) if field.name not in ("global_batch_size", "assumed", "warnings")
)
Documents = Mapping[str, CalibrationDocument]


def cost_key(job: PooledJob) -> tuple[Hashable, ...]:
    """A key that is equal for jobs that price a strategy alike: they may differ in their global batch and in their number of nodes.

    The batch affects the cost of a step only through the strategy's number of micro-batches, and the nodes only through the GPUs
    that it uses. Of jobs with equal keys the `largest_job` can price the strategies of all.
    """
    listed = (id(job.cluster),) if job.cluster.lists_pools else ()
    return (*listed, *(_price_key(each) for each in job.jobs))


@lru_cache(maxsize=2048)
def _price_key(job: Job) -> tuple[Hashable, ...]:
    # Islands are a share of the cluster's nodes, and a warm-up a share of the run's steps.
    whole = () if job.is_plain else (job.method, job.cluster.num_nodes, job.training.global_batch_size)
    return (
        id(job.model),
        job.calibration.price_key,
        id(job.corrections),
        *(getattr(job.training, name) for name in _PRICED),
        *whole,
    )


def largest_job(jobs: Sequence[PooledJob]) -> PooledJob:
    """The job with the most GPUs, of some with equal cost keys: it has the GPUs for every strategy that is legal in one of them."""
    return max(jobs, key=lambda job: job.cluster.num_gpus)


class JobCache:
    """Jobs and calibrations, found by the identity of the resolved specifications, which the resolvers cache as well.

    Identity is enough as a key, and much faster than comparing a model of a hundred layers: the tables hold the specifications
    themselves, so that no identity is used again.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, ...], Job] = {}
        self._priced: dict[tuple[Hashable, ...], tuple[Cluster, Calibration]] = {}
        self._lock = Lock()

    def job(
        self,
        model: Model,
        cluster: Cluster,
        training: Training,
        *,
        calibration: str | None,
        extra: Documents,
        files: bool,
        states_version: bool = False,
        corrections: CorrectionSet | None = None,
    ) -> Job:
        """The job of these specifications: the same object for the same three and the same corrections."""
        with self._lock:
            prices = self._calibration(cluster, calibration, extra=extra, files=files)
            key = (id(model), id(training), id(prices), int(states_version))
            job = self._kept(key, lambda: Job(model, prices.cluster, training, prices, states_version=states_version))
            in_force = NO_CORRECTIONS if corrections is None else corrections.of(job.scope)
            if in_force is NO_CORRECTIONS:
                return job
            # The corrections are held by the job of this key, so that their identity is not used again while it is kept.
            return self._kept((*key, id(in_force)), lambda: replace(job, corrections=in_force))

    def _kept(self, key: tuple[int, ...], make: Callable[[], Job]) -> Job:
        job = self._jobs.get(key)
        if job is None:
            job = make()
            self._keep(self._jobs, key, job)
        return job

    def _calibration(self, cluster: Cluster, name: str | None, *, extra: Documents, files: bool) -> Calibration:
        # Two tenants may give their own documents the same name, so what these priced must not be kept.
        names = cluster.calibration if name is None else (name,)
        key = (id(cluster), name, *(_file_state(each) for each in names if files))
        kept = None if extra and name is None else self._priced.get(key)
        if kept is not None:
            return kept[1]
        asked = cluster if name is None else replace(cluster, calibration=(name,))
        prices = load_calibration(asked, extra=extra, allow_files=files)
        if not extra or name is not None:
            self._keep(self._priced, key, (cluster, prices))
        return prices

    def clear(self) -> None:
        """Forgets everything. For experiments that change the constants of the cost models."""
        with self._lock:
            self._jobs.clear()
            self._priced.clear()

    @staticmethod
    def _keep(table: dict[Any, Any], key: Any, value: Any) -> None:
        if len(table) >= _MOST_KEPT:
            table.pop(next(iter(table)))  # dictionaries keep their order, so the first key is the oldest
        table[key] = value


def _file_state(name: str) -> Hashable:
    """Facts about a file that change when it is rewritten; None where there is no such file."""
    try:
        found = Path(name).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


JOBS = JobCache()
"""The cache that a process uses unless it is given another."""
WITHOUT_PIPELINE = frameworks_where(lambda facts: not facts.choices.pipelines)
"""Frameworks whose groups would span the kinds of node: a pool holds whole pipeline stages."""


def resolve_pooled_job(
    document: Mapping[str, Any],
    *,
    calibration: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
    states_version: bool = False,
    corrections: CorrectionSet | None = None,
    own_corrections: CorrectionSet | None = None,
    cache: JobCache = JOBS,
) -> PooledJob:
    """The job of a document's `model`, `cluster` and `training`, on one kind of node or on the pools that it lists.

    Corrections hold on one kind of node alone.

    Args:
        document: a plan request, an evaluate row, or any other object that has these three.
        calibration: a name that replaces `cluster.calibration`.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether a calibration name may be a path (on the command line).
        states_version: whether the answer states the framework's version (see `Job`).
        corrections: those that replace the document's own.
        own_corrections: the caller's, for which `auto` stands, as does a document that says nothing of corrections.
        cache: where jobs are kept; the process's own cache by default.

    Raises:
        InvalidInputError: a specification is wrong; the error lists the problems of all three.
        NotModelledError: a specification describes something that is not modelled.
        CalibrationError: the calibration is missing, damaged, or belongs to another GPU.
    """
    errors: list[InvalidInputError] = []
    model = _part(document, "model", _resolve_attending, errors)
    cluster = _part(document, "cluster", _resolve_any_cluster, errors)
    trainings: tuple[Training, ...] | None = None
    if model is not None and cluster is not None:
        trainings = _part(
            document, "training", lambda given: _resolve_trainings(given, model=model, cluster=cluster), errors
        )
    # Defaults of the training depend on the model and the GPU. Without these only its presence can be checked.
    elif not isinstance(document.get("training"), Mapping):
        errors.append(missing_or_wrong(document, "training"))
    if corrections is None:
        corrections = _corrections(document, own_corrections, errors)
    if errors:
        refused = any(isinstance(error, NotModelledError) for error in errors)
        problems = [problem for error in errors for problem in error.problems]
        raise (NotModelledError if refused else InvalidInputError)(problems)
    assert model is not None
    assert cluster is not None
    assert trainings is not None

    def job_on(pool: Pool, training: Training) -> Job:
        return cache.job(
            model,
            pool.cluster,
            training,
            calibration=calibration,
            extra=extra or {},
            files=allow_files,
            states_version=states_version,
            corrections=None if cluster.lists_pools else corrections,
        )

    if not cluster.lists_pools:
        return job_on(cluster.pools[0], trainings[0]).as_only_pool
    jobs = []
    for position, (pool, training) in enumerate(zip(cluster.pools, trainings, strict=True)):
        try:
            jobs.append(job_on(pool, training))
        except CalibrationError as error:
            at = f"/cluster/pools/{position}/calibration"
            message = f"pool {pool.name!r}: {error.message}"
            raise CalibrationError(message, hint=error.hint, context={"field": at}) from error
    # What was learnt on one kind of node says nothing of stages that wait for those of another.
    left = corrections is not None and any(each.in_force for each in corrections.listed)
    return PooledJob(cluster, tuple(jobs), corrections_left=left)


def resolve_job(document: Mapping[str, Any], *, cache: JobCache = JOBS, **options: Any) -> Job:
    """The job of a document whose cluster has one kind of node; arguments as of `resolve_pooled_job`."""
    if lists_pools(document.get("cluster")):
        resolve_cluster(document["cluster"])  # refuses pools by name
    return resolve_pooled_job(document, cache=cache, **options).jobs[0]


def _resolve_attending(document: Mapping[str, Any]) -> Model:
    """The model, some layer of which attends: no formula was held against modules or runs of a model without attention.

    Its parameters can be counted all the same, so that reading such a model refuses nothing.
    """
    model = resolve_model(document)
    if any(kind.mixer in ("attention", "both") for kind in model.distinct_kinds):
        return model
    place = "/model/hf_config" if "hf_config" in document else "/model/layer_types"
    message = "no layer of the model attends: models without attention are not modelled"
    hint = "Plan a hybrid, some of whose layers attend: 'full_attention', 'sliding_attention', 'chunked_attention' or 'hybrid'."
    raise NotModelledError([Problem(place, message, hint, "not-modelled")])


def _resolve_any_cluster(document: Mapping[str, Any]) -> PooledCluster:
    return resolve_pools(document) if lists_pools(document) else PooledCluster.of_one_kind(resolve_cluster(document))


def _resolve_trainings(document: Mapping[str, Any], *, model: Model, cluster: PooledCluster) -> tuple[Training, ...]:
    """The training on every pool: some defaults follow from the GPU."""
    found = tuple(resolve_training(document, model=model, cluster=pool.cluster) for pool in cluster.pools)
    framework = found[0].framework
    if cluster.lists_pools and framework in WITHOUT_PIPELINE:
        message = (
            f"{framework} has no pipeline parallelism, so its replicas would lie on different kinds of GPU and need "
            "unequal shares of the batch, which it cannot be told and which is not modelled"
        )
        able = frameworks_where(lambda facts: facts.choices.pipelines and facts.splits.told is not None)
        hint = f"Use {' or '.join(sorted(able))}, or plan each pool as a cluster of its own."
        raise NotModelledError([Problem("/training/framework", message, hint, "pools-not-supported")])
    return found


def _corrections(
    document: Mapping[str, Any], own: CorrectionSet | None, errors: list[InvalidInputError]
) -> CorrectionSet | None:
    given = document.get("corrections")
    if given is None or given == "auto":
        return own
    try:
        return resolve_corrections(given)
    except InvalidInputError as error:
        errors.append(error)
        return None


def _part(document: Mapping[str, Any], name: str, resolve: Any, errors: list[InvalidInputError]) -> Any:
    given = document.get(name)
    if not isinstance(given, Mapping):
        errors.append(missing_or_wrong(document, name))
        return None
    try:
        return resolve(given)
    except InvalidInputError as error:
        errors.append(error)
        return None


def missing_or_wrong(document: Mapping[str, Any], name: str) -> InvalidInputError:
    """The error for a specification that is missing or is not an object."""
    if name not in document:
        return InvalidInputError([Problem(f"/{name}", f"{name} is required", f"Add {name!r}.", "missing-field")])
    message = f"{name} is {shown(document[name])}; it must be an object {{…}}"
    return InvalidInputError([Problem(f"/{name}", message, _spelt_out(document[name], name))])


def _spelt_out(given: object, name: str) -> str:
    """How to write a specification that is not an object. A bare name is most often meant as the name of a preset."""
    if name not in ("model", "cluster"):
        return f"Write an object such as {json.dumps(EXAMPLE_TRAINING)}."
    known = presets.names("models" if name == "model" else "clusters")
    close = nearest(given.rpartition("/")[2], known) if isinstance(given, str) else None
    meant = close or ("llama-3.1-8b" if name == "model" else "dgx-h100")
    nodes = ', "num_nodes": 1' if name == "cluster" else ""
    return f'Write an object such as {{"preset": "{meant}"{nodes}}}, or list its fields.'
