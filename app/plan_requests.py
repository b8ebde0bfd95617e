"""From a posted request to a job: checked here, so that a bad one is answered at once, and given its digest and limits.

Calibrations are looked up here too: over HTTP they are the tenant's own or shipped ones, and travel with the job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.db.calibrations import CalibrationStore
from app.errors import NotFoundError
from app.jobs.plan_result import encoded
from app.version import VERSION
from cost_models.calibration import CalibrationDocument, parse_document, reference_names, shipped_names
from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.cluster import Cluster
from cost_models.specs.cluster_input import resolve_cluster
from cost_models.specs.fields import choice_hint, validated
from cost_models.specs.model_input import resolve_model
from cost_models.specs.training_input import resolve_training
from planner.schemas import PlanRequest

AUTO = "auto"
_STOP_AFTER_S = 5.0
"""Beyond the request's own time limit, after which the search should have stopped by itself."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be planned."""

    digest: str
    payload: str
    """What the job is given, JSON: `request` as asked, and the tenant's `calibrations` that it names."""
    time_limit_s: float
    """When the job is stopped."""
    wait_s: float


def prepare_request(
    document: Any, *, tenant: str, calibrations: CalibrationStore, job_time_limit_s: float
) -> PreparedRequest:
    """The job for this request.

    Raises:
        InvalidInputError: with every broken rule that can be seen without searching.
    """
    asked = validated(PlanRequest, document, pointer="")
    cluster = resolve_cluster(asked.cluster)
    model = resolve_model(asked.model)
    resolve_training(asked.training, model=model, cluster=cluster)
    named = own_calibrations(cluster, tenant=tenant, store=calibrations)
    request = dict(document)
    if AUTO in cluster.calibration:
        request["cluster"] = {**document["cluster"], "calibration": _with_auto(cluster.calibration, named)}
    content = {name: value for name, value in request.items() if name != "wait_s"}
    texts = {name: document.model_dump(mode="json", exclude_defaults=True) for name, document in named.items()}
    limit_s = job_time_limit_s if asked.time_limit_s is None else asked.time_limit_s + _STOP_AFTER_S
    return PreparedRequest(
        digest=hashlib.sha256(json.dumps([content, VERSION], sort_keys=True).encode()).hexdigest(),
        payload=encoded({"request": request, "calibrations": texts}),
        time_limit_s=min(limit_s, job_time_limit_s),
        wait_s=asked.wait_s,
    )


def _with_auto(names: tuple[str, ...], named: Iterable[str]) -> list[str]:
    """The names as asked, `auto` replaced by what it stands for now, so that the stored request stays repeatable."""
    newest = [name for name in named if name not in names]
    return [found for name in names for found in (newest if name == AUTO else [name])]


def own_calibrations(cluster: Cluster, *, tenant: str, store: CalibrationStore) -> dict[str, CalibrationDocument]:
    """The tenant's calibrations that this cluster names, by id; `auto` is the newest that fits, or none.

    Raises:
        InvalidInputError: a name is neither the tenant's nor a shipped one.
    """
    found = {}
    packaged = {*shipped_names(), *reference_names()}
    for name in cluster.calibration:
        calibration_id: str | None = name
        if name == AUTO:
            calibration_id = store.newest(tenant, gpu=cluster.gpu.name, gpus_per_node=cluster.gpus_per_node)
        if calibration_id is None or calibration_id in packaged:
            continue
        try:
            found[calibration_id] = parse_document(store.document(tenant, calibration_id))
        except NotFoundError as error:
            hint = choice_hint(name, [AUTO, *sorted(packaged)]) + " GET /v1/calibrations lists yours."
            message = f"there is no calibration {name!r}"
            raise InvalidInputError([Problem("/cluster/calibration", message, hint, "calibration")]) from error
    return found
