"""torchtitan's own configuration reads what is written for it, and a misspelt key of any section is refused.

The pinned wheels lie in the folder that MESHWRIGHT_LAUNCH_PACKAGES names (`python -m scripts.launch_packages FOLDER` fills it).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launch_rows import exported, row_of
from planner.export.export import export_row
from planner.export.target import Launch
from planner.export.targets.torchtitan import TARGET

PACKAGES = Path(os.environ.get("MESHWRIGHT_LAUNCH_PACKAGES", ".oracles/launch"))
RELEASES = {"0.2": "0.2.2", "0.3": "0.3.0"}
ASK = Path(__file__).parent / "ask_torchtitan.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.launch]

ROWS: Mapping[str, dict[str, Any]] = {
    "dense": {"tp": 1, "dp": 8, "zero": 3, "recompute": "full"},
    "tensor": {"tp": 4, "dp": 4, "zero": 3, "recompute": "none"},
    "hybrid": {"dp": 16, "zero": 2, "zero_shard_size": 8},
    "even-pipeline": {"pp": 4, "vpp": 2, "dp": 4, "schedule": "interleaved", "recompute": "full"},
    "uneven-pipeline": {"pp": 4, "dp": 4, "layers_per_stage": [7, 9, 9, 7], "recompute": "full"},
    "context": {"cp": 2, "dp": 8, "tp": 2},
    "offload": {"dp": 8, "offload": {"optimizer_fraction": 1.0, "parameters": True}},
    "experts": {"dp": 16, "ep": 8, "etp": 1, "model": "qwen3-30b-a3b"},
    "latent": {"dp": 64, "ep": 32, "etp": 1, "model": {"preset": "deepseek-v3", "mtp_num_layers": 0}},
    "tied": {"dp": 8, "model": "llama-3.2-1b"},
}
PARAMETERS = {"dense": 8_030_261_248, "tied": 1_235_814_400, "experts": 30_532_122_624}
"""On the models' cards, counted by transformers: Llama 3.1 8B, Llama 3.2 1B, Qwen3-30B-A3B."""


