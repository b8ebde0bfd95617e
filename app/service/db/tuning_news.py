"""How tunings stand, read in two statements however many readers there are: what their streams tell.

Unlike a plan's job a tuning keeps no events: its rows say how it stands, and each piece of news is the whole of that. Whoever missed
some has missed nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Engine, Row, func, select, tuple_

from app.service.db.engine import now_of, reading
from app.service.db.job_news import News, in_parts
from app.service.db.jobs import JobKey, Status
from app.service.db.tables import tuning_trials, tunings
from app.service.db.tuning_agents import of_agents

_SEQ_BYTES = 6
"""Of a digest. Numbers of so many bytes are exact in every language that reads JSON."""


@dataclass(frozen=True, slots=True)
class TrialState:
    """How a trial stands."""

    number: int
    status: str
    """queued, running, or how its plan ended: ok, oom, hang or crash."""
    attempts: int
    agent: str | None
    knobs: str | None
    """Values of run-time knobs that it tries, as JSON; None for the trial of a plan."""
    step_time_s: float | None
    """Measured median of its steps; None unless it was measured."""


@dataclass(frozen=True)
class TuningState:
    """How a tuning stands."""

    status: Status
    agents_in_touch: int
    """Agents that were heard of lately and could run its trials."""
    trials: tuple[TrialState, ...]
    gpu_seconds: float
    """Of all trials so far, attempts that were lost included."""
    stopped: str | None
    """Why no more trials are made, as JSON; None while they are."""

    @cached_property
    def seq(self) -> int:
        """A number that is the same for the same state, and another one for any other."""
        text = json.dumps(asdict(self)).encode()
        # 0 stands for knowing nothing.
        return int.from_bytes(hashlib.sha256(text).digest()[:_SEQ_BYTES], "big") or 1


class TuningNews:
    """Reads how tunings of any tenants stand."""

    def __init__(self, engine: Engine, *, in_touch_s: float) -> None:
        self._engine = engine
        self._in_touch = timedelta(seconds=in_touch_s)

    def since(self, known: Mapping[JobKey, int | None]) -> dict[JobKey, News[TuningState]]:
        """News of each of these tunings that is still there: how it stands, where that is not what is known of it.

        Args:
            known: the number of the state that is known of each; None where only its status is asked for.
        """
        found: dict[JobKey, News[TuningState]] = {}
        for part in in_parts(known):
            for key, state in self.states(list(part)).items():
                is_new = part[key] is not None and part[key] != state.seq
                found[key] = News(state.status, [state] if is_new else [])
        return found

    def states(self, keys: Sequence[JobKey]) -> dict[JobKey, TuningState]:
        """How each of these tunings stands that is still there; at most some hundred at once."""
        named = [(key.tenant, key.id) for key in keys]
        t, r = tunings.c, tuning_trials.c
        columns = (
            r.tenant,
            r.tuning_id,
            r.number,
            r.status,
            r.outcome,
            r.attempts,
            r.agent_id,
            r.knobs,
            r.step_time_s,
            r.gpu_seconds,
        )
        # One transaction for both statements: a tuning that has ended then comes with the trials that ended it.
        with reading(self._engine) as connection:
            in_touch = of_agents(func.count(), now_of(connection) - self._in_touch)
            rows = connection.execute(
                select(t.tenant, t.id, t.status, t.stopped, in_touch.label("agents_in_touch")).where(
                    tuple_(t.tenant, t.id).in_(named)
                )
            ).all()
            trials: dict[JobKey, list[Any]] = {}
            query = select(*columns).where(tuple_(r.tenant, r.tuning_id).in_(named)).order_by(r.number)
            for trial in connection.execute(query):
                trials.setdefault(JobKey(trial.tenant, trial.tuning_id), []).append(trial)
        return {
            (key := JobKey(row.tenant, row.id)): TuningState(
                row.status,
                row.agents_in_touch,
                tuple(_trial(each) for each in trials.get(key, ())),
                sum(each.gpu_seconds for each in trials.get(key, ())),
                row.stopped,
            )
            for row in rows
        }


def _trial(r: Row[Any]) -> TrialState:
    return TrialState(r.number, r.outcome or r.status, r.attempts, r.agent_id, r.knobs, r.step_time_s)
