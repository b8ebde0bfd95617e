"""The tenant's own calibrations that a request names. Over HTTP a name is an id or a shipped name, never a path.

They are looked up once and travel with the request, so that neither the planner nor a worker process needs the storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError, Problem
from cost_models.hardware import parse_document
from cost_models.inputs.cluster import resolve_cluster

AUTO = "auto"
"""Stands for the tenant's newest calibration of the cluster's GPU and node shape, or for no calibration if there is none."""
Document = dict[str, Any]


MOST_NAMES = 16
"""Calibrations that one cluster may name; the schema of a cluster says the same."""
MOST_DOCUMENTS = 64
"""Different calibrations that one request may name in all of its rows and pools. Each is read and parsed before anything is priced."""


class CalibrationSource(Protocol):
    """Where calibrations are looked up: the storage, or in another process something that asks for them."""

    def newest(self, tenant: str, /, *, gpu: str, gpus_per_node: int) -> str | None:
        """Id of the tenant's newest calibration of this GPU and node shape."""

    def documents(self, tenant: str, ids: Sequence[str], /) -> dict[str, str]:
        """Those of these documents that the tenant has, as JSON by id."""


class OwnCalibrations:
    """The calibrations that one request names, as far as they have been looked up."""

    def __init__(self, store: CalibrationSource, *, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._newest: dict[tuple[str, int], str | None] = {}
        self.found: dict[str, CalibrationDocument] = {}
        """Documents by id."""
        self.names_any = False
        """Whether anything that was looked at names a calibration, be it `auto`."""

    def named(self, documents: Sequence[Any]) -> list[Any]:
        """Plan requests or evaluate rows with `auto` replaced by the calibration that it stands for now.

        Calibrations that they name are looked up on the way, in one query. A malformed part is left as it is, for the planner to
        refuse.

        Raises:
            InvalidInputError: they name more calibrations than one request may.
        """
        named: dict[str, None] = {}
        result = [self._of_document(document, named) for document in documents]
        if len(named) > MOST_DOCUMENTS:
            message = f"the request names {len(named):,} calibrations; one request may name {MOST_DOCUMENTS}"
            raise InvalidInputError([Problem("/cluster/calibration", message, "Split it over several requests.")])
        for name, text in self._store.documents(self._tenant, list(named)).items() if named else ():
            self.found[name] = parse_document(text)
        return result

    def _of_document(self, document: Any, named: dict[str, None]) -> Any:
        cluster = document.get("cluster") if isinstance(document, dict) else None
        if not isinstance(cluster, dict):
            return document
        if isinstance(cluster.get("pools"), list):
            pools = [self._of_nodes(pool, named) for pool in cluster["pools"]]
            return {**document, "cluster": {**cluster, "pools": pools}}
        return {**document, "cluster": self._of_nodes(cluster, named)}

    def _of_nodes(self, cluster: Any, named: dict[str, None]) -> Any:
        """The same for a cluster of one kind of node, or for one pool."""
        names = _names(cluster)
        if not names:
            return cluster
        self.names_any = True
        # `auto` is resolved now and not in the worker: the answer then depends on what is stored when the request arrives, and
        # its digest covers the calibration that was meant.
        kept = [name for given in names if (name := self._auto(cluster) if given == AUTO else given) is not None]
        named.update(dict.fromkeys(kept))
        rest = {field: value for field, value in cluster.items() if field != "calibration"}
        return {**rest, "calibration": kept} if kept else rest

    def _auto(self, cluster: Mapping[str, Any]) -> str | None:
        try:
            resolved = resolve_cluster({field: value for field, value in cluster.items() if field != "calibration"})
        except InvalidInputError:
            return None  # the planner reports what is wrong with the cluster
        node = (resolved.gpu.name, resolved.gpus_per_node)
        if node not in self._newest:
            self._newest[node] = self._store.newest(self._tenant, gpu=node[0], gpus_per_node=node[1])
        return self._newest[node]


def _names(cluster: object) -> list[str]:
    given = cluster.get("calibration") if isinstance(cluster, dict) else None
    if isinstance(given, str):
        return [given]
    # Longer lists are left for the planner, which refuses them.
    if isinstance(given, list) and len(given) <= MOST_NAMES and all(isinstance(name, str) for name in given):
        return given
    return []
