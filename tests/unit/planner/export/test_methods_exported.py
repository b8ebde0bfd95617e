"""Ways of keeping replicas together in launch files: flags where a program has them, read back, and a refusal where it has none."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from cost_models.errors import NotExpressibleError
from planner.export.export import export_row
from planner.export.import_config import import_config
from planner.export.settings import InputFile

Document = dict[str, Any]
ISLANDS = {"count": 2, "link_gbit_per_s": 10}
DILOCO = {"method": "diloco", "sync_every": 100}


def row(framework: str, strategy: Document, *, islands: bool = False, **training: Any) -> Document:
    return {
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {"preset": "dgx-h200", "num_nodes": 2, **({"islands": ISLANDS} if islands else {})},
        "training": {
            "seq_length": 2048,
            "global_batch_size": 32,
            "precision": "bf16",
            "framework": framework,
            **training,
        },
        "strategy": {"zero": 0, "micro_batch_size": 1, "recompute": "full", **strategy},
    }


def written(target: str, document: Document) -> dict[str, str]:
    return {file.path: file.content for file in export_row(document, target)}


def read_back(files: dict[str, str]) -> Document:
    """The strategy that our reader finds in the configuration; launches and the plan's own row are left out."""
    beside = ("plan.json", "pytorchjob.yaml", "jobset.yaml")
    inputs = [InputFile(path, content) for path, content in files.items() if path not in beside]
    return dict(import_config(inputs).row["strategy"])


@pytest.mark.parametrize(
    ("compression", "said"),
    [
        ({"kind": "powersgd", "rank": 4}, {"kind": "powersgd", "rank": 4, "start_iter": 1000}),
        ({"kind": "bf16"}, {"kind": "bf16"}),
    ],
)
def test_hooks_of_distributed_data_parallel(compression: Document, said: Document) -> None:
    files = written("pytorch", row("fsdp", {"compression": compression}))
    assert json.loads(files["train_plan.json"])["compression"] == said
    assert read_back(files)["compression"]["kind"] == compression["kind"]


def test_local_sgd_reduces_gradients_inside_a_node() -> None:
    """16 ranks on two nodes: PyTorch's default subgroup is the machine, of 8 ranks."""
    files = written("pytorch", row("fsdp", {"sync": {"method": "local-sgd", "sync_every": 8}}))
    assert json.loads(files["train_plan.json"])["local_sgd"] == {"period": 8, "ranks": 8}
    assert read_back(files)["sync"] == {"method": "local-sgd", "sync_every": 8}


def test_a_plain_plan_says_nothing_of_methods() -> None:
    document = json.loads(written("pytorch", row("fsdp", {}))["train_plan.json"])
    assert not {"compression", "local_sgd"} & document.keys()


@pytest.mark.parametrize(
    ("compression", "optimizer"),
    [
        ({"kind": "onebit", "freeze_steps": 2000}, ("OneBitAdam", {"freeze_step": 2000})),
        (
            {"kind": "zero-one", "freeze_steps": 10, "sync_every": 4},
            ("ZeroOneAdam", {"var_freeze_step": 10, "local_step_clipper": 4}),
        ),
    ],
)
def test_optimizers_of_deepspeed_that_exchange_signs(compression: Document, optimizer: tuple[str, Document]) -> None:
    files = written(
        "deepspeed", row("deepspeed", {"compression": compression}, precision="fp16", framework_version="0.19.6")
    )
    said = json.loads(files["ds_config.json"])["optimizer"]
    assert (said["type"], said["params"] | optimizer[1]) == (optimizer[0], said["params"])
    assert read_back(files)["compression"] == compression


def test_an_island_of_diloco_is_a_launch_of_its_own() -> None:
    document = row("torchtitan", {"zero": 3, "sync": DILOCO}, islands=True, framework_version="0.2")
    files = written("torchtitan", document)
    toml = tomllib.loads(files["plan.toml"])
    tolerance = toml["fault_tolerance"]
    told = {name: tolerance[name] for name in ("enable", "group_size", "semi_sync_method", "sync_steps")}
    assert told == {"enable": True, "group_size": 2, "semi_sync_method": "diloco", "sync_steps": 100}
    # One group of eight ranks; the batch stays that of both (torchtitan's torchft.md).
    assert (toml["parallelism"]["data_parallel_shard_degree"], toml["training"]["global_batch_size"]) == (8, 32)
    assert toml["job"]["custom_config_module"] == "torchtitan.components.ft.config.job_config"
    assert "--nproc-per-node 8 -m torchtitan.experiments.ft.train " in files["launch.sh"]
    assert "replica_id=0 to 1" in files["launch.sh"]
    assert json.loads(files["plan.json"])["strategy"]["dp"] == 16
    again = read_back(files)
    assert (again["zero_shard_size"], again["sync"]["method"], again["sync"]["sync_every"]) == (8, "diloco", 100)


@pytest.mark.parametrize(
    ("target", "document", "field"),
    [
        ("pytorch", row("fsdp", {"sync": {"method": "gossip"}}), "sync.method"),
        ("pytorch", row("fsdp", {"sync": {"method": "parameter-server"}}), "sync.method"),
        ("accelerate", row("fsdp", {"compression": {"kind": "powersgd"}}), "compression.kind"),
        (
            "torchtitan",
            row("torchtitan", {"zero": 3, "sync": DILOCO}, islands=True, framework_version="0.3"),
            "sync.method",
        ),
        (
            "torchtitan",
            row("torchtitan", {"zero": 3, "sync": {**DILOCO, "fragments": 4}}, islands=True, framework_version="0.2"),
            "sync.fragments",
        ),
    ],
)
def test_what_no_file_can_say_is_refused(target: str, document: Document, field: str) -> None:
    with pytest.raises(NotExpressibleError) as raised:
        written(target, document)
    assert raised.value.context["field"] == field
