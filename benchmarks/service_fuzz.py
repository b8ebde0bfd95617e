"""Schemathesis against a running service with a key that works: examples, boundaries, drawn requests, and chains along the links.

A case is effective where the answer is a success or a 4xx that the OpenAPI document names for the call, other than 401 and 403. Bodies are
half drawn from the schemas and half mutated from the document's examples, because what is drawn rarely names a model that exists.

Run: python -m benchmarks.service_fuzz [--db postgresql://user@host/name] [--max-examples 400] [--only /v1/plans]
"""

from __future__ import annotations

import argparse
import copy
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import ScenarioRecorder

from benchmarks.record import ROOT, record

GOAL, GOAL_OF_A_PART = 5_000, 2_000
_CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
# Values at which columns, parsers and formulas end: of 32 and 64 bits, of floating point, of text, and of the wrong type.
_EXTREMES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31 - 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 1e308, 5e-324, -0.0, 0.5, "", "x" * 65, "x" * 81,
    "x" * 300, "\u2028", "é" * 64, "\U0001f600" * 40, "%s%n", "'; --", "../../etc/passwd", "2026-02-30T00:00:00Z",
    "9999-12-31T23:59:59-23:59", [], {}, [None], {"a": 1}, [[]] * 3,
)  # fmt: skip


@st.composite
def mutated(draw: Any, examples: list[Any]) -> Any:
    """One of the examples in which up to three places hold an extreme value, are left out, or are said twice."""
    document = copy.deepcopy(draw(st.sampled_from(examples)))
    for _ in range(draw(st.integers(0, 3))):
        holder, place = draw(st.sampled_from(list(_places(document))))
        change = draw(st.sampled_from(["extreme", "extreme", "extreme", "gone", "twice"]))
        if change == "extreme":
            holder[place] = copy.deepcopy(draw(st.sampled_from(_EXTREMES)))
        elif change == "gone":
            del holder[place]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[place]))
        else:
            holder[f"{place}_"] = holder[place]
        if not list(_places(document)):
            break
    if isinstance(document, dict) and "cluster" in document and "strategy" not in document and "files" not in document:
        document["wait_s"] = draw(st.sampled_from([0, 0.2]))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for place, value in list(pairs):
        yield document, place
        yield from _places(value)


@schemathesis.hook
def before_generate_body(context: Any, strategy: Any) -> Any:
    """Half of the bodies begin as one of the examples of the document."""
    content = context.operation.definition.raw.get("requestBody", {}).get("content", {})
    examples = [each["value"] for each in content.get("application/json", {}).get("examples", {}).values()]
    return strategy | mutated(examples) if examples else strategy


@dataclass(frozen=True, slots=True)
class Running:
    """A service that listens, and a key for it."""

    address: str
    key: str
    key_id: str
    process_id: int


@contextmanager
def serving(url: str | None, folder: Path) -> Iterator[Running]:
    """A service with this database; its log is `service.log` in the folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "MESHWRIGHT_DATA_DIR": str(folder), "MESHWRIGHT_JOB_TIME_LIMIT_S": "60", "MESHWRIGHT_MAX_QUEUED_JOBS": "100000",
        "MESHWRIGHT_POOL_SIZE": "1", "MESHWRIGHT_LOG_LEVEL": "warning",
    }  # fmt: skip
    database = [] if url is None else ["--db", url]
    program = [sys.executable, "-m", "meshwright"]
    subprocess.run([*program, "db", "upgrade", *database], cwd=ROOT, env=environment, check=True, capture_output=True)
    # A tenant of its own, so that a database that was used before does not show.
    tenant = f"fuzz-{secrets.token_hex(3)}"
    scopes = [part for scope in ("read", "plan", "profile", "admin") for part in ("--scope", scope)]
    command = [*program, "keys", "create", "fuzz", "--tenant", tenant, *scopes, *database]
    made = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    key, key_id = made.stdout.strip(), made.stderr.split()[0]
    address = f"http://127.0.0.1:{port}"
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [*program, "serve", "--port", str(port), *database], cwd=ROOT, env=environment, stderr=log
        )
        try:
            _await_ready(address)
            yield Running(address, key, key_id, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _await_ready(address: str) -> None:
    end_at = time.monotonic() + 60.0
    while time.monotonic() < end_at:
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=2):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise TimeoutError(f"{address} did not become ready")


class Tally:
    """What the service answered, by call and status, and which checks failed."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.effective = 0
        self.server_errors = 0
        self.undocumented: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def take(self, recorder: ScenarioRecorder) -> None:
        """Counts the calls of one scenario."""
        for case_id, interaction in recorder.interactions.items():
            node, response = recorder.cases.get(case_id), interaction.response
            if node is None or response is None:
                continue
            operation, status = node.value.operation, response.status_code
            is_own_method = interaction.request.method.lower() == operation.method.lower()
            documented = str(status) in operation.definition.raw["responses"]
            if is_own_method:
                self.statuses[f"{operation.label} {status}"] += 1
            self.effective += is_own_method and documented and status < 500 and status not in (401, 403)
            self.server_errors += status >= 500 and status not in (503, 504)
            if is_own_method and not documented:
                self.undocumented[f"{operation.label} {status}"] += 1
        self._note_ghosts(recorder)
        for checks in recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    name = f"{recorder.label}: {check.name}: {failure.title}: {failure.message[:160]}"
                    self.failures.setdefault(name, check.failure_info.code_sample[:1500])

    def _note_ghosts(self, recorder: ScenarioRecorder) -> None:
        # A check of our own in place of Schemathesis' `use_after_free`, which knows no DELETE that cancels: its 202 leaves the object.
        deleted: set[str] = set()
        for interaction in recorder.interactions.values():
            request, response = interaction.request, interaction.response
            if response is None:
                continue
            path = urlsplit(request.uri).path
            if request.method == "DELETE" and response.status_code == 204:
                deleted.add(path)
            elif response.status_code == 201:
                deleted -= {urlsplit(place).path for place in response.headers.get("location", [])}
            elif response.status_code == 200 and path in deleted:
                self.failures.setdefault(f"{request.method} {path} after it was deleted", request.uri)


