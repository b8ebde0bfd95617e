"""Quantised copies of weights in memory and on the wire, against arithmetic done by hand.

Sources: Transformer Engine 2.3 to 2.11 (pytorch/csrc/quantizer.cpp: no transpose where nvte_is_non_tn_fp8_gemm_supported;
pytorch/module/base.py: get_weight_workspace, get_dummy_wgrad), Megatron-FSDP (megatron_fsdp.py: transposes of fp8 parameters
live as long as the gathered unit), torchao's float8 all-gather as torchtitan and accelerate use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import job_of, row_of
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.memory.moments import moments
from cost_models.step.fsdp_comm import fsdp_links_s
from cost_models.strategies.strategy import Strategies
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

H, KV, MLP, WORDS = 4096, 1024, 14336, 128256
LAYER = 2 * H * H + 2 * H * KV + 3 * H * MLP + 2 * H
ENDS = 2 * WORDS * H
TOTAL = 32 * LAYER + ENDS + H
"""Llama-3.1-8B: 8,030,261,248. The vocabulary is a multiple of Megatron's 128."""


def built(
    strategy: dict[str, Any], *, gpu: str = "H100-SXM-80GB", model: Any = None, **training: Any
) -> tuple[Job, Strategies]:
    """A job on a node of eight, and its one strategy."""
    given = {"gpu": gpu, "seq_length": 8192, "precision": "fp8", **training}
    job = job_of(model or {"preset": "llama-3.1-8b"}, **given)
    return job, row_of(job, **strategy)


def term(name: str, strategy: dict[str, Any], *, moment: str = "layer_backward", **given: Any) -> float:
    job, rows = built(strategy, **given)
    found = moments(job, rows).terms[moment].get(name, np.zeros(()))
    return float(np.broadcast_to(found, (1, 1))[0, 0])


def test_copies_of_sharded_weights_live_with_the_gathered_layers() -> None:
    """ZeRO-3 over 8 ranks: a bf16 shard at rest, 0.25 bytes a parameter rather than 1.99; the running and the prefetched
    layer in bf16 with a copy in each layout, 4 bytes an element.
    """
    assert term("parameters", {"zero": 3}, fp8_recipe="tensorwise") == pytest.approx(2 * TOTAL / 8)
    assert term("parameter_gather", {"zero": 3}, fp8_recipe="tensorwise") == pytest.approx(2 * LAYER * (2 + 2))


def test_weights_stored_in_fp8_are_gathered_so_and_transposed_where_they_are_used() -> None:
    """--fp8-param-gather: one byte gathered, one for the transpose, which Megatron-FSDP drops with the layer."""
    given = {"fp8_recipe": "tensorwise", "param_dtype": "fp8"}
    assert term("parameters", {"zero": 3}, **given) == pytest.approx(TOTAL / 8)
    assert term("parameter_gather", {"zero": 3}, **given) == pytest.approx(2 * LAYER * (1 + 1))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_copies_of_whole_weights_are_whole(zero: int) -> None:
    """Of the layers and the final norm: the embedding and the head are read in bf16."""
    copies = 2 * (TOTAL - ENDS)
    assert term("parameters", {"zero": zero}, fp8_recipe="tensorwise") == pytest.approx(2 * TOTAL + copies)


@pytest.mark.parametrize(
    ("gpu", "training", "bytes_each"),
    [
        ("H100-SXM-80GB", {"fp8_recipe": "delayed"}, 2.0),
        ("B200-SXM-180GB", {"fp8_recipe": "delayed"}, 1.0),
        ("B200-SXM-180GB", {"fp8_recipe": "tensorwise"}, 1.0),
        ("B200-SXM-180GB", {"fp8_recipe": "mxfp8"}, 2.0),
        ("B200-SXM-180GB", {"fp8_recipe": "tensorwise", "param_dtype": "fp8"}, 0.0),
        ("B200-SXM-180GB", {"fp8_recipe": "mxfp8", "param_dtype": "fp8"}, 1.0),
        # 4 bits and an fp8 scale per 16 elements, by rows and by columns.
        ("B200-SXM-180GB", {"precision": "nvfp4"}, 2 * (0.5 + 1 / 16)),
        ("H100-SXM-80GB", {"precision": "bf16"}, 0.0),
    ],
)
def test_blackwell_reads_one_copy_in_both_directions(gpu: str, training: dict[str, Any], bytes_each: float) -> None:
    stored = 1 if training.get("param_dtype") == "fp8" else 2
    expected = stored * TOTAL + bytes_each * (TOTAL - ENDS)
    assert term("parameters", {"zero": 1}, gpu=gpu, **training) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("framework", "training", "bytes_each"),
    [
        ("torchtitan", {"fp8_recipe": "tensorwise"}, 1),
        ("torchtitan", {"fp8_recipe": "rowwise"}, 2),
        ("torchtitan", {"precision": "bf16"}, 2),
        ("fsdp", {"fp8_recipe": "tensorwise", "software_date": "2026-03"}, 1),
        ("fsdp", {"fp8_recipe": "tensorwise", "software_date": "2026-02"}, 2),
    ],
)
def test_fsdp_gathers_a_layer_s_weights_in_fp8(framework: str, training: dict[str, Any], bytes_each: int) -> None:
    """enable_fsdp_float8_all_gather, tensorwise alone: one byte of every layer's weight, two of the embedding's and the
    head's, whose linear layer no recipe converts.
    """
    job, rows = built({"zero": 3}, framework=framework, **training)
    link, placement = fsdp_links_s(job, rows), groups(rows, job.cluster).zero_shard

    def gathered(size: float) -> Any:
        return pytest.approx(float(job.calibration.collective_s("all_gather", size, placement=placement).seconds[0]))

    assert link.layer_JU.gather[0, 0] == gathered(bytes_each * LAYER)
    assert link.embedding.gather[0] == gathered(2 * WORDS * H)
    assert link.head.gather[0] == gathered(2 * (WORDS * H + H))


