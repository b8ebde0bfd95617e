"""The matrices that Muon works on, against the two-dimensional parameters of transformers' modules and of peft's adapters."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tower_configs import llava

from builders import Document, dense_model, job_of, request_of, row_of, tiny_model
from cost_models.layers.weight_matrices import stage_matrices
from cost_models.step.muon import muon_s, vectors_owned
from planner.rows import evaluate_rows

torch = pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")
transformers.utils.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for

SIZES: Document = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": 80,
}  # fmt: skip
KINDS = ["linear_attention", "full_attention"] * 2
DELTA: Document = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "head_dim": 16,
    "layer_types": KINDS,
}  # fmt: skip
MAMBA: Document = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_expand": 2}
HYBRIDS: dict[str, Document] = {
    "nemotron_h": {
        "hybrid_override_pattern": "M-M*", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8, "head_dim": 16,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128, "head_dim": 16},
    "jamba": {"num_experts": 1, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1},
    "qwen3_5_text": DELTA,
    "olmo_hybrid": {key: value for key, value in DELTA.items() if key != "head_dim"},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
}  # fmt: skip


def held(job: Any, **strategy: Any) -> Counter[tuple[int, int]]:
    """Matrices of the only stage, by rows and columns."""
    found: Counter[tuple[int, int]] = Counter()
    matrices = stage_matrices(job, row_of(job, **strategy))
    for each, count in zip(matrices.kinds, matrices.counts, strict=True):
        found[int(each.rows[0]), int(each.columns[0])] += int(count[0, 0])
    return +found


@pytest.mark.parametrize("family", HYBRIDS)
def test_hybrids_have_the_matrices_of_their_modules(family: str) -> None:
    config = {"model_type": family, **SIZES, **HYBRIDS[family]}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config, pad_token_id=0)
        )
    theirs = Counter(
        tuple(each.shape)
        for name, each in model.named_parameters()
        if each.ndim == 2 and "embed" not in name and "lm_head" not in name
    )
    assert held(job_of({"hf_config": config}, "fsdp", optimizer="muon"), zero=0) == theirs


def test_megatron_makes_all_of_a_mixer_in_one_projection() -> None:
    """One in_proj and one out_proj (megatron/core/ssm/mamba_mixer.py): z and x of 2 x 64 heads' elements, B and C, a step for each head."""
    mixer = {"kind": "gated-delta-net", "num_heads": 4, "num_groups": 2, "state_size": 8, "head_dim": 16}
    model = tiny_model(num_layers=2, layer_types=KINDS[:2], recurrent=mixer)
    found = held(job_of(model, "megatron", optimizer="muon"), zero=0)
    assert found[2 * 64 + 2 * 16 + 2 * 4, 256] == 1
    assert found[256, 64] == 1


def test_adapters_are_the_matrices_that_are_trained() -> None:
    """A is (rank, inputs) and B (outputs, rank), for q and k of a layer of 1,024 with two key-value heads of 128."""
    adapter = {"rank": 8, "target_modules": ["q_proj", "k_proj"]}
    job = job_of(dense_model(num_key_value_heads=2), "fsdp", optimizer="muon", adapter=adapter)
    assert held(job, zero=0) == {(8, 1024): 8, (1024, 8): 4, (256, 8): 4}
    assert vectors_owned(job, row_of(job, zero=0))[0] == 0


def test_nothing_is_iterated_on_that_is_frozen() -> None:
    model, frozen = dense_model(num_key_value_heads=2), ["attention", "embedding", "head"]
    job = job_of(model, "fsdp", optimizer="muon", frozen=frozen)
    assert held(job, zero=0) == {(4096, 1024): 8, (1024, 4096): 4}
    norms = job_of(model, "fsdp", optimizer="muon", frozen=[*frozen, "mlp"])
    assert held(norms, zero=0) == {}
    assert muon_s(norms, row_of(norms, zero=0))[0] == 0
    assert vectors_owned(norms, row_of(norms, zero=0))[0] == 9 * 1024  # two norms a layer, and the last


def moments(optimizer: str, **training: Any) -> float:
    """Bytes of an optimizer's states, held in fp32, on a rank that holds all of the model."""
    given = {"optimizer": optimizer, "optimizer_state_dtype": "fp32", **training}
    row = request_of(dense_model(num_key_value_heads=2), "fsdp", **given) | {
        "strategy": {"zero": 0, "micro_batch_size": 1}
    }
    (answer,) = evaluate_rows([row])
    return float(answer["memory"]["stages"][0]["breakdown_bytes"]["optimizer_states"])


def test_a_trained_embedding_keeps_both_moments_where_layers_are_frozen() -> None:
    """Adam updates embedding and head, 32,000 x 1,024 each, and the norms, however little of the layers is trained."""
    ends, norms = 2 * 32000 * 1024, 9 * 1024
    assert moments("muon", frozen=["attention", "mlp"]) == 2 * 4 * (ends + norms)
    # Adafactor keeps sums of the rows and columns of both, and one moment of each norm.
    assert moments("adafactor", frozen=["attention", "mlp"]) == 4 * (2 * (32000 + 1024) + norms)
    assert moments("adafactor", frozen=["attention", "mlp", "embedding", "head"]) == 4 * norms


def test_a_trained_tower_has_matrices_too() -> None:
    """LLaVA's of two layers of 64: four products of attention and two of the MLP; the projector 64 x 256 and 256 x 256 beside them."""
    shapes = {(64, 64): 8, (128, 64): 2, (64, 128): 2, (256, 64): 1, (256, 256): 1}
    frozen = ["embedding", "head", "norms", "attention", "mlp"]
    job = job_of(llava(), "fsdp", optimizer="muon", towers={"vision": "trained"}, frozen=frozen)
    assert held(job, zero=0) == shapes
    projector = job_of(llava(), "fsdp", optimizer="muon", towers={"vision": "frozen"}, frozen=frozen)
    assert held(projector, zero=0) == {(256, 64): 1, (256, 256): 1}
    assert np.all(muon_s(projector, row_of(projector, zero=0)) < muon_s(job, row_of(job, zero=0)))
