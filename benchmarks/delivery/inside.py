"""What the rehearsal does in its own network: PostgreSQL, then the containers of Compose, then those of Kubernetes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.delivery.checks import Checks
from benchmarks.delivery.stand_in import Container, finished, interpolated, run

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"
PASSWORD = "p@ss%2Fw:rd/#? '$x"  # noqa: S105 - every character that has a meaning in a URL, and invented
STOPPED = {0, -signal.SIGTERM}
"""Exit codes of a program that was told to stop and did: uvicorn ends by the signal that it was sent, after all is done."""
PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"))


def main() -> None:
    """Rehearses both, and writes what was seen to the file that is the second argument."""
    folder, results = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        with database(folder) as postgres:
            told = {"compose": compose(folder, postgres), "kubernetes": kubernetes(folder)}
    except BaseException:
        for log in sorted(folder.glob("*/*.log")):
            sys.stderr.write(f"== {log.relative_to(folder)}\n{log.read_text()[-3000:]}\n")
        raise
    results.write_text(json.dumps(told))


@contextmanager
def database(folder: Path) -> Iterator[Container]:
    """PostgreSQL at port 5432, as the entrypoint of its image makes it: user, database and password from the environment."""
    data, secret = folder / "postgres", folder / "secret"
    data.mkdir()
    secret.write_text(PASSWORD)
    for path in (data, secret):
        shutil.chown(path, "postgres")
    as_postgres: list[str | Path] = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    made: list[str | Path] = [
        PROGRAMS / "initdb",
        "-D",
        data,
        "-U",
        "meshwright",
        "-A",
        "scram-sha-256",
        "--pwfile",
        secret,
    ]
    subprocess.run([*as_postgres, *made], check=True, stdout=sys.stderr)
    log = folder / "database.log"
    started: list[str | Path] = [
        PROGRAMS / "postgres",
        "-D",
        data,
        "-c",
        "listen_addresses=*",
        "-c",
        f"unix_socket_directories={data}",
    ]
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 127.0.0.0/8 scram-sha-256\n")
    with log.open("ab") as output:
        process = subprocess.Popen([*as_postgres, *started], stdout=output, stderr=output, start_new_session=True)
    container = Container("database", process, log, stop_s=30.0, stop_signal=signal.SIGINT)
    until(lambda: subprocess.run(health("database"), check=False, capture_output=True).returncode == 0, within_s=60)
    create = ["psql", "--host", "database", "--username", "meshwright", "--dbname", "postgres", "--command"]
    subprocess.run(
        [*create, "CREATE DATABASE meshwright"], check=True, env={"PGPASSWORD": PASSWORD, "PATH": "/usr/bin"}
    )
    try:
        yield container
    finally:
        if container.process.poll() is None:
            container.stop()


def health(service: str) -> list[str]:
    """The command of a service's health check in compose.yaml, or in the Dockerfile."""
    test = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"][service].get("healthcheck", {}).get("test")
    if test is None:
        (line,) = [
            line
            for line in (ROOT / "Dockerfile").read_text().splitlines()
            if line.strip().startswith("CMD") and "readyz" in line
        ]
        return list(json.loads(line.strip().removeprefix("CMD ")))
    return list(test[1:])


def until(is_so: Callable[[], bool], *, within_s: float) -> float:
    """Seconds until it was so.

    Raises:
        TimeoutError: it never was.
    """
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > within_s:
            raise TimeoutError
        time.sleep(0.1)
    return time.monotonic() - began


def compose(folder: Path, postgres: Container) -> dict[str, Any]:
    """All services of compose.yaml in the order of their dependencies."""
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = interpolated(document, {"MESHWRIGHT_DB_PASSWORD": PASSWORD})["services"]
    engine = _Engine(folder / "compose", folder / "srv/meshwright/bin")

    def start(name: str, copy: str = "") -> Container:
        service = services[name]
        stop_s = float(service["stop_grace_period"].rstrip("s"))
        return engine.start(name + copy, service["command"], service["environment"], stop_s=stop_s)

    said = {"schema": finished(start("schema"), within_s=60).strip()}
    running = [start("service"), start("worker", "-1"), start("worker", "-2")]
    healthy_s = until(lambda: engine.succeeds(health("service")), within_s=60)
    proxy = _proxy(engine, services["proxy"])
    key = engine.output(["meshwright", "keys", "create", "rehearsal"], services["service"]["environment"])
    authority = engine.folder / "proxy/caddy/pki/authorities/local/root.crt"
    checks = Checks("https://localhost", key=key, authority=authority)
    until(authority.exists, within_s=30)
    checks.through_the_proxy()
    # A worker that is killed is an engine's to start again; its job goes on with the other one.
    checks.while_a_worker_dies(running[2].process, before=lambda: [each.look() for each in (*running, proxy, postgres)])
    backup = engine.start("backup", services["backup"]["command"], services["backup"]["environment"])
    said["backup"] = finished(backup, within_s=60).strip()
    (file,) = (engine.folder / "backup").glob("meshwright-*.db")
    restored = ["meshwright", "db", "restore", str(file), "--db", f"sqlite:///{engine.folder / 'restored.db'}"]
    said["restore"] = subprocess.run(
        [engine.programs / restored[0], *restored[1:]], check=True, capture_output=True, text=True
    ).stdout.strip()
    checks.note("the backup has what is restored", said["backup"].split("; ")[1] == said["restore"].split("; ")[1])
    stopped = {each.name: each.stop() for each in (proxy, *running[:2])}
    for name, how in stopped.items():
        checks.note(f"{name} stops by itself", how["exit_code"] in STOPPED, how)
    limits = {name: service["mem_limit"] for name, service in services.items()}
    peaks = {each.name: round(each.peak_bytes / 2**20) for each in (*running, proxy, postgres)}
    for name, peak in peaks.items():
        limit = limits[name.removesuffix("-1").removesuffix("-2")]
        checks.note(
            f"{name} stays below its memory",
            peak < float(limit[:-1]) * {"g": 1024, "m": 1}[limit[-1]],
            {"peak_mib": peak, "limit": limit},
        )
    said = {name: text.replace(str(folder), "") for name, text in said.items()}
    return {"checks": checks.seen, "printed": said, "healthy_after_s": round(healthy_s, 1), "commands": engine.commands}