def fuzz(service: Running, *, max_examples: int, only: str | None) -> Tally:
    """What the service answered to everything that was drawn."""

    @schemathesis.hook
    def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
        # A list shows the key that is in use; whoever revokes it is told nothing more.
        if (case.path_parameters or {}).get("key_id") == service.key_id:
            case.path_parameters["key_id"] = "key-of-nobody"

    config = SchemathesisConfig.from_dict(
        {
            "headers": {"Authorization": f"Bearer {service.key}"},
            "continue-on-failure": True,
            "request-timeout": 30,
            "max-stream-events": 20,
            "suppress-health-check": ["all"],
            "generation": {"max-examples": max_examples, "no-shrink": True, "database": "none"},
            "checks": {"enabled": False, **{name: {"enabled": True} for name in _CHECKS}},
        }
    )
    schema = schemathesis.openapi.from_url(f"{service.address}/openapi.json", config=config)
    chosen = schema if only is None else schema.include(path_regex=only)
    tally = Tally()
    for event in from_schema(chosen).execute():
        if isinstance(event, ScenarioFinished):
            tally.take(event.recorder)
        elif isinstance(event, NonFatalError):
            tally.failures.setdefault(f"{event.label}: {event.info.title}", str(event.info.message)[:500])
    return tally


def main() -> int:
    """0 where at least 5,000 effective cases, or 2,000 of a part of the paths, found nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", help="a database of PostgreSQL; by default a file of SQLite")
    parser.add_argument("--max-examples", type=int, default=400, help="cases drawn for each call")
    parser.add_argument("--only", help="pattern of the paths that are called")
    asked = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with serving(asked.db, Path(folder)) as service:
            tally = fuzz(service, max_examples=asked.max_examples, only=asked.only)
        log = (Path(folder) / "service.log").read_text()
    for name, sample in tally.failures.items():
        print(f"FAILED {name}\n    {sample}\n")
    tracebacks = log.count("Traceback")
    if tracebacks:
        print(log[log.index("Traceback") - 300 :][:6000])
    database = "sqlite" if asked.db is None else "postgresql"
    is_clean = not (tally.failures or tally.server_errors or tally.undocumented or tracebacks)
    # What was drawn for some paths takes no place of what was drawn for all.
    name, goal = ("service_fuzz", GOAL) if asked.only is None else ("service_fuzz_part", GOAL_OF_A_PART)
    record(
        f"{name}_{database}", value=tally.effective, unit="effective cases", goal=f">= {goal}, no 500", only=asked.only,
        server_errors=tally.server_errors, undocumented=dict(tally.undocumented), failed_checks=len(tally.failures),
        tracebacks=tracebacks, seconds=round(time.monotonic() - begin), statuses=dict(sorted(tally.statuses.items())),
    )  # fmt: skip
    return 0 if is_clean and tally.effective >= goal else 1


if __name__ == "__main__":
    sys.exit(main())
