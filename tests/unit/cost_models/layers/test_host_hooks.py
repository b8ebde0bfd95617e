"""Host seconds of a layer by what stands around it, from the constants of a GPU without a profile."""

from __future__ import annotations

import pytest

from builders import dense_model, job_of, row_of, with_experts
from cost_models.constants import DTENSOR_HOST_RATIO, HOST_STEP_RATIO, SHARDED_HOST_RATIO
from cost_models.hardware.host_constants import HOST_LOOP_OP_S
from cost_models.layers.host import Around, launch_s

FORWARD, BACKWARD = 45.0, 67.5
"""Operators of one PyTorch layer."""
LOOP = HOST_LOOP_OP_S["hopper"].value
STEP, FSDP_STEP = HOST_STEP_RATIO.value * LOOP, 1.05 * LOOP
"""Seconds of an operator in the loops in which layers with something around them were measured, and in a step."""


def host(framework: str, around: Around, *, tp: int = 1, model=None, **training: object) -> tuple[float, float]:
    job = job_of(model or dense_model(gated_mlp=True), framework, **training)
    forward, backward = launch_s(
        job, job.model.layer_kinds[0], row_of(job, tp=tp, sequence_parallel=False), around=around
    )
    return float(forward[0]), float(backward[0])


@pytest.mark.parametrize(
    ("framework", "around", "added"),
    [
        ("fsdp", "nothing", 0.0),
        ("fsdp", "hooked", 0.3),  # DistributedDataParallel
        ("fsdp", "sharded", SHARDED_HOST_RATIO.value - 1),
        ("deepspeed", "nothing", 0.0),
        ("deepspeed", "hooked", 0.4),
        ("deepspeed", "sharded", 4.5),
        ("torchtitan", "hooked", 0.0),
    ],
)
def test_what_stands_around_a_layer_adds_to_its_loop(framework: str, around: Around, added: float) -> None:
    found, step = host(framework, around, compile=False), FSDP_STEP if framework == "fsdp" else STEP
    assert found == pytest.approx([count * (step + added * LOOP) for count in (FORWARD, BACKWARD)])


def test_hooks_of_stage_3_stand_around_every_tensor() -> None:
    """Two norms, query, key, value, output, gate, up, down; with biases of the MLP twelve."""
    plain, biased = (host("deepspeed", "sharded", model=dense_model(mlp_bias=each)) for each in (False, True))
    assert plain[0] == pytest.approx(FORWARD * (STEP + 4.5 * LOOP))
    assert biased[0] == pytest.approx(FORWARD * (STEP + 4.5 * 12 / 9 * LOOP))


def test_hooks_come_on_top_of_dtensor() -> None:
    """DTensor's layers were measured with their calls."""
    added = 0.3 + DTENSOR_HOST_RATIO.value - 1
    found = host("fsdp", "hooked", tp=2, compile=False)[0]
    assert found == pytest.approx(FORWARD * (FSDP_STEP + added * LOOP))


def test_ligers_kernels_take_longer_and_what_is_around_them_does_not() -> None:
    found = host("fsdp", "sharded", model_impl="liger", compile=False)
    assert found[0] == pytest.approx(FORWARD * (1.76 * FSDP_STEP + (SHARDED_HOST_RATIO.value - 1) * LOOP))


def test_a_captured_graph_has_no_hooks() -> None:
    model = dense_model()
    assert host("torchtitan", "sharded", model=model, cuda_graphs=True, compile=True) == pytest.approx(
        host("torchtitan", "nothing", model=model, cuda_graphs=True, compile=True)
    )


def test_experts_add_their_operators_whatever_is_around() -> None:
    extra = [
        host("fsdp", around, model=with_experts(dense_model()), compile=False)[0] for around in ("nothing", "hooked")
    ]
    plain = [host("fsdp", around, compile=False)[0] for around in ("nothing", "hooked")]
    assert extra[1] - extra[0] == pytest.approx(plain[1] - plain[0])
    assert extra[0] > plain[0]
