"""The life of an agent: register, ask for a measurement or a trial, make it, send what was found, and ask again.

Nothing that a service does for a while ends it: while the service is away the agent waits, longer each time, and a measurement goes on.
What was measured is on disk before it is sent.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from app.cli.agent.measurement import Ended, Measurement, command_of
from app.cli.agent.results import Results
from app.cli.agent.trials import clear_trial, finished_trials, prepare_trial, trial_command
from app.cli.client import Client
from app.errors import InternalError, NotFoundError, UnauthorizedError, WrongStateError, status_of
from cost_models.errors import MeasurementError, MeshwrightError

T = TypeVar("T")
Document = dict[str, Any]
_LOOK_EVERY_S = 0.5
"""Seconds between two looks at a measurement that runs."""
_ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent measures."""

    registration: Document
    """What the agent says of the node: the body of `POST /v1/agents`."""
    folder: Path
    device: str
    launcher: str | None = None
    trial_launcher: str | None = None
    """Words put before the program that runs a trial; it starts the processes of the GPUs by itself."""
    once: bool = False
    idle_limit_s: float | None = None
    """Seconds without anything to do after which it ends; None for never."""
    longest_wait_s: float = 60.0
    """Seconds between two attempts to reach a service that is away."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the agent can do."""
        # The processes of a trial are started on one node; a measurement has --launcher for several.
        return ("measurement", "trial") if self.registration["num_nodes"] == 1 else ("measurement",)


