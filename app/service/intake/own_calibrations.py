"""The tenant's own calibrations that a request names. Over HTTP a name is an id or a shipped name, never a path.

They are looked up once and travel with the request, so that neither the planner nor a worker process needs the storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.errors import NotFoundError
from app.service.db.calibrations import CalibrationStore
from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError
from cost_models.hardware import parse_document
from cost_models.inputs.cluster import resolve_cluster

AUTO = "auto"
"""Stands for the tenant's newest calibration of the cluster's GPU and node shape, or for no calibration if there is none."""
Document = dict[str, Any]


class OwnCalibrations:
    """The calibrations that one request names, as far as they have been looked up."""

    def __init__(self, store: CalibrationStore, *, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._looked_up: set[str] = set()
        self.found: dict[str, CalibrationDocument] = {}
        """Documents by id."""

    def named(self, document: Any) -> Any:
        """The plan request or evaluate row with `auto` replaced by the calibration that it stands for now.

        Calibrations that it names are looked up on the way. A malformed part is left as it is, for the planner to refuse.
        """
        cluster = document.get("cluster") if isinstance(document, dict) else None
        if not isinstance(cluster, dict):
            return document
        if isinstance(cluster.get("pools"), list):
            return {**document, "cluster": {**cluster, "pools": [self._of_nodes(pool) for pool in cluster["pools"]]}}
        return {**document, "cluster": self._of_nodes(cluster)}

    def _of_nodes(self, cluster: Any) -> Any:
        """The same for a cluster of one kind of node, or for one pool."""
        names = _names(cluster)
        if not names:
            return cluster
        # `auto` is resolved now and not in the worker: the answer then depends on what is stored when the request arrives, and
        # its digest covers the calibration that was meant.
        kept = [name for given in names if (name := self._newest(cluster) if given == AUTO else given) is not None]
        for name in kept:
            self._look_up(name)
        rest = {field: value for field, value in cluster.items() if field != "calibration"}
        return {**rest, "calibration": kept} if kept else rest

    def _newest(self, cluster: Mapping[str, Any]) -> str | None:
        try:
            resolved = resolve_cluster({field: value for field, value in cluster.items() if field != "calibration"})
        except InvalidInputError:
            return None  # the planner reports what is wrong with the cluster
        return self._store.newest(self._tenant, gpu=resolved.gpu.name, gpus_per_node=resolved.gpus_per_node)

    def _look_up(self, name: str) -> None:
        if name in self._looked_up:
            return
        self._looked_up.add(name)
        try:
            self.found[name] = parse_document(self._store.document(self._tenant, name))
        except NotFoundError:
            return  # it is a shipped name, or one that the planner will refuse


def _names(cluster: object) -> list[str]:
    given = cluster.get("calibration") if isinstance(cluster, dict) else None
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return given
    return []
