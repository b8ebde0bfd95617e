"""What a layer costs its host where a profile timed layers of its class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import H100, dense_model, job_of, llama_model, row_of
from cost_models.calibration.samples import Host, HostLayer
from cost_models.evaluate import evaluate
from cost_models.job import Job
from cost_models.layers.host import launch_s
from cost_models.layers.host_classes import Around
from cost_models.step.host_range import host_range
from cost_models.terms import TIME_NAMES, Tier

LAYERS = {
    "transformers-fsdp2": (2e-3, 5e-3),
    "transformers-autocast": (1e-3, 2e-3),
    "transformers-ddp": (1.1e-3, 3e-3),
    "transformers-zero3": (4e-3, 6e-3),
    "transformers-zero1": (1.4e-3, 3e-3),
    "transformers-zero0": (1e-3, 2e-3),
    "liger-fsdp2": (3e-3, 7e-3),
}
PLAIN_OPS = (45.0, 67.5)
"""Operators of a plain layer's forward and backward, priced where no class of it was timed."""


def profiled(job: Job, layers=None, *, spread: float = 0.0, **facts: float) -> Job:
    """The job on a machine whose profile timed these classes, and of its host only these facts."""
    layers = LAYERS if layers is None else layers
    times = {
        name: HostLayer(forward_s=forward, backward_s=backward, spread=spread)
        for name, (forward, backward) in layers.items()
    }
    compute = job.calibration.compute
    assert compute is not None
    compute = compute.model_copy(update={"host": Host(layers=times, **facts)})
    return replace(job, calibration=replace(job.calibration, compute=compute))


def host(framework: str, around: Around, layers=None, *, model=None, **training: object) -> tuple[float, float]:
    asked = job_of(model or dense_model(), framework, cluster={"gpu": H100}, **{"compile": False, **training})
    job = profiled(asked, layers)
    forward, backward = launch_s(job, job.model.layer_kinds[0], row_of(job), around=around)
    return float(forward[0]), float(backward[0])


@pytest.mark.parametrize(
    ("around", "name"),
    [("sharded", "transformers-fsdp2"), ("hooked", "transformers-ddp"), ("nothing", "transformers-autocast")],
)
def test_a_timed_layer_takes_what_was_measured(around: Around, name: str) -> None:
    """A Llama layer, as the agent's."""
    assert host("fsdp", around, model=llama_model(2)) == pytest.approx(LAYERS[name])


@pytest.mark.parametrize(
    ("framework", "training"),
    [
        ("torchtitan", {}),
        ("deepspeed", {}),
        ("fsdp", {"model_impl": "native"}),
        ("fsdp", {"model_impl": "liger"}),
        ("fsdp", {"compile": True}),
        ("fsdp", {"adapter": {"rank": 8}}),
    ],
)
@pytest.mark.parametrize("around", ["sharded", "hooked", "nothing"])
def test_other_layers_are_priced_as_before(framework: str, around: Around, training) -> None:
    """Though a profile may hold their classes: no real job has shown that they take what a small layer does."""
    model = llama_model(2)
    before = host(framework, around, {}, model=model, **training)
    assert host(framework, around, model=model, **training) == pytest.approx(before)


def test_norms_of_query_and_key_add_an_eighth_of_the_plain_layer() -> None:
    forward, backward = host("fsdp", "sharded", model=llama_model(2, qk_norm=True))
    assert (forward, backward) == pytest.approx((2e-3 + 0.12 * 1e-3, 5e-3 + 0.12 * 2e-3))


def test_without_a_timed_plain_layer_its_operators_are_counted() -> None:
    layers = {"transformers-fsdp2": LAYERS["transformers-fsdp2"]}
    forward, _ = host("fsdp", "sharded", layers, model=llama_model(2, qk_norm=True))
    assert forward == pytest.approx(2e-3 + 0.12 * PLAIN_OPS[0] * 1.05 * 26e-6, rel=1e-2)


def test_dtensor_adds_what_it_adds_to_a_plain_layer() -> None:
    """In loops a plain layer of 3 ms takes 9 under DTensor: twice its 112.5 operators of 20 µs more, whatever was timed around it."""
    loops = {"eager_op_s": 20e-6, "plain_layer_s": 3e-3, "tensor_parallel_layer_s": 9e-3}
    job = profiled(job_of(llama_model(2), "fsdp", cluster={"gpu": H100}), **loops)
    forward, backward = launch_s(job, job.model.layer_kinds[0], row_of(job, tp=2), around="sharded")
    assert forward[0] == pytest.approx(2e-3 + 2 * PLAIN_OPS[0] * 20e-6)
    assert backward[0] == pytest.approx(5e-3 + 2 * PLAIN_OPS[1] * 20e-6)


@pytest.mark.parametrize(("layers", "spread", "share"), [({}, 0.3, 0.20), (LAYERS, 0.05, 0.20), (LAYERS, 0.30, 0.30)])
def test_the_range_is_wider_where_the_measured_layers_scatter_more(layers, spread: float, share: float) -> None:
    job = profiled(job_of(llama_model(4), "fsdp", seq_length=128), layers, spread=spread)
    rows = row_of(job, zero=3, recompute="none")
    layer = launch_s(job, job.model.layer_kinds[0], rows, around="sharded")
    host_s = 4 * rows.num_micro_batches[0] * (layer[0][0] + layer[1][0])
    terms = {name: np.array([0.0]) for name in TIME_NAMES} | {"launch": np.array([host_s])}
    found = host_range(job, rows, terms)
    assert found is not None
    assert found.shorter_s[0] == pytest.approx(share * host_s)
    assert found.longer_s[0] == pytest.approx(share * host_s)


@pytest.mark.parametrize(
    ("framework", "zero", "layers", "tier"),
    [
        ("fsdp", 0, {}, Tier.NOMINAL),
        ("fsdp", 0, LAYERS, Tier.INTERPOLATED),
        ("deepspeed", 3, LAYERS, Tier.NOMINAL),
    ],
)
def test_the_tier_says_whether_hooks_were_timed(framework: str, zero: int, layers, tier: Tier) -> None:
    # Without autocast's casts of whole weights the host sets the pace of so few tokens.
    job = profiled(job_of(llama_model(4), framework, seq_length=128, param_dtype="bf16"), layers, eager_op_s=20e-6)
    found = evaluate(job, row_of(job, zero=zero, recompute="none"))
    assert found.tiers["launch"][0] == tier
