"""The files of docker/: linted by the tools of their trades, held to the schemas of what reads them, and to each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.cli.main import app
from app.settings import Settings
from scripts.lock import PYTHON, inputs

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent
DOCKERFILES = (ROOT / "Dockerfile", *sorted(DOCKER.glob("*.Dockerfile")))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
KUSTOMIZATION = yaml.safe_load((DOCKER / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))
VALUES = "prometheus-adapter.yaml"
"""Not an object of Kubernetes, but the values of a Helm chart."""
SCRAPES = "prometheus-scrape.yaml"
"""A part of Prometheus' configuration."""
OBJECTS: list[dict[str, Any]] = [
    document
    for name in KUSTOMIZATION["resources"]
    for document in yaml.safe_load_all((DOCKER / "kubernetes" / name).read_text(encoding="utf-8"))
]
# The oldest release of Kubernetes that is still maintained, and one of today. `sleep` in a hook is beta since 1.30.
RELEASES = ("1.31", "1.37")
PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
NAMED_BY_US = {"meshwright", "meshwright-profiler"}


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    return {name: each["spec"]["template"] for kind in ("Deployment", "Job") for name, each in of_kind(kind).items()}


def commands() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Command and environment of each container of ours, by where it stands."""
    settings = of_kind("ConfigMap")["meshwright"]["data"]
    found = {
        f"compose: {name}": (service["command"], service["environment"])
        for name, service in COMPOSE["services"].items()
        if service["image"] in NAMED_BY_US
    }
    for name, pod in pods().items():
        (container,) = pod["spec"]["containers"]
        found[f"kubernetes: {name}"] = (container["command"], {**settings, **{e["name"]: "" for e in container["env"]}})
    for file in DOCKERFILES:
        (command,) = re.findall(r"^CMD (\[.*\])$", file.read_text(encoding="utf-8"), re.MULTILINE)
        found[file.name] = (json.loads(command), {})
    return found


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing_in(file: Path) -> None:
    told = subprocess.run([BIN / "hadolint", file], check=False, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")


def test_yamllint_finds_nothing() -> None:
    told = subprocess.run([BIN / "yamllint", "--strict", DOCKER], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (told.returncode, told.stdout) == (0, "")


def test_the_proxy_reads_its_configuration_as_it_is_written() -> None:
    for command in ("validate", "fmt"):
        words = [BIN / "caddy", command, *(("--config",) if command == "validate" else ()), DOCKER / "Caddyfile"]
        told = subprocess.run(words, check=False, capture_output=True, text=True, cwd="/")
        assert told.returncode == 0, told.stderr
    assert told.stdout == (DOCKER / "Caddyfile").read_text(encoding="utf-8")


def test_compose_follows_the_specification() -> None:
    """The schema, of 2021, is older than the project's `name`; all else that the file says is in it."""
    schema = json.loads((Path(__file__).parent / "compose_spec" / "compose-spec.json").read_text(encoding="utf-8"))
    document = {key: value for key, value in COMPOSE.items() if key != "name"}
    assert [error.message for error in Draft7Validator(schema).iter_errors(document)] == []
    broken = {**document, "services": {"x": {"image": "y", "memlimit": "1g"}}}
    assert list(Draft7Validator(schema).iter_errors(broken)), "the schema knows what a service may say"


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_accepts_every_object(release: str) -> None:
    for each in OBJECTS:
        kubernetes_validate.validate(each, release, strict=True)


def test_every_manifest_is_applied() -> None:
    files = {path.name for path in (DOCKER / "kubernetes").glob("*.yaml")}
    assert files == {*KUSTOMIZATION["resources"], "kustomization.yaml", VALUES, SCRAPES}


def test_images_of_others_are_named_by_digest() -> None:
    named = [service["image"] for service in COMPOSE["services"].values()]
    for file in DOCKERFILES:
        stages: set[str] = set()
        for image, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", file.read_text(encoding="utf-8"), re.MULTILINE):
            named += [image] if image not in stages else []
            stages.add(stage)
    others = [image for image in named if image not in NAMED_BY_US]
    assert len(others) >= 6
    assert all(PINNED.fullmatch(image) for image in others), others
    assert {container["image"] for pod in pods().values() for container in pod["spec"]["containers"]} <= NAMED_BY_US


@pytest.mark.parametrize("name", inputs(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))))
def test_lock_files_hold_what_the_project_asks_for(name: str) -> None:
    """Offline; `python -m scripts.lock check`, which .ci/run runs, asks the registry too."""
    wanted = inputs(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))[name]
    text = (DOCKER / f"{name}.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^(\S+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(entries) == text.count("=="), "each package has hashes"
    versions = {canonicalize_name(package): version for package, version, _ in entries}
    for requirement in map(Requirement, wanted):
        if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux", "extra": ""}):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
    assert "torch" not in versions
    assert all(f":{PYTHON}." in file.read_text() for file in DOCKERFILES[:1]), "the image has the Python of the files"


def test_containers_run_commands_and_settings_that_exist() -> None:
    known = {f"MESHWRIGHT_{field.upper()}" for field in Settings.model_fields}
    for where, (words, environment) in commands().items():
        line = words[-1] if words[:2] == ["sh", "-c"] else " ".join(words)
        command: Any = typer.main.get_command(app)
        rest = line.split()[1:]
        assert line.split()[0] == "meshwright", where
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert not getattr(command, "commands", None), where
        assert {word for word in rest if word.startswith("--")} <= options, where
        assert {name for name in environment if name.startswith("MESHWRIGHT_")} <= known, where


def test_every_container_is_bounded_and_unprivileged() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["mem_limit"], name
        if name != "database":  # its entrypoint gives up root by itself, after it has made the data folder its own
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["image"] not in NAMED_BY_US or service["read_only"], name
    for name, pod in pods().items():
        assert pod["spec"]["securityContext"]["runAsNonRoot"], name
        assert pod["spec"]["automountServiceAccountToken"] is False, name
        for container in pod["spec"]["containers"]:
            assert container["resources"]["limits"]["memory"], name
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


def test_names_that_manifests_refer_to_exist() -> None:
    deployments = of_kind("Deployment")
    for scaler in of_kind("HorizontalPodAutoscaler").values():
        assert scaler["spec"]["scaleTargetRef"]["name"] in deployments
        # Otherwise each `kubectl apply` would undo what the autoscaler decided.
        assert "replicas" not in deployments[scaler["spec"]["scaleTargetRef"]["name"]]["spec"]
    labels = [pod["metadata"]["labels"] for pod in pods().values()]
    selectors = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget").values()]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind("NetworkPolicy").values()]
    selectors.append(of_kind("Service")["meshwright"]["spec"]["selector"])
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector
    assert all(pod["spec"]["serviceAccountName"] in of_kind("ServiceAccount") for pod in pods().values())
    address = f"http://meshwright.{KUSTOMIZATION['namespace']}.svc:{of_kind('Service')['meshwright']['spec']['ports'][0]['port']}"
    assert address in (ROOT / "examples" / "agents" / "kubernetes.yaml").read_text(encoding="utf-8")
    (rule,) = yaml.safe_load((DOCKER / "kubernetes" / VALUES).read_text(encoding="utf-8"))["rules"]["external"]
    metrics = of_kind("HorizontalPodAutoscaler")["meshwright-worker"]["spec"]["metrics"]
    assert [metric["external"]["metric"]["name"] for metric in metrics] == [rule["seriesQuery"]]
