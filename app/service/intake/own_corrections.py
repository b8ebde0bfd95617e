"""A tenant's own corrections: learnt from its measured runs and from nobody else's, and written into its requests.

They are computed where they are asked for, from what is stored and with the models of this release, and kept for as long as nothing
new is measured or switched.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachetools import LRUCache
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine

from app.errors import NotFoundError
from app.service.db.correction_switches import MeasuredRuns, Switches, learnt_from, switch, switched_off
from app.service.db.observations import ObservationStore
from app.service.db.tunings import trial_records
from app.service.intake.sent_corrections import sent
from cost_models.corrections import Correction, fit_corrections
from cost_models.inputs.corrections import corrections_document
from planner.learning.measured import measured_runs
from planner.request.checked_request import PRODUCT_VERSION
from planner.request.job import Documents, resolve_pooled_job

MOST_RUNS = 200
"""Trials that corrections are learnt from, and observations, the newest of each: some seconds of computing whenever one is added."""
_MOST_TENANTS = 256
_LATELY_S = 2.0
"""Seconds for which what a tenant's runs taught is taken to stand, where looking again would cost more than the answer itself."""


class OwnCorrections:
    """The corrections of every tenant; each call is for one."""

    def __init__(self, engine: Engine, observations: ObservationStore) -> None:
        self._engine = engine
        self._observations = observations
        self._lock = threading.Lock()
        self._lately: LRUCache[str, tuple[float, bytes]] = LRUCache(_MOST_TENANTS)
        self._learnt: LRUCache[str, tuple[MeasuredRuns, tuple[Correction, ...]]] = LRUCache(_MOST_TENANTS)
        self._switched: LRUCache[str, tuple[MeasuredRuns, Switches, tuple[Correction, ...]]] = LRUCache(_MOST_TENANTS)
        self._looking: dict[str, asyncio.Task[bytes]] = {}

    def listed(self, tenant: str) -> tuple[Correction, ...]:
        """All that the tenant's runs teach, kept or not, switched off or not."""
        runs, switches = learnt_from(self._engine, tenant)
        found = self._listed(tenant, runs, switches)
        told = sent(found)
        with self._lock:
            self._lately[tenant] = time.monotonic(), told
        return found

    def _listed(self, tenant: str, runs: MeasuredRuns, switches: Switches) -> tuple[Correction, ...]:
        if not runs.trials + runs.observations:
            return ()
        # Two requests that come at once may both compute; a lock would let the second wait for what it would compute as well.
        with self._lock:
            learnt, switched = self._learnt.get(tenant), self._switched.get(tenant)
        if switched is not None and switched[:2] == (runs, switches):
            return switched[2]
        # A switch changes nothing of what is learnt, which takes seconds.
        fitted = learnt[1] if learnt is not None and learnt[0] == runs else self._fitted(tenant)
        # Switches name term and scope, so that they outlive every new fit.
        off = switched_off(self._engine, tenant)
        found = tuple(replace(each, enabled=each.id not in off) for each in fitted)
        with self._lock:
            self._learnt[tenant] = runs, fitted
            self._switched[tenant] = runs, switches, found
        return found

    def _fitted(self, tenant: str) -> tuple[Correction, ...]:
        trials = [text for _, _, text in trial_records(self._engine, tenant)[-MOST_RUNS:]]
        observed = self._observations.used(tenant, limit=MOST_RUNS)
        records = [json.loads(text) for text in (*trials, *observed)]
        return fit_corrections(measured_runs(records).runs)

    def one(self, tenant: str, correction_id: str) -> Correction:
        """What the tenant's runs say of one term within one scope.

        Raises:
            NotFoundError: they teach no such correction.
        """
        found = next((each for each in self.listed(tenant) if each.id == correction_id), None)
        if found is None:
            message = f"there is no correction {correction_id}"
            raise NotFoundError(message, hint="GET /v1/corrections lists those that your measured runs lead to.")
        return found

    def switch(self, tenant: str, correction_id: str, *, enabled: bool) -> Correction:
        """Switches one on or off, and returns it.

        Raises:
            NotFoundError: the tenant's runs teach no such correction.
        """
        self.one(tenant, correction_id)
        switch(self._engine, tenant, correction_id, enabled=enabled)
        with self._lock:
            self._lately.pop(tenant, None)
        # Read back, since a run that was stored in between may have changed what it says.
        return self.one(tenant, correction_id)

    def lately(self, tenant: str) -> bytes | None:
        """What the tenant's runs taught a moment ago, for `sent_corrections.received`; None where nobody has looked.

        It asks no database, so that it may be asked for every request. Runs and switches that other processes store are seen up to
        two seconds late.
        """
        with self._lock:
            looked_at, told = self._lately.get(tenant, (0.0, None))
        return told if looked_at > time.monotonic() - _LATELY_S else None

    async def now(self, tenant: str) -> bytes:
        """The same, at most two seconds old whoever has looked."""
        told = self.lately(tenant)
        if told is not None:
            return told
        # Learning anew takes seconds; those of one tenant who wait for it share one thread.
        looking = self._looking.get(tenant)
        if looking is None:
            looking = asyncio.ensure_future(run_in_threadpool(lambda: sent(self.listed(tenant))))
            self._looking[tenant] = looking
            looking.add_done_callback(lambda _: self._looking.pop(tenant))
        # One whose client leaves takes nothing from the others.
        return await asyncio.shield(looking)

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
        # Of pools as well, so that the plan says that it is not corrected.
        scopes = {job.scope for job in pooled.jobs}
        own = tuple(each for each in listed if each.scope in scopes)
        return {**plain, "corrections": corrections_document(own, product_version=PRODUCT_VERSION)} if own else None