def test_experts_are_gathered_in_bf16() -> None:
    """torchao's Float8Linear replaces linear layers, which grouped experts are not."""
    model = {
        "num_layers": 2, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 32000,
        "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512},
    }  # fmt: skip
    job, rows = built({"zero": 3}, framework="torchtitan", model=model)
    dense, experts = 4 * 1024 * 1024 + 2 * 1024 + 8 * 1024, 8 * 3 * 1024 * 512
    placement = groups(rows, job.cluster).zero_shard
    price = job.calibration.collective_s
    apart = (
        price("all_gather", dense, placement=placement).seconds
        + price("all_gather", 2 * experts, placement=placement).seconds
    )
    assert fsdp_links_s(job, rows).layer_JU.gather[0, 0] == pytest.approx(float(apart[0]))


@pytest.mark.parametrize(("recipe", "bytes_each"), [("tensorwise", 1), ("rowwise", 2)])
def test_gathered_layers_take_as_much_room(recipe: str, bytes_each: int) -> None:
    """Two layers in backward under ZeRO-3; under ZeRO-2 all layers, and the final norm, beside both ends in bf16."""
    given = {"framework": "torchtitan", "fp8_recipe": recipe}
    assert term("parameter_gather", {"zero": 3}, **given) == pytest.approx(2 * LAYER * bytes_each)
    kept = 2 * ENDS + bytes_each * (TOTAL - ENDS)
    assert term("parameter_gather", {"zero": 2}, **given) == pytest.approx(kept)


@pytest.mark.parametrize("dense_layers", [0, 1])
def test_gathered_experts_take_their_room_in_bf16(dense_layers: int) -> None:
    """ZeRO-2 keeps all of them between the passes, whichever kinds of layer the model begins with."""
    model = {
        "num_layers": 3, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 32000, "intermediate_size": 2048,
        "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512, "first_dense_layers": dense_layers},
    }  # fmt: skip
    mixtures, shared = 3 - dense_layers, 4 * 1024 * 1024 + 2 * 1024
    in_fp8 = 3 * shared + mixtures * 8 * 1024 + dense_layers * 3 * 1024 * 2048 + 1024
    in_bf16 = mixtures * 8 * 3 * 1024 * 512 + 2 * 32000 * 1024
    found = term("parameter_gather", {"zero": 2}, framework="torchtitan", fp8_recipe="tensorwise", model=model)
    assert found == pytest.approx(in_fp8 + 2 * in_bf16)


def test_who_switches_the_gather_on_is_said() -> None:
    def assumed(strategy: dict[str, Any], **training: Any) -> dict[str, Any]:
        job, _ = built(strategy, **training)
        return resolve_strategies(job, [StrategyInput.model_validate({"micro_batch_size": 1, **strategy})]).assumed[0]

    said = assumed({"zero": 3}, framework="torchtitan", fp8_recipe="tensorwise")["gather_dtype"]
    assert "habit" in said
    assert "the parser's default is bf16" in said
    assert "--fp8-param-gather" in assumed({"zero": 3}, fp8_recipe="tensorwise")["gather_dtype"]
    assert "gather_dtype" not in assumed({"zero": 3}, framework="torchtitan", precision="bf16")
    assert "gather_dtype" not in assumed({"zero": 1}, fp8_recipe="tensorwise")


@pytest.mark.parametrize(("month", "cached"), [("2025-04", 0), ("2025-05", 1)])
def test_dummy_gradients_are_cached_since_transformer_engine_2_3(month: str, cached: int) -> None:
    """One bf16 dummy of each weight shape: fused query, key and value, output, gate and up, down, and the head; beside two
    32 MiB workspaces of cuBLAS.
    """
    shapes = H * (H + 2 * KV) + H * H + H * 2 * MLP + H * MLP + H * WORDS
    found = term("library_workspace", {"zero": 1}, precision="bf16", software_date=month)
    assert found == pytest.approx(64 * 2**20 + cached * 2 * shapes)
