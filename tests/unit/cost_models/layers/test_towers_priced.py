"""What towers add to a step: operations and parameters worked out by hand, time on the first stage, memory by term."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tower_configs import llava, qwen

from builders import job_of, row_of, rows_of
from cost_models.evaluate import evaluate
from cost_models.job import Job
from cost_models.layers.flops import model_flops_per_step, repeated_flops_per_token, tower_flops
from cost_models.layers.trained import trained_parameters

ENCODER = 2 * (4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64 + 4 * 64)
"""Two layers of CLIP: four projections with biases, an MLP of two with biases, two LayerNorms."""
AROUND = 64 + 48 * 64 + 17 * 64 + 4 * 64
"""Class row, patches of 3 x 4 x 4 pixels, 17 positions, two LayerNorms."""
PROJECTOR = 64 * 256 + 256 + 256 * 256 + 256
ROWS = 17


def job(framework: str = "fsdp", model: dict[str, Any] | None = None, **training: Any) -> Job:
    return job_of(model or llava(), framework, **training)


def test_parameters_of_a_frozen_tower_are_stored_and_not_trained() -> None:
    text = trained_parameters(job().model, job().training).total
    found = trained_parameters(job().model, job(towers={"vision": "frozen"}).training)
    assert found.total == text + ENCODER + AROUND + PROJECTOR
    assert found.trainable == text + PROJECTOR
    frozen = trained_parameters(job().model, job(towers={"vision": "frozen", "projector": "frozen"}).training)
    assert frozen.trainable == text


def test_operations_of_an_image() -> None:
    """2 operations a weight and row, 4 a width and pair of rows; patches and projector for the 16 rows that are patches."""
    layers = 2 * ROWS * (2 * (4 * 64 * 64 + 2 * 64 * 128) + 4 * ROWS * 64)
    stem, projector = 16 * 2 * 48 * 64, 16 * 2 * (64 * 256 + 256 * 256)
    frozen = tower_flops(job(towers={"vision": "frozen"}), 0)
    assert frozen.forward == pytest.approx(layers + stem + projector, rel=1e-12)
    # The projector behind a frozen encoder: forward and weights' gradients, and the second layer's data gradient.
    second = 16 * 2 * 256 * 256
    assert frozen.step == pytest.approx(layers + stem + 2 * projector + second, rel=1e-12)
    trained = tower_flops(job(towers={"vision": "trained"}), 0)
    assert trained.step == pytest.approx(3 * layers + 2 * stem + 3 * projector, rel=1e-12)


def test_windows_of_an_encoder_are_blocks() -> None:
    """Windows of 112 pixels are 8 x 8 patches, and each patch sees these 64, whatever the image."""
    towers = {"vision": "frozen", "tokens_per_image": 256}
    full, windowed = (
        tower_flops(job(model=qwen(fullatt_block_indexes=indexes), towers=towers), 0).forward
        for indexes in ([0, 1], [1])
    )
    rows = 4 * 256
    assert full - windowed == pytest.approx(rows * 4 * 64 * (rows - 64), rel=1e-12)


def test_operations_of_a_step_grow_by_those_of_the_towers() -> None:
    plain, counted = job(), job(towers={"vision": "trained"})
    added = model_flops_per_step(counted) - model_flops_per_step(plain)
    assert added == pytest.approx(64 * tower_flops(counted, 0).step, rel=1e-9)
    again = row_of(counted, dp=8, zero=3, recompute="full")
    repeated = repeated_flops_per_token(counted, again) - repeated_flops_per_token(plain, again)
    assert repeated[0] == pytest.approx(tower_flops(counted, 0).layers / 2048, rel=1e-6)


def terms(which: Job, **strategy: Any) -> dict[str, float]:
    found = evaluate(which, row_of(which, **strategy))
    return {name: float(value[0]) for name, value in found.terms_s.items()}


def memory(which: Job, **strategy: Any) -> dict[str, float]:
    found = evaluate(which, row_of(which, **strategy))
    return found.memory.breakdown(0, 0)


def test_a_towers_time_is_in_the_terms_of_the_layers() -> None:
    towers = {"tokens_per_image": 512, "images_per_sequence": 2.0}
    whole = {"dp": 8, "zero": 0, "recompute": "none"}
    plain, frozen, trained = (
        terms(job(model=qwen(), **extra), **whole)
        for extra in ({}, {"towers": {"vision": "frozen", **towers}}, {"towers": {"vision": "trained", **towers}})
    )
    for name in ("gemm", "attention", "elementwise"):
        assert plain[name] < frozen[name] < trained[name]
    for name in ("embedding", "head", "loss"):
        assert plain[name] == frozen[name] == trained[name]
    # Attention's backward takes more than its forward; a frozen tower has none.
    assert trained["attention"] - plain["attention"] > 2 * (frozen["attention"] - plain["attention"])


def test_a_trained_tower_is_recomputed_as_the_strategy_or_as_its_own_field_says() -> None:
    sizes = {"vision": "trained", "tokens_per_image": 512}
    by_strategy, never, always = (
        job(model=qwen(), towers=sizes | extra) for extra in ({}, {"recompute": "none"}, {"recompute": "full"})
    )
    full = {"dp": 8, "zero": 0, "recompute": "full"}
    none = {"dp": 8, "zero": 0, "recompute": "none"}
    assert terms(by_strategy, **full) == terms(always, **full)
    assert terms(by_strategy, **none) == terms(never, **none)
    assert terms(always, **full)["recompute"] > terms(never, **full)["recompute"] > 0
    assert memory(always, **full)["activations"] < memory(never, **full)["activations"]


def test_state_of_a_frozen_tower_is_its_stored_weights_alone() -> None:
    """FSDP stores fp32 parameters: 4 bytes each, gradients 4, two moments 8; one GPU holds all."""
    single: dict[str, Any] = {"dp": 1, "zero": 0, "recompute": "none"}
    alone = {"cluster": {"gpus_per_node": 1}}
    plain, frozen = memory(job(**alone), **single), memory(job(towers={"vision": "frozen"}, **alone), **single)
    encoder = ENCODER + AROUND
    assert frozen["parameters"] - plain["parameters"] == pytest.approx(4 * (encoder + PROJECTOR), abs=1)
    assert frozen["optimizer_states"] - plain["optimizer_states"] == pytest.approx(8 * PROJECTOR, abs=1)
    assert frozen["gradients"] - plain["gradients"] == pytest.approx(4 * PROJECTOR, abs=1)
    trained = memory(job(towers={"vision": "trained"}, **alone), **single)
    assert trained["optimizer_states"] - plain["optimizer_states"] == pytest.approx(8 * (encoder + PROJECTOR), abs=1)


def test_a_frozen_tower_saves_what_its_projector_reads() -> None:
    """Two bytes for 16 rows: the projector's input of 64, the middle of 256 before and behind its activation function; and 48 pixels
    of four bytes. Autocast keeps a copy of two bytes of each trained weight beside them."""
    single: dict[str, Any] = {"dp": 8, "zero": 0, "recompute": "none"}
    plain, frozen = memory(job(), **single), memory(job(towers={"vision": "frozen"}), **single)
    assert frozen["activations"] - plain["activations"] == pytest.approx(
        2 * 16 * (64 + 256 + 256) + 4 * 16 * 48 + 2 * PROJECTOR, abs=1
    )


def test_towers_lie_on_the_first_stage() -> None:
    towers = {"vision": "trained", "tokens_per_image": 256}
    plain, counted = job("megatron", qwen()), job("megatron", qwen(), towers=towers)
    two = {"pp": 2, "dp": 4, "zero": 0, "recompute": "none"}
    before, after = (evaluate(each, row_of(each, **two)).memory.allocated_KN[:, 0] for each in (plain, counted))
    assert after[0] > before[0]
    assert after[1] == before[1]


def test_rows_of_a_batch_are_priced_as_alone() -> None:
    counted = job(model=qwen(), towers={"vision": "trained", "tokens_per_image": 256})
    rows = [{"dp": 8, "zero": 3, "recompute": "full"}, {"dp": 4, "tp": 2, "zero": 2, "recompute": "none"}]
    batch = evaluate(counted, rows_of(counted, *rows)).step_time_s
    alone = [float(evaluate(counted, row_of(counted, **row)).step_time_s[0]) for row in rows]
    np.testing.assert_array_equal(batch, alone)


def test_half_an_image_per_sequence_is_no_other_micro_batch() -> None:
    """Micro-batches of 1, 2 and 3 sequences hold 1/2, 1 and 3/2 images; twenty rows are too many to be priced one by one."""
    towers = {"vision": "trained", "tokens_per_image": 256, "images_per_sequence": 0.5}
    counted = job(model=qwen(), towers=towers, global_batch_size=48)
    rows = [{"dp": 8, "zero": 3, "micro_batch_size": size} for size in (1, 2, 3)]
    alone = [evaluate(counted, row_of(counted, **row)) for row in rows]
    batch = evaluate(counted, rows_of(counted, *(rows * 7)))
    for name in ("step_time_s", "step_time_high_s"):
        assert getattr(batch, name)[:3].tolist() == [float(getattr(each, name)[0]) for each in alone], name
    assert batch.memory.allocated[:3].tolist() == [float(each.memory.allocated[0]) for each in alone]


def test_documents_of_the_text_are_no_images() -> None:
    """A tower's rows see each other whatever documents the text model's sequences hold."""
    documents = {"document_lengths": [[8, 3], [16, 1]]}
    plain = tower_flops(job(towers={"vision": "frozen"}), 0)
    assert tower_flops(job(towers={"vision": "frozen"}, **documents), 0) == plain
    assert tower_flops(job(towers={"vision": "frozen"}, packing="padded", **documents), 0) == plain
