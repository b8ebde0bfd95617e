"""`accelerate.yaml` of plans before Accelerate's own launcher: the environment that it gives the ranks says the plan.

Accelerate refuses an unknown key at the top and reads over one below it, so a typo there shows only in what reaches the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch_rows import exported, row_of
from planner.export.targets import TARGETS

PACKAGES = Path(os.environ.get("MESHWRIGHT_LAUNCH_PACKAGES", ".oracles/launch")).resolve()
ASK = Path(__file__).with_name("ask_accelerate.py")
pytestmark = pytest.mark.launch

FSDP, MESH = "FSDP_", "PARALLELISM_CONFIG_"
PLANS: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    ({"dp": 8, "zero": 3}, {f"{FSDP}RESHARD_AFTER_FORWARD": "true", f"{FSDP}ACTIVATION_CHECKPOINTING": "false"}),
    (
        {"dp": 8, "zero": 2, "recompute": "full"},
        {f"{FSDP}RESHARD_AFTER_FORWARD": "false", f"{FSDP}ACTIVATION_CHECKPOINTING": "true"},
    ),
    (
        {"dp": 8, "zero": 3, "zero_shard_size": 4},
        {f"{MESH}DP_REPLICATE_SIZE": "2", f"{MESH}DP_SHARD_SIZE": "4", f"{MESH}CP_SIZE": "1", f"{MESH}TP_SIZE": "1"},
    ),
    (
        {"dp": 4, "cp": 2, "cp_comm": "p2p", "zero": 3},
        {f"{MESH}DP_SHARD_SIZE": "4", f"{MESH}CP_SIZE": "2", f"{MESH}CP_COMM_STRATEGY": "alltoall"},
    ),
    (
        {"dp": 8, "zero": 3, "recompute": "full", "offload": {"optimizer_fraction": 1.0, "parameters": True}},
        {f"{FSDP}OFFLOAD_PARAMS": "true", f"{FSDP}ACTIVATION_CHECKPOINTING": "true"},
    ),
)
"""Strategies, each with what the ranks of a plan of it must be told beside the version, the precision and FSDP's use."""
DECIDING = ("fsdp_reshard_after_forward", "fsdp_activation_checkpointing", "fsdp_offload_params", "fsdp_version")


def configuration(**strategy: Any) -> dict[str, Any]:
    """The document of a plan on 8 GPUs."""
    _, launch = exported(TARGETS["accelerate"], row_of("fsdp", nodes=1, **strategy))
    text = next(file.content for file in launch.files if file.path == "accelerate.yaml")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def told(folder: Path, documents: list[dict[str, Any]]) -> list[Any]:
    """What Accelerate tells the ranks of each document, or the text of its refusal."""
    paths = [folder / f"{number}.yaml" for number in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(yaml.safe_dump(document))
    command = [sys.executable, str(ASK), str(PACKAGES), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", '"'))]


def test_the_ranks_are_told_the_plan(tmp_path: Path):
    documents = [configuration(**strategy) for strategy, _ in PLANS]
    for document, environment, (strategy, expected) in zip(documents, told(tmp_path, documents), PLANS, strict=True):
        assert document["num_processes"] == 8
        always = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "ACCELERATE_MIXED_PRECISION": "bf16"}
        assert {name: environment.get(name) for name in always | expected} == always | expected, strategy


def test_a_typo_reaches_no_rank(tmp_path: Path):
    """One more letter behind each key that decides something: refused, or the ranks are told something else."""
    whole = configuration(
        dp=8, zero=2, zero_shard_size=4, recompute="full", offload={"optimizer_fraction": 1.0, "parameters": True}
    )
    spoilt = [{**whole, "mixed_precisionx": whole["mixed_precision"]}]
    for part, keys in {
        "fsdp_config": DECIDING,
        "parallelism_config": ("parallelism_config_dp_replicate_size",),
    }.items():
        for key in keys:
            values = {name + "x" * (name == key): value for name, value in whole[part].items()}
            spoilt.append({**whole, part: values})
    right, *wrong = told(tmp_path, [whole, *spoilt])
    assert isinstance(right, dict)
    assert len(wrong) == 1 + len(DECIDING) + 1
    assert isinstance(wrong[0], str)
    assert "mixed_precisionx" in wrong[0]
    assert all(each != right for each in wrong[1:])