def kubernetes(folder: Path) -> dict[str, Any]:
    """The Job, then one pod of each Deployment, with its probes and its hook."""
    engine = _Engine(folder / "kubernetes", folder / "srv/meshwright/bin")
    objects = [
        document
        for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document.get("kind") in {"Deployment", "Job", "ConfigMap"}
    ]
    (settings,) = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects if each["kind"] != "ConfigMap"
    }

    def start(name: str) -> Container:
        (container,) = pods[name]["containers"]
        # The one variable from a Secret.
        environment = {**settings, **{each["name"]: each.get("value", PASSWORD) for each in container["env"]}}
        grace_s = float(pods[name].get("terminationGracePeriodSeconds", 30))
        return engine.start(name, container["command"], environment, stop_s=grace_s)

    said = {"schema": finished(start("meshwright-schema"), within_s=60).strip()}
    service = start("meshwright")
    (container,) = pods["meshwright"]["containers"]
    (port,) = [each["containerPort"] for each in container["ports"]]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    key = engine.output(["meshwright", "keys", "create", "pods"], {**settings, "PGPASSWORD": PASSWORD})
    checks = Checks(f"http://127.0.0.1:{port}", key=key)
    until(lambda: checks.status(paths["startup"]) == 200, within_s=60)
    # The worker that was killed above still counts for the length of a lease.
    until(lambda: checks.status(paths["readiness"]) == 503, within_s=30)
    checks.note("without a worker the pod is alive, though not ready", checks.status(paths["liveness"]) == 200)
    worker = start("meshwright-worker")
    ready_s = until(lambda: checks.status(paths["readiness"]) == 200, within_s=60)
    checks.planned()
    (metric,) = [
        each["spec"]["metrics"][0]["external"]["metric"]["name"]
        for each in yaml.safe_load_all((DOCKER / "kubernetes" / "autoscaling.yaml").read_text())
        if "external" in each["spec"]["metrics"][0]
    ]
    checks.measured(metric)
    for each in (service, worker):
        checks.note(f"{each.name} stops by itself", (how := each.stop())["exit_code"] in STOPPED, how)
    return {"checks": checks.seen, "printed": said, "ready_after_s": round(ready_s, 1), "commands": engine.commands}


def _proxy(engine: _Engine, service: Mapping[str, Any]) -> Container:
    """Caddy with its own volumes; its file lies elsewhere, and it keeps the right to listen below port 1024."""
    volume = engine.folder / "proxy"
    volume.mkdir()
    words = [word.replace("/etc/caddy/Caddyfile", str(DOCKER / "Caddyfile")) for word in service["command"]]
    engine.commands.append(" ".join(service["command"]))
    log = engine.folder / "proxy.log"
    environment = {**service["environment"], "XDG_DATA_HOME": str(volume), "HOME": str(volume)}
    program = Path(sys.executable).parent / words[0]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [program, *words[1:]], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    return Container("proxy", process, log, stop_s=10.0)


class _Engine:
    """Starts containers of our image, each with a volume below `folder`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        self.commands: list[str] = []
        folder.mkdir()

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], *, stop_s: float = 10.0
    ) -> Container:
        volume = self.folder / name
        volume.mkdir()
        shutil.chown(volume, 10001)
        self.commands.append(" ".join(command))
        found = {"PATH": f"{self.programs}:/usr/bin:/bin", "MESHWRIGHT_DATA_DIR": str(volume), **environment}
        return run(name, command, environment=found, folder=self.folder, volume=volume, stop_s=stop_s)

    def output(self, command: list[str], environment: Mapping[str, str]) -> str:
        """What a command prints that is run in a container, as by `docker compose exec`."""
        self.commands.append(" ".join(command))
        done = subprocess.run(
            [self.programs / command[0], *command[1:]], env={**environment}, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def succeeds(self, command: list[str]) -> bool:
        return (
            subprocess.run(
                command, check=False, capture_output=True, env={"PATH": f"{self.programs}:/usr/bin"}
            ).returncode
            == 0
        )


if __name__ == "__main__":
    main()
