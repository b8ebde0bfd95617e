"""Launch files that are run as trials: which they are, what they cannot say, and where values of knobs are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.tuning.exports import ExportBackend, target_of, with_knobs
from app.tuning.rows import trial_row
from builders import dense_model, llama_model, request_of
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
    # The framework's own values, which are tried first, may be written there already.
    assert json.loads(with_knobs(_written(5), {"config": {"a": 5}})[0].content) == {"a": 5}
    with pytest.raises(InvalidInputError, match="no place"):
        with_knobs(files[1:], {"config": {"a": 1}})


def _written(value: int) -> tuple[LaunchFile, ...]:
    return (LaunchFile("ds_config.json", json.dumps({"a": value}, indent=2) + "\n"),)


def test_an_export_says_why_it_cannot_say_a_plan() -> None:
    response = plan(request_of(dense_model(8), "torchtitan", cluster={"gpus_per_node": 4}) | {"top_k": 1})
    row = {key: response["request"][key] for key in ("model", "cluster", "training")}
    row["strategy"] = response["plans"][0]["strategy"]
    assert ExportBackend("torchtitan").refusal(row) is None
    assert (
        ExportBackend("nanotron").refusal(row)
        == "nanotron cannot say plans for torchtitan. Targets of torchtitan: torchtitan."
    )


@pytest.mark.parametrize(
    ("framework", "training", "target"),
    [
        ("deepspeed", {}, "deepspeed"),
        ("megatron", {}, "megatron"),
        ("fsdp", {}, "accelerate"),
        # Modules of its own are what only the plain script runs.
        ("fsdp", {"model_impl": "native"}, "pytorch"),
    ],
)
def test_the_launch_files_are_the_first_that_can_say_the_plan(framework: str, training: Any, target: str) -> None:
    asked = request_of(llama_model(8), framework, cluster={"gpus_per_node": 2}, seq_length=1024, **training)
    response = plan(asked | {"top_k": 1})
    row = trial_row(response, 1)
    assert target_of(framework, row) == target
    assert ExportBackend(target).refusal(row) is None
