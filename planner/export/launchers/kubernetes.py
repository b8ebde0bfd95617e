"""Kubernetes objects around a launch: a ConfigMap with its files, and a PyTorchJob or a JobSet whose pods are the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.export.formats.documents import render_yaml_documents
from planner.export.launch_plan import LaunchPlan
from planner.export.launchers.shell import LAUNCH
from planner.export.target import LaunchFile

IMAGE = "REPLACE-WITH-YOUR-IMAGE"
_FILES, _FOLDER = "/launch-files", "/launch"
_COPIED = f"cp -L {_FILES}/* {_FOLDER}/"
"""A ConfigMap is mounted read-only, and programs write beside their files: transformers' Trainer, for one, makes its output folder."""
_PORT = 29500
_Object = dict[str, Any]
Checkout = tuple[str, str] | None
"""Variable and name of the source tree that the launch needs."""


def pytorch_job(plan: LaunchPlan, files: Sequence[LaunchFile], *, name: str, checkout: Checkout = None) -> str:
    """A ConfigMap and a PyTorchJob of the Kubeflow training operator (kubeflow.org/v1), as YAML.

    The operator sets MASTER_ADDR, MASTER_PORT and RANK, which counts pods. A checkout's variable is left for the user to fill in,
    like the image that holds it.
    """
    total = sum(group.num_nodes for group in plan.nodes)
    start = 'export NODE_RANK="$RANK"'
    replicas: _Object = {"Master": _replica(plan, name, 1, start, checkout)}
    if total > 1:
        replicas["Worker"] = _replica(plan, name, total - 1, start, checkout)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "pytorchReplicaSpecs": replicas},
    }
    return render_yaml_documents([_config_map(files, name), job])


def job_set(plan: LaunchPlan, files: Sequence[LaunchFile], *, name: str, checkout: Checkout = None) -> str:
    """A ConfigMap and a JobSet (jobset.x-k8s.io/v1alpha2), as YAML; an indexed job's pods find the first by its stable name."""
    total = sum(group.num_nodes for group in plan.nodes)
    start = f'export NODE_RANK="$JOB_COMPLETION_INDEX" MASTER_ADDR="{name}-node-0-0.{name}"'
    job = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "completionMode": "Indexed",
                            "completions": total,
                            "parallelism": total,
                            "backoffLimit": 0,
                            "template": {"spec": {"restartPolicy": "Never", **_pod(plan, name, start, checkout)}},
                        }
                    },
                }
            ],
        },
    }
    return render_yaml_documents([_config_map(files, name), job])


def runs_in_kubernetes(plan: LaunchPlan) -> bool:
    """Whether the pods of a plan are alike: nodes of several pools differ, and their order would have to be pinned."""
    return len(plan.nodes) == 1


def _replica(plan: LaunchPlan, name: str, count: int, start: str, checkout: Checkout) -> _Object:
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": _pod(plan, name, start, checkout)}}


def _pod(plan: LaunchPlan, name: str, start: str, checkout: Checkout) -> _Object:
    vendor = "amd.com/gpu" if plan.job.cluster.gpu.generation.startswith("cdna") else "nvidia.com/gpu"
    return {
        "containers": [
            {
                "name": "pytorch",  # the operator looks for a container of this name
                "image": IMAGE,
                **(
                    {"env": [{"name": checkout[0], "value": f"REPLACE-WITH-ITS-FOLDER-OF-{checkout[1]}"}]}
                    if checkout
                    else {}
                ),
                "command": ["bash", "-c", f'{start}; {_COPIED} && exec bash {_FOLDER}/{LAUNCH} "$@"', "launch"],
                "ports": [{"name": "pytorchjob-port", "containerPort": _PORT}],
                "resources": {"limits": {vendor: plan.nodes[0].ranks_per_node}},
                "volumeMounts": [
                    {"name": "files", "mountPath": _FILES},
                    {"name": "launch", "mountPath": _FOLDER},
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the mount point that NCCL uses
                ],
            }
        ],
        "volumes": [
            {"name": "files", "configMap": {"name": name}},
            {"name": "launch", "emptyDir": {}},
            # NCCL and data loaders share memory; the default of 64 MiB is too small for them.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _config_map(files: Sequence[LaunchFile], name: str) -> _Object:
    data = {file.path: file.content for file in files}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
