"""A tenant's own corrections: learnt from its measured runs and from nobody else's, and written into its requests.

They are computed where they are asked for, from what is stored and with the models of this release, and kept for as long as nothing
new is measured or switched.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachetools import LRUCache
from sqlalchemy import Engine

from app.errors import NotFoundError
from app.service.db.correction_switches import LearntFrom, learnt_from, switch, switched_off
from app.service.db.observations import ObservationStore
from app.service.db.tunings import trial_records
from cost_models.corrections import Correction, CorrectionSet, fit_corrections
from cost_models.inputs.corrections import corrections_document
from planner.learning.measured import measured_runs
from planner.request.checked_request import PRODUCT_VERSION
from planner.request.job import Documents, resolve_pooled_job

MOST_RUNS = 200
"""Trials that corrections are learnt from, and observations, the newest of each: some seconds of computing whenever one is added."""
_MOST_TENANTS = 256
_EMPTY_S = 2.0
"""Seconds for which a tenant that has measured nothing is taken to go on so."""


class OwnCorrections:
    """The corrections of every tenant; each call is for one."""

    def __init__(self, engine: Engine, observations: ObservationStore) -> None:
        self._engine = engine
        self._observations = observations
        self._lock = threading.Lock()
        self._empty: LRUCache[str, float] = LRUCache(_MOST_TENANTS)
        self._known: LRUCache[str, tuple[LearntFrom, tuple[Correction, ...]]] = LRUCache(_MOST_TENANTS)

    def listed(self, tenant: str) -> tuple[Correction, ...]:
        """All that the tenant's runs teach, kept or not, switched off or not."""
        state = learnt_from(self._engine, tenant)
        if not state.trials + state.observations:
            with self._lock:
                self._empty[tenant] = time.monotonic()
            return ()
        # Two requests that come at once may both compute; a lock would let the second wait for what it would compute as well.
        with self._lock:
            known = self._known.get(tenant)
        if known is not None and known[0] == state:
            return known[1]
        found = self._learnt(tenant)
        with self._lock:
            self._known[tenant] = state, found
        return found

    def _learnt(self, tenant: str) -> tuple[Correction, ...]:
        trials = [text for _, _, text in trial_records(self._engine, tenant)[-MOST_RUNS:]]
        observed = self._observations.used(tenant, limit=MOST_RUNS)
        records = [json.loads(text) for text in (*trials, *observed)]
        # Switches name term and scope, so that they outlive every new fit.
        off = switched_off(self._engine, tenant)
        learnt = fit_corrections(measured_runs(records).runs)
        return tuple(replace(each, enabled=each.id not in off) for each in learnt)

    def switch(self, tenant: str, correction_id: str, *, enabled: bool) -> Correction:
        """Switches one on or off, and returns it.

        Raises:
            NotFoundError: the tenant's runs teach no such correction.
        """
        if not any(each.id == correction_id for each in self.listed(tenant)):
            message = f"there is no correction {correction_id}"
            raise NotFoundError(message, hint="GET /v1/corrections lists those that your measured runs lead to.")
        switch(self._engine, tenant, correction_id, enabled=enabled)
        # Read back, since a run that was stored in between may have changed what it says.
        return next(each for each in self.listed(tenant) if each.id == correction_id)

    def seems_empty(self, tenant: str) -> bool:
        """Whether the tenant's runs taught nothing a moment ago. It asks no database, so that it may be asked for every request."""
        with self._lock:
            return self._empty.get(tenant, -math.inf) > time.monotonic() - _EMPTY_S

    def of_request(self, tenant: str, request: Mapping[str, Any], *, extra: Documents) -> dict[str, Any] | None:
        """The plan request with the tenant's corrections of its scope in place of `auto`; None where there are none.

        Raises:
            InvalidInputError: its model, cluster or training is wrong.
        """
        # Open splits are searched with the models' own seconds; asked for by name, they come before what is applied by default.
        if request.get("corrections") not in (None, "auto") or "open_splits" in (request.get("include") or ()):
            return None
        listed = self.listed(tenant)
        if not listed:
            return None
        plain = {name: value for name, value in request.items() if name != "corrections"}
        pooled = resolve_pooled_job(plain, extra=extra)
        own = () if pooled.cluster.lists_pools else CorrectionSet(listed).of(pooled.jobs[0].scope).listed
        return {**plain, "corrections": corrections_document(own, product_version=PRODUCT_VERSION)} if own else None
