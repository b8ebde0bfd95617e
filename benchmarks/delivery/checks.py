"""What a client sees of rehearsed containers."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2

SMALL: dict[str, Any] = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "top_k": 3,
}
# Some seconds of search on one core.
LONG: dict[str, Any] = {
    **SMALL,
    "model": {"preset": "llama-3.1-405b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 256, "gpus_per_node": 8},
    "training": {**SMALL["training"], "global_batch_size": 4096},
    "wait_s": 0,
}
DONE_S = 120.0


class Checks:
    """Asks one address with one key, and notes what was seen."""

    def __init__(self, address: str, *, key: str, authority: Path | None = None) -> None:
        """`authority`: the certificate that the server's must be signed by, where it speaks TLS."""
        self.authority = authority
        self.seen: dict[str, dict[str, Any]] = {}
        self._address = address
        self._headers = {"Authorization": f"Bearer {key}"}

    def note(self, name: str, ok: object, told: Mapping[str, Any] | None = None) -> None:
        """Keeps one check: whether it was as it should be, and what was seen."""
        self.seen[name] = {"ok": bool(ok), **({"told": dict(told)} if told else {})}

    def status(self, path: str) -> int:
        """Status of a GET; 0 where nothing answers."""
        try:
            return self._client().get(path).status_code
        except httpx2.HTTPError:
            return 0

    def planned(self) -> None:
        """A plan is asked for and found."""
        began = time.monotonic()
        plan = self._client().post("/v1/plans", json=SMALL)
        self.note("a plan is found", plan.status_code == 201, {"status": plan.status_code, "took_s": _since(began)})

    def measured(self, metric: str) -> None:
        """The figure that the autoscaler asks for is there, for who has a key."""
        figures = self._client().get("/metrics").text
        self.note("the autoscaler's figure is measured", f"\n{metric} " in figures)

    def through_the_proxy(self) -> None:
        """TLS, headers, sizes, events, and what is kept inside."""
        client = self._client()
        until_ready = time.monotonic()
        while self.status("/readyz") != 200 and _since(until_ready) < 30:
            time.sleep(0.2)
        self.planned()
        ready = client.get("/readyz")
        self.note("TLS with a certificate that is checked", ready.status_code == 200)
        self.note("the browser is told to come back by TLS", "strict-transport-security" in ready.headers)
        self.note("no header names the programs", "server" not in ready.headers, dict(ready.headers))
        plain = httpx2.get("http://localhost/readyz")
        self.note(
            "plain HTTP is sent to TLS",
            (plain.status_code, plain.headers["location"]) == (308, "https://localhost/readyz"),
        )
        self.note(
            "metrics stay inside",
            (client.get("/metrics").status_code, httpx2.get("http://service:8000/healthz").status_code) == (404, 200),
        )
        self.note(
            "without a key nothing is open",
            httpx2.get(f"{self._address}/v1/plans", verify=self._context()).status_code == 401,
        )
        large = client.post("/v1/plans", content=b" " * (2 << 20), headers={"Content-Type": "application/json"})
        self.note(
            "the service says what is too large",
            (large.status_code, large.json().get("code")) == (413, "body-too-large"),
        )
        flood = client.post("/v1/plans", content=b" " * (6 << 20), headers={"Content-Type": "application/json"})
        self.note("the proxy stops a flood", flood.status_code == 413, {"status": flood.status_code})
        self._events_arrive_as_they_happen()
        self._half_a_request_is_cut_off()

    def while_a_worker_dies(self, worker: subprocess.Popen[bytes], *, before: Callable[[], object]) -> None:
        """Four long plans, so that each worker process has one; `before` is called, one worker is killed, and all plans are found."""
        ids = [self._client().post("/v1/plans", json={**LONG, "seed": seed}).json()["id"] for seed in (1, 2, 3, 4)]
        time.sleep(1.0)
        before()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        ends = {plan_id: self._ended(plan_id) for plan_id in ids}
        self.note("jobs of a killed worker are done by the other", set(ends.values()) == {"succeeded"}, ends)

    def _events_arrive_as_they_happen(self) -> None:
        plan_id = self._client().post("/v1/plans", json={**LONG, "seed": 99}).json()["id"]
        began, times = time.monotonic(), []
        with self._client().stream("GET", f"/v1/plans/{plan_id}/events") as events:
            for line in events.iter_lines():
                times += [_since(began)] if line.startswith("data:") else []
        spread = times[-1] - times[0] if times else 0.0
        self.note("events are not held back", len(times) > 3 and spread > 0.5 * times[-1], {"seconds": times})

    def _half_a_request_is_cut_off(self) -> None:
        began = time.monotonic()
        with (
            socket.create_connection(("localhost", 443)) as plain,
            self._context().wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            tls.settimeout(30)
            try:
                tls.recv(1)
            except TimeoutError:
                self.note("half a request is cut off", False)
                return
        self.note("half a request is cut off", _since(began) < 20, {"after_s": _since(began)})

    def _ended(self, plan_id: str) -> str:
        began = time.monotonic()
        while _since(began) < DONE_S:
            status = self._client().get(f"/v1/plans/{plan_id}").json()["status"]
            if status not in {"queued", "running"}:
                return str(status)
            time.sleep(0.2)
        return "unfinished"

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self._address, headers=self._headers, verify=self._context(), timeout=60)

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