class Agent:
    """One run of an agent."""

    def __init__(
        self, client: Client, settings: AgentSettings, *, stopping: threading.Event, tell: Callable[[str], None]
    ) -> None:
        """`stopping` ends the run in good order; `tell` is given what people should read."""
        self._client, self._settings = client, settings
        self._stopping, self._tell = stopping, tell
        self._instance = secrets.token_hex(8)
        self._results = Results(settings.folder)
        self._agent: Document = {}

    def run(self) -> None:
        """Works until it is told to stop, or has nothing more to do.

        Raises:
            MeshwrightError: the service refuses the agent: its key, its facts.
        """
        self._results.sweep()
        self._take_up()
        self._register()
        idle_since = time.monotonic()
        while not self._stopping.is_set():
            self._deliver()
            job = self._asking(self._next)
            if job is not None:
                self._measure(job)
                self._deliver()
                idle_since = time.monotonic()
                if self._settings.once:
                    return
                continue
            limit_s = self._settings.idle_limit_s
            if limit_s is not None and time.monotonic() - idle_since >= limit_s:
                self._tell(f"nothing was asked for {limit_s:.0f} s")
                return
            self._stopping.wait(float(self._agent.get("poll_s", 5.0)))

    def _next(self) -> Document | None:
        return self._client.lease_job(self._id, instance=self._instance, kinds=self._settings.kinds)

    @property
    def _id(self) -> str:
        return str(self._agent["id"])

    def _register(self) -> None:
        facts = self._settings.registration
        found = self._patiently(lambda: self._client.register_agent(facts))
        if found is not None:
            self._agent = found
            nodes = f"{facts['num_nodes']} nodes of " if facts["num_nodes"] > 1 else ""
            self._tell(
                f"registered as {found['id']} ({facts['name']}: {nodes}{facts['gpus_per_node']} × {facts['gpu']})"
            )

    def _asking(self, call: Callable[[], T]) -> T | None:
        """The answer to a call of this agent. A service that has forgotten it, with its database for example, is told again."""
        try:
            return self._patiently(call)
        except NotFoundError:
            self._register()
            return self._patiently(call)

    def _patiently(self, call: Callable[[], T]) -> T | None:
        """The answer, however long the service is away; None if the agent was told to stop before there was one."""
        wait_s = 1.0
        while not self._stopping.is_set():
            try:
                return call()
            except MeshwrightError as error:
                if not _is_passing(error):
                    raise
                # Drawn, so that a hundred agents do not all come back in the same second.
                pause_s = wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
                self._tell(f"{error.message}; trying again in {pause_s:.0f} s")
                self._stopping.wait(pause_s)
                wait_s = min(2.0 * wait_s, self._settings.longest_wait_s)
        return None

    def _take_up(self) -> None:
        """Keeps for sending what an earlier run of this agent was killed too early to keep."""
        for out, result in finished_trials(self._settings.folder):
            self._results.put(out.stem, result)
            clear_trial(out)
            out.unlink(missing_ok=True)

    # --- measuring --------------------------------------------------------------------------------------------------

    def _measure(self, job: Document) -> None:
        out = self._settings.folder / f"{_file_name(job['id'])}.json"
        is_trial = job.get("kind") == "trial"
        doing = "training steps of a plan, at most" if is_trial else "measuring for"
        self._tell(f"{job['id']}: {doing} {job['budget_s']:.0f} s (attempt {job['attempt']})")
        try:
            command = self._trial_command(job, out) if is_trial else self._command(job, out)
            measurement = Measurement(command, out=out, time_limit_s=job["time_limit_s"], environment=os.environ)
        except MeasurementError as error:
            self._results.put(_file_name(job["id"]), _result(job, Ended(error.message, error.hint), out))
            return
        try:
            ended = self._watched(job, measurement)
        except BaseException:
            # Whatever ends the agent here, its measurement must not go on without it.
            measurement.stop(grace_s=0.0)
            raise
        finally:
            clear_trial(out)
        if ended is not None:
            self._results.put(_file_name(job["id"]), _result(job, ended, out))
            if not ended.message:
                measurement.clear()

    def _watched(self, job: Document, measurement: Measurement) -> Ended | None:
        """How the measurement ended; None if it was stopped because nobody wants its result, or the agent ends."""
        beat_at = 0.0
        while (ended := measurement.poll()) is None:
            if self._stopping.is_set():
                measurement.stop()
                self._give_back(job)
                return None
            if time.monotonic() >= beat_at:
                if not self._goes_on(job, measurement.parts_done):
                    measurement.stop()
                    measurement.clear()
                    return None
                beat_at = time.monotonic() + float(self._agent.get("heartbeat_s", 10.0))
            self._stopping.wait(_LOOK_EVERY_S)
        return ended

    def _goes_on(self, job: Document, parts_done: int | None) -> bool:
        try:
            told = self._client.keep_lease(self._id, lease=job["lease"], parts_done=parts_done)
        except MeshwrightError:
            # The measurement goes on: its result is taken late as long as nobody else has begun, and is kept here until then.
            return True
        if not told["go_on"]:
            self._tell(f"{job['id']}: stopped, because it is {told['status'] or 'with another agent'} now")
        return bool(told["go_on"])

    def _give_back(self, job: Document) -> None:
        result = {"lease": job["lease"], "outcome": "given-back"}
        try:
            self._client.send_result(self._id, result)
            self._tell(f"{job['id']}: given back")
        except MeshwrightError as error:
            # Its lease runs out by itself.
            self._tell(f"{job['id']}: could not be given back: {error.message}")

    def _command(self, job: Document, out: Path) -> list[str]:
        facts = self._settings.registration
        given = {
            "out": str(out),
            "budget": f"{job['budget_s']:g}s",
            "name": job["name"] or f"{facts['name']} {job['id']}",
            "gpu": facts["gpu"],
            "device": self._settings.device,
            **({"framework": job["framework"]} if job["framework"] else {}),
        }
        arguments = ["profile", "run", *(f"--{option}={value}" for option, value in given.items())]
        return command_of(arguments, gpus_per_node=facts["gpus_per_node"], launcher=self._settings.launcher)

    def _trial_command(self, job: Document, out: Path) -> list[str]:
        # A record of an earlier attempt that was cut off would be taken for that of this one.
        out.unlink(missing_ok=True)
        described = prepare_trial(job, out=out, device=self._settings.device)
        return trial_command(described, out, launcher=self._settings.trial_launcher)

    # --- sending ----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Sends every result that waits. What the service will never take is said, and the calibration is sent without its job."""
        for job_id, result in list(self._results.waiting()):
            try:
                ended = self._asking(lambda result=result: self._client.send_result(self._id, result))  # type: ignore[misc]
            except UnauthorizedError:
                raise
            except WrongStateError:
                if "trial" in result:
                    self._tell(f"{job_id}: ended elsewhere; its record stays in {self._settings.folder}")
                    self._results.set_aside(job_id)
                else:
                    self._keep_calibration(job_id, result)
            except MeshwrightError as error:
                self._tell(f"{job_id}: the service refuses the result: {error.message}")
                self._report_refusal(result, error)
                self._results.set_aside(job_id)
            else:
                if ended is None:  # told to stop; the file stays
                    return
                self._tell(f"{job_id}: {_said(ended)}")
            self._results.drop(job_id)

    def _keep_calibration(self, job_id: str, result: Document) -> None:
        """The job was cancelled or is another agent's; what was measured is true all the same."""
        self._tell(f"{job_id}: ended elsewhere")
        if (document := result.get("calibration")) is not None:
            calibration_id = self._patiently(lambda: self._client.upload_calibration(document))
            self._tell(f"{job_id}: uploaded as calibration {calibration_id}")

    def _report_refusal(self, result: Document, error: MeshwrightError) -> None:
        told = {"message": f"the service refused the result: {error.message}"[:2000], "hint": error.hint[:2000]}
        failed = {"lease": result["lease"], "outcome": "failed", "error": told}
        try:
            self._patiently(lambda: self._client.send_result(self._id, failed))
        except MeshwrightError as second:
            self._tell(f"the refusal could not be reported: {second.message}")


def _is_passing(error: MeshwrightError) -> bool:
    """Whether the service is away or busy, or at fault, so that the same call may succeed later."""
    return status_of(error) in {429, 503} or isinstance(error, InternalError)


def _result(job: Document, ended: Ended, out: Path) -> Document:
    if ended.message:
        error = {"message": ended.message[:2000], "hint": ended.hint[:2000]}
        return {"lease": job["lease"], "outcome": "failed", "error": error}
    found = json.loads(out.read_text(encoding="utf-8"))
    kept_as = "trial" if job.get("kind") == "trial" else "calibration"
    return {"lease": job["lease"], "outcome": "measured", kept_as: found}


def _said(ended: Document) -> str:
    """What the service made of a result, in one line."""
    if "trial_status" not in ended:
        return f"{ended['status']}: {ended['calibration'] or ended['error']['detail']}"
    if ended["trial_status"] is None:
        return f"{ended['status']} again"
    measured = ended["step_time_s"]
    return str(ended["reason"]) if measured is None else f"a step takes {measured:.4g} s"


def _file_name(job_id: str) -> str:
    """The id as the name of a file, whatever a service calls its jobs."""
    return "".join(letter if letter in _ID_LETTERS else "_" for letter in job_id)[:100]
