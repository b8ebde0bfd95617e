"""A resolved request says everything and, posted again, means the same."""

from __future__ import annotations

import pytest

from builders import cluster_of, request_of, tiny_model, training_of
from cost_models import presets
from planner.request.checked_request import request_digest
from planner.request.job import resolve_job, resolve_pooled_job
from planner.request.resolved import cluster_document, model_document, resolved_request, training_document
from planner.schemas import PlanRequest

CLUSTER, TRAINING = cluster_of(num_nodes=2), training_of(seq_length=1024, global_batch_size=16)
REQUEST = request_of(tiny_model(), num_nodes=2, seq_length=1024, global_batch_size=16)


def resolved(request):
    return resolved_request(PlanRequest.model_validate(request), resolve_pooled_job(request))


def twice(request):
    once = resolved(request)
    return once, resolved(once)


@pytest.mark.parametrize("name", presets.names("models"))
def test_every_model_preset_survives(name) -> None:
    model = resolve_job(
        {"model": {"preset": name}, "cluster": CLUSTER, "training": {**TRAINING, "seq_length": 512}}
    ).model
    again = resolve_job(
        {"model": model_document(model), "cluster": CLUSTER, "training": {**TRAINING, "seq_length": 512}}
    ).model
    ours = {
        field: getattr(model, field) for field in model.__dataclass_fields__ if field not in ("assumed", "warnings")
    }
    for field, value in ours.items():
        assert getattr(again, field) == value, field


@pytest.mark.parametrize("name", presets.names("clusters"))
def test_every_cluster_preset_survives(name) -> None:
    request = REQUEST | {"cluster": {"preset": name}, "training": {**TRAINING, "precision": "fp16"}}
    cluster = resolve_job(request).cluster
    again = resolve_job({**request, "cluster": cluster_document(cluster)}).cluster
    for field in set(cluster.__dataclass_fields__) - {"assumed", "warnings"}:
        expected = getattr(cluster, field)
        close = pytest.approx(expected) if isinstance(expected, float) else expected
        assert getattr(again, field) == close, field


@pytest.mark.parametrize(
    "training",
    [
        {}, {"framework": "torchtitan"}, {"framework": "deepspeed", "optimizer": "adam-8bit"}, {"precision": "fp8"},
        {"framework": "nanotron", "dropout": 0.1}, {"mean_document_length": 300, "total_tokens": 1e9},
        {"framework": "fsdp", "compile": True, "param_dtype": "bf16"}, {"software_date": "2023-05"},
    ],
)  # fmt: skip
def test_training_survives(training) -> None:
    request = REQUEST | {"training": {**TRAINING, **training}}
    found = resolve_job(request).training
    again = resolve_job({**request, "training": training_document(found)}).training
    for field in found.__dataclass_fields__:
        if field not in ("assumed", "warnings"):
            assert getattr(again, field) == getattr(found, field), field


def test_a_gpu_of_ones_own_is_spelled_out() -> None:
    gpu = {
        "name": "mine", "memory_gib": 40, "peak_tflops": {"bf16": 123}, "memory_bandwidth_gb_per_s": 1234, "nvlink_gb_per_s": 55,
    }  # fmt: skip
    one, two = twice(REQUEST | {"cluster": {**CLUSTER, "gpu": gpu}})
    assert one["cluster"]["gpu"]["memory_bandwidth_gb_per_s"] == 1234
    assert one == two


def test_the_rest_of_a_request_comes_with_its_defaults() -> None:
    one, two = twice(REQUEST | {"constraints": {"fixed": {"tp": 2}}})
    assert one["top_k"] == 10
    assert one["objective"] == "step_time"
    assert one["constraints"]["fixed"]["tp"] == 2
    assert one["constraints"]["memory_headroom_fraction"] == 0.03
    assert one == two


def test_a_digest_follows_from_the_request_the_calibration_and_nothing_else() -> None:
    request = REQUEST
    digest = request_digest(resolved(request), calibration_id="a", revision="r")
    assert digest == request_digest(resolved({**request, "wait_s": 3}), calibration_id="a", revision="r")
    assert digest == request_digest(resolved(resolved(request)), calibration_id="a", revision="r")
    assert digest != request_digest(resolved({**request, "top_k": 9}), calibration_id="a", revision="r")
    assert digest != request_digest(
        resolved({**request, "training": {**TRAINING, "seq_length": 512}}), calibration_id="a", revision="r"
    )
    assert digest != request_digest(resolved(request), calibration_id="b", revision="r")
    assert digest != request_digest(resolved(request), calibration_id="a", revision="s")
