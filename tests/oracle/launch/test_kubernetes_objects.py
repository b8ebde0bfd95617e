"""Kubernetes takes the exported objects: its core kinds by its own schemas, read strictly, PyTorchJob and JobSet by those of their definitions.

`custom_resources.json` holds the fields that the definitions (CustomResourceDefinition, openAPIV3Schema) of both add to core
objects, with source and commit. Where they embed a core object (`"core"`), Kubernetes' schema of it is asked. An object of any
other kind fails, since nothing would check it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.export.export import export_row

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

CUSTOM: Mapping[str, Any] = json.loads(Path(__file__).with_name("custom_resources.json").read_text())
CORE = {"ConfigMap": "v1"}
"""Kinds that are exported without a definition of somebody else's, with their versions."""
KUBERNETES = ("1.25", "1.37")
"""The oldest and the newest release whose schemas the package has."""
GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
NAME = {"name": "x"}
WRAPPED = {
    # A template has no schema of its own in the package's list of kinds; these are the kinds that it is the body of.
    "PodTemplate": lambda template: {"apiVersion": "v1", "kind": "Pod", "metadata": NAME, **template},
    "Job": lambda template: {"apiVersion": "batch/v1", "kind": "Job", "metadata": NAME, **template},
}


def row(nodes: int) -> dict[str, Any]:
    return {
        "model": {"preset": "gpt3-1.3b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
        "strategy": {"micro_batch_size": 1, "zero": 1},
    }


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every kept object, and the whole files of one node and of two, which have the ConfigMaps that are not kept."""
    for path in sorted(GOLDEN.glob("*/*.yaml")):
        yield from ((str(path.relative_to(GOLDEN)), document) for document in yaml.safe_load_all(path.read_text()))
    for nodes in (1, 2):
        for file in export_row(row(nodes), "megatron"):
            if file.path in ("pytorchjob.yaml", "jobset.yaml"):
                documents = yaml.safe_load_all(file.content)
                yield from ((f"{file.path} on {nodes}: {document['kind']}", document) for document in documents)


OBJECTS = list(objects())


def closed(schema: Any) -> Any:
    """The schema with every object closed to properties that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "core" in schema:
        return {"type": "object"}
    inside = {key: closed(value) for key, value in schema.items()}
    # An object without properties is one that the exporter does not write and that was not copied.
    if schema.get("type") == "object" and "additionalProperties" not in schema and "properties" in schema:
        inside["additionalProperties"] = False
    return inside


def embedded(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Any]]:
    """The core objects inside a value, with the kind that each is the body of."""
    if "core" in schema:
        yield schema["core"], value
    elif isinstance(value, list):
        for each in value:
            yield from embedded(schema.get("items", {}), each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from embedded(schema.get("properties", {}).get(key, schema.get("additionalProperties", {})), each)


def taken(document: dict[str, Any]) -> None:
    """Raises where Kubernetes' own schema of a core object refuses it."""
    for release in KUBERNETES:
        kubernetes_validate.validate(document, release, strict=True)


def check(document: dict[str, Any]) -> None:
    """Raises where Kubernetes would not take an object."""
    kind = document["kind"]
    if kind in CORE:
        assert document["apiVersion"] == CORE[kind]
        taken(document)
        return
    definition = CUSTOM[kind]
    assert document["apiVersion"] == definition["apiVersion"]
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.Draft202012Validator(closed(definition["spec"])).validate(document["spec"])
    # Metadata is Kubernetes' own, as any ConfigMap has it.
    taken({"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]})
    found = list(embedded(definition["spec"], document["spec"]))
    assert found
    for core, body in found:
        taken(WRAPPED[core](body))


@pytest.mark.parametrize(("where", "document"), OBJECTS, ids=[where for where, _ in OBJECTS])
def test_kubernetes_takes_the_object(where: str, document: dict[str, Any]) -> None:
    check(document)
    name = document["metadata"]["name"]
    # A pod's host name is a label of 63 characters (RFC 1123); both controllers append its number.
    assert len(f"{name}-node-0-0-worker-1023") <= 63, where


def test_all_kinds_were_there() -> None:
    assert {document["kind"] for _, document in OBJECTS} == {"ConfigMap", "PyTorchJob", "JobSet"}


PYTORCH = next(document for _, document in OBJECTS if document["kind"] == "PyTorchJob")
JOBS = next(document for _, document in OBJECTS if document["kind"] == "JobSet")
POD = ("spec", "pytorchReplicaSpecs", "Master", "template", "spec")


@pytest.mark.parametrize(
    ("document", "place", "value"),
    [
        (PYTORCH, ("spec", "runPolicy", "cleanPodsPolicy"), "Running"),
        (PYTORCH, ("spec", "pytorchReplicaSpecs", "Master", "replica"), 1),
        (PYTORCH, ("spec", "pytorchReplicaSpecs", "Master", "replicas"), "1"),
        (PYTORCH, (*POD, "volume"), []),
        (PYTORCH, (*POD, "containers"), {}),
        (PYTORCH, ("spec", "pytorchReplicaSpec"), {}),
        (PYTORCH, ("metadata", "labelz"), {}),
        (PYTORCH, ("status",), {}),
        (PYTORCH, ("apiVersion",), "kubeflow.org/v2"),
        (JOBS, ("spec", "network", "enableDnsHostnames"), True),
        (JOBS, ("spec", "failurePolicy", "maxRestarts"), "0"),
        (JOBS, ("spec", "replicatedJobs", 0, "template", "spec", "completion"), 2),
        (JOBS, ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "restartPolicies"), "Never"),
        (JOBS, ("kind",), "JobSets"),
    ],
)
def test_a_planted_mistake_is_found(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> None:
    broken = deepcopy(document)
    inside = broken
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    with pytest.raises((AssertionError, KeyError, jsonschema.ValidationError)):
        check(broken)
