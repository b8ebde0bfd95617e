"""What a faster and a slower host do to a step's range: a fifth of the host's time, as far as the device waits or would wait."""

from __future__ import annotations

import numpy as np
import pytest
from tower_configs import llava

from builders import dense_model, job_of, row_of
from cost_models.constants import CHECKPOINT_HOST_S
from cost_models.evaluate import evaluate
from cost_models.hardware.host_constants import HOST_LOOP_OP_S
from cost_models.step.host_range import host_range
from cost_models.terms import TIME_NAMES

LAYERS, MICRO_BATCHES = 4, 8
STEP = 1.05 * HOST_LOOP_OP_S["hopper"].value
HOST_S = MICRO_BATCHES * LAYERS * (45 + 67.5) * STEP
"""Plain layers of PyTorch's operators, nothing around them."""


def job(framework="fsdp", **training):
    nodes = {"gpus_per_node": 1}
    given = {"seq_length": 128, "global_batch_size": MICRO_BATCHES, **training}
    return job_of(dense_model(LAYERS), framework, cluster=nodes, **given)


def found(launch: float, *, asked=None, strategy=None, **seconds: float):
    asked = asked or job()
    terms = {name: np.array([0.0]) for name in TIME_NAMES} | {"launch": np.array([launch])}
    terms |= {name: np.array([value]) for name, value in seconds.items()}
    rows = row_of(asked, **{"zero": 0, "recompute": "none", **(strategy or {})})
    return host_range(asked, rows, terms)


@pytest.mark.parametrize(
    ("launch", "gemm", "shorter", "longer"),
    [
        (0.5, 0.5, 0.2, 0.2),  # the device waits for half of it: both ways
        (0.1, 0.9, 0.1, 0.2),  # a fifth faster leaves no wait
        (0.0, 1.05, 0.0, 0.15),  # just no wait: a fifth slower makes one
        (0.0, 1.5, 0.0, 0.0),  # the device takes longer than any host
    ],
)
def test_a_fifth_of_the_hosts_time(launch: float, gemm: float, shorter: float, longer: float) -> None:
    """In units of the host's time."""
    each = found(launch * HOST_S, gemm=gemm * HOST_S)
    assert each.shorter_s[0] == pytest.approx(shorter * HOST_S, abs=1e-12)
    assert each.longer_s[0] == pytest.approx(longer * HOST_S, abs=1e-12)


def test_head_and_loss_give_the_host_its_lead() -> None:
    assert found(0.0, gemm=0.7 * HOST_S, head=0.2 * HOST_S, loss=0.2 * HOST_S).longer_s[0] == pytest.approx(
        0.1 * HOST_S
    )


def test_repeated_layers_are_launched_twice() -> None:
    repeated = HOST_S + MICRO_BATCHES * LAYERS * (45 * STEP + CHECKPOINT_HOST_S.value)
    each = found(0.5 * HOST_S, strategy={"recompute": "full"})
    assert each.longer_s[0] == pytest.approx(0.2 * repeated)


@pytest.mark.parametrize(
    ("framework", "training"), [("megatron", {}), ("fsdp", {"model_impl": "native"}), ("torchtitan", {})]
)
def test_it_was_measured_for_hugging_faces_modules_alone(framework: str, training) -> None:
    asked = job(framework, **training)
    assert host_range(asked, row_of(asked), {}) is None


def test_the_range_of_a_step_is_wider_above_where_a_slower_host_would_be_waited_for() -> None:
    """Hooks of stage 3: the wait is most of the step."""
    asked = job_of(dense_model(LAYERS), "deepspeed", seq_length=128)
    each = evaluate(asked, row_of(asked, zero=3, recompute="none"))
    host = host_range(asked, each.strategies, each.terms_s)
    assert host is not None
    assert each.step_time_high_s[0] - each.step_time_s[0] >= host.longer_s[0] > 0
    assert each.step_time_s[0] - each.step_time_low_s[0] >= host.shorter_s[0] > 0


def test_a_towers_layers_are_launched_by_the_same_host() -> None:
    """A frozen tower of two layers has two forwards of 45 operators, a trained one the backward's 67.5 each as well."""

    def longer_s(**towers: str) -> float:
        training = {"towers": towers} if towers else {}
        asked = job_of(llava(), "fsdp", cluster={"gpus_per_node": 1}, seq_length=128, global_batch_size=1, **training)
        return float(found(1.0, asked=asked).longer_s[0])

    plain, frozen, trained = longer_s(), longer_s(vision="frozen"), longer_s(vision="trained")
    assert frozen - plain == pytest.approx(0.2 * 2 * 45 * STEP)
    assert trained - plain == pytest.approx(0.2 * 2 * (45 + 67.5) * STEP)