def answers(version: str, folders: list[Path]) -> list[dict[str, Any]]:
    """What torchtitan says of the launches in these folders."""
    command = [sys.executable, str(ASK.resolve()), str(PACKAGES.resolve()), RELEASES[version], *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def put_down(launch: Launch, folder: Path) -> Path:
    """Writes a launch's files."""
    folder.mkdir()
    for file in launch.files:
        (folder / file.path).write_text(file.content)
    return folder


@pytest.mark.parametrize("version", RELEASES)
def test_what_torchtitan_reads_is_the_plan(version: str, tmp_path: Path):
    plans = {name: exported(TARGET, row_of("torchtitan", version=version, **fields)) for name, fields in ROWS.items()}
    folders = [put_down(launch, tmp_path / name) for name, (_, launch) in plans.items()]
    for (name, (quantities, _)), answer in zip(plans.items(), answers(version, folders), strict=True):
        assert "ok" in answer, (name, answer)
        read, plan = answer["ok"], quantities.plan
        named, config = plan.strategy, read["config"]
        given, training = config["parallelism"], config["training"]
        replicas, shards = given["data_parallel_replicate_degree"], given["data_parallel_shard_degree"]
        degrees = {
            key: given[f"{word}_parallel_degree"]
            for key, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"))
        }
        assert degrees == {key: named[key] for key in degrees}
        assert replicas * shards * given["context_parallel_degree"] == named["dp"] * named["cp"]
        assert shards * given["context_parallel_degree"] == named["zero_shard_size"]
        assert given["fsdp_reshard_after_forward"] == {2: "never", 3: "always"}[named["zero"]]
        assert (training["seq_len"], training["global_batch_size"]) == (8192, 64)
        # The loop's accumulation: global / (local * replicas), and a pipeline cuts the local batch into micro-batches.
        steps = training["global_batch_size"] // (training["local_batch_size"] * named["dp"])
        micro = given["pipeline_parallel_microbatch_size"] if named["pp"] > 1 else training["local_batch_size"]
        in_pipeline = training["local_batch_size"] // micro
        assert (micro, steps * in_pipeline) == (named["micro_batch_size"], plan.num_micro_batches)
        assert training["enable_cpu_offload"] is named["offload"]["parameters"]
        layers = [sum(part.startswith("layers.") for part in stage) for stage in read["stages"] or [[]]]
        assert named["pp"] == 1 or layers == list(plan.layers_per_stage)
        assert name not in PARAMETERS or read["parameters"] == PARAMETERS[name]
        assert read["width"] in (None, [plan.model["vocab_size"], plan.model["hidden_size"]])
        assert read["batches"]["labels"][0] == (2 if version == "0.3" else training["local_batch_size"])
        mode = config["activation_checkpoint"]["mode"] if version == "0.2" else read["checkpoint"]
        assert mode == {"none": {"0.2": "none", "0.3": "NoneType"}, "full": {"0.2": "full", "0.3": "FullAC.Config"},
                        "selective": {"0.2": "selective", "0.3": "SelectiveAC.Config"}}[named["recompute"]][version]  # fmt: skip


def test_groups_that_train_by_themselves_are_read_by_the_release_that_has_keys_for_them(tmp_path: Path):
    """sync_steps and what follows it are keys of a module that the file itself has to name."""
    islands, sync = {"count": 2, "link_gbit_per_s": 10}, {"method": "diloco", "sync_every": 100}
    row = row_of("torchtitan", version="0.2", nodes=2, zero=3, sync=sync)
    row["cluster"]["islands"] = islands
    for file in export_row(row, "torchtitan"):
        (tmp_path / file.path).write_text(file.content)
    (answer,) = answers("0.2", [tmp_path])
    read = answer["ok"]["config"]["fault_tolerance"]
    assert {name: read[name] for name in ("enable", "group_size", "semi_sync_method", "sync_steps", "num_fragments")} == {
        "enable": True, "group_size": 2, "semi_sync_method": "diloco", "sync_steps": 100, "num_fragments": 1,
    }  # fmt: skip
    assert answer["ok"]["config"]["parallelism"]["data_parallel_shard_degree"] == 8


CONVERTERS = {
    "tensorwise": "Float8LinearConverter", "rowwise": "Float8LinearConverter", "mxfp8": "MXLinearConverter"
}  # fmt: skip


def test_converters_are_found_by_their_names_and_leave_the_head_out(tmp_path: Path):
    folders = []
    for recipe in CONVERTERS:
        training = {"precision": "fp8", "fp8_recipe": recipe, "compile": True}
        cluster = {"preset": "dgx-b200", "num_nodes": 1}
        row = {**row_of("torchtitan", version="0.2", training=training, dp=8), "cluster": cluster}
        folders.append(put_down(exported(TARGET, row)[1], tmp_path / recipe))
    for (recipe, converter), answer in zip(CONVERTERS.items(), answers("0.2", folders), strict=True):
        assert answer["ok"]["converters"] == [converter]
        linear = answer["ok"]["config"]["quantize"]["linear"]
        assert linear["mx" if recipe == "mxfp8" else "float8"]["filter_fqns"] == ["output"]


def misspelt(content: str, pattern: str) -> list[str]:
    """Copies of a file, each with one match of the pattern misspelt."""
    return [
        content[: match.end(1)] + "x" + content[match.end(1) :] for match in re.finditer(pattern, content, re.MULTILINE)
    ]


def test_a_misspelt_key_of_any_section_of_the_toml_is_refused(tmp_path: Path):
    row = row_of("torchtitan", version="0.2", training={"precision": "fp8", "compile": True}, dp=8)
    _, launch = exported(TARGET, row)
    toml = next(file for file in launch.files if file.path == "plan.toml")
    sections = re.findall(r"^\[(.+)\]$", toml.content, re.MULTILINE)
    assert len(sections) >= 9
    folders = []
    for index, content in enumerate(misspelt(toml.content, r"^(\w+) = ")):
        folder = put_down(launch, tmp_path / str(index))
        (folder / "plan.toml").write_text(content)
        folders.append(folder)
    assert len(folders) > len(sections)
    for folder, answer in zip(folders, answers("0.2", folders), strict=True):
        assert "refused" in answer, (folder / "plan.toml").read_text()


def test_a_misspelt_argument_of_any_class_in_python_is_refused(tmp_path: Path):
    _, launch = exported(TARGET, row_of("torchtitan", version="0.3", training={"compile": True}, dp=8))
    config = next(file for file in launch.files if file.path == "plan_config.py")
    folders = []
    for index, content in enumerate(misspelt(config.content, r"^ +(\w+)=(?!=)")):
        folder = put_down(launch, tmp_path / str(index))
        (folder / "plan_config.py").write_text(content)
        folders.append(folder)
    assert len(folders) > 30
    for folder, answer in zip(folders, answers("0.3", folders), strict=True):
        assert "refused" in answer, (folder / "plan_config.py").read_text()
