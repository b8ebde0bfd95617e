"""Launch files that are run as trials: which they are, what they cannot say, and where values of knobs are written."""

from __future__ import annotations

import json

import pytest

from app.tuning.exports import ExportBackend, target_of, with_knobs
from builders import dense_model, request_of
from cost_models.errors import InvalidInputError
from planner.export.target import LaunchFile
from planner.plan import plan


def test_knobs_are_written_where_the_framework_reads_them() -> None:
    files = (
        LaunchFile("ds_config.json", '{"zero_optimization": {"stage": 2}}'),
        LaunchFile("mock.sh", 'exec torchrun train.py "$@"\n', executable=True),
    )
    config, script = with_knobs(files, {"config": {"zero_optimization": {"reduce_bucket_size": 5}}})
    assert json.loads(config.content) == {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5}}
    assert script == files[1]
    config, script = with_knobs(files, {"arguments": ["--ddp-bucket-size", "7"]})
    assert script.content == 'exec torchrun train.py --ddp-bucket-size 7 "$@"\n'
    assert script.executable
    with pytest.raises(InvalidInputError, match="no place"):
        with_knobs(files[1:], {"config": {"a": 1}})


def test_an_export_says_why_it_cannot_say_a_plan() -> None:
    response = plan(request_of(dense_model(8), "torchtitan", cluster={"gpus_per_node": 4}) | {"top_k": 1})
    row = {key: response["request"][key] for key in ("model", "cluster", "training")}
    row["strategy"] = response["plans"][0]["strategy"]
    assert ExportBackend("torchtitan").refusal(row) is None
    assert (
        ExportBackend("nanotron").refusal(row)
        == "nanotron cannot say plans for torchtitan. Targets of torchtitan: torchtitan."
    )


def test_the_launch_files_are_the_frameworks_own() -> None:
    assert target_of("deepspeed") == "deepspeed"
    assert target_of("fsdp") in ("accelerate", "transformers", "pytorch")
