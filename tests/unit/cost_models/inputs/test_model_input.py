"""A model document is checked once: defaults reported, wrong values named with rule and hint, refusals by code."""

from __future__ import annotations

import math

import pytest

from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import LayerKind

SPEC = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def problems(document: dict, error: type[InvalidInputError] = InvalidInputError) -> list:
    with pytest.raises(error) as caught:
        resolve_model(document)
    return list(caught.value.problems)


def test_defaults_are_filled_and_reported():
    model = resolve_model(SPEC)
    assert model.assumed == {
        "num_key_value_heads": 8,
        "head_dim": 8,
        "position_embedding": "rope",
        "attention_bias": False,
        "mlp_bias": False,
        "norm": "rmsnorm",
        "gated_mlp": True,
        "tie_word_embeddings": False,
    }
    assert (model.num_key_value_heads, model.head_dim, model.norms_per_layer) == (8, 8, 2)
    assert model.layer_kinds == (LayerKind(is_moe=False, window=None),) * 4


def test_nothing_is_assumed_about_what_a_mixer_does_not_have():
    """LFM2's convolution has no heads, groups, state or chunks; Mamba-1 has no groups, but a state; chunks are its kernel's own."""

    def assumed(kind: str) -> dict[str, object]:
        layers = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
        found = resolve_model({**SPEC, "layer_types": layers, "recurrent": {"kind": kind}}).assumed
        return {
            name.removeprefix("recurrent."): value for name, value in found.items() if name.startswith("recurrent.")
        }

    assert assumed("short-conv") == {"head_dim": 64, "conv_kernel": 3, "conv_bias": False}
    assert assumed("mamba") == {
        "head_dim": 128, "state_size": 16, "conv_kernel": 4, "conv_bias": True, "dt_rank": 4,
    }  # fmt: skip


def test_given_fields_are_not_reported():
    model = resolve_model({**SPEC, "linear_bias": True, "norm": "layernorm", "num_key_value_heads": 2})
    assert model.qkv_bias
    assert model.attention_out_bias
    assert model.mlp_bias
    assert model.norm_bias
    assert not {"attention_bias", "mlp_bias", "norm", "num_key_value_heads"} & set(model.assumed)


def test_qkv_bias_leaves_the_output_projection_without():
    model = resolve_model({**SPEC, "attention_bias": "qkv"})
    assert (model.qkv_bias, model.attention_out_bias) == (True, False)


@pytest.mark.parametrize(
    ("change", "pointer", "text", "hint"),
    [
        ({"num_kv_heads": 2}, "/model/num_kv_heads", "not a known field", "num_key_value_heads"),
        ({"ffn_hidden_size": 2}, "/model/ffn_hidden_size", "not a known field", "intermediate_size"),
        ({"hiden_size": 2}, "/model/hiden_size", "not a known field", "hidden_size"),
        ({"num_layers": 0}, "/model/num_layers", "is 0; it must be at least 1", "default"),
        ({"num_layers": 10**6}, "/model/num_layers", "it must be at most 10000", "default"),
        ({"hidden_size": -64}, "/model/hidden_size", "is -64; it must be at least 1", "default"),
        ({"hidden_size": 2e15}, "/model/hidden_size", "it must be at most", "default"),
        ({"hidden_size": math.nan}, "/model/hidden_size", "is nan; it must be a whole number", "default"),
        ({"hidden_size": True}, "/model/hidden_size", "is true; it must be a whole number", "default"),
        ({"hidden_size": "64"}, "/model/hidden_size", "is '64'; it must be a whole number", "default"),
        ({"num_attention_heads": 7}, "/model/num_attention_heads", "not a multiple", "head_dim"),
        ({"num_key_value_heads": 3}, "/model/num_key_value_heads", "8 is not a multiple", "divisor of 8"),
        ({"norm": "rms"}, "/model/norm", "must be one of", "rmsnorm"),
        ({"position_embedding": "learned"}, "/model/max_position_embeddings", "is required", "Add"),
        ({"intermediate_size": None}, "/model/intermediate_size", "is required", "moe"),
        ({"vocab_size": None}, "/model/vocab_size", "is required", "vocab_size"),
        ({"moe": {"num_experts": 4, "top_k": 5}}, "/model/moe/top_k", "5 is more than num_experts 4", "Lower"),
        ({"moe": {"num_experts": 4, "topk": 1}}, "/model/moe/topk", "not a known field", "top_k"),
        ({"moe": {"num_experts": 4, "top_k": 1, "first_dense_layers": 4}}, "/model/moe/first_dense_layers",
         "none of the", "Lower"),
        ({"layer_types": ["full_attention"]}, "/model/layer_types", "1 entries for 4", "one entry per layer"),
        ({"layer_types": ["sliding_attention"] * 4}, "/model/sliding_window", "is required", "window"),
        ({"preset": "llama3.1-8b"}, "/model/preset", "not a model preset", "llama-3.1-8b"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_rule_and_hint(change, pointer, text, hint):
    found = {p.pointer: p for p in problems({**SPEC, **change})}
    assert pointer in found
    assert text in found[pointer].message
    assert hint in found[pointer].hint


def test_every_missing_field_is_named():
    found = problems({"hidden_size": 64})
    assert [p.pointer for p in found] == ["/model/num_layers", "/model/num_attention_heads", "/model/vocab_size"]
    assert {p.code for p in found} == {"missing-field"}


@pytest.mark.parametrize("document", [None, 3, "llama-3.1-8b", [SPEC]])
def test_something_else_than_an_object_is_refused(document):
    assert "must be an object" in problems(document)[0].message


@pytest.mark.parametrize("kind", ["rwkv", "linear", "recurrent"])
def test_layers_without_a_cost_model_are_refused(kind):
    found = problems({**SPEC, "layer_types": ["full_attention", kind] * 2}, NotModelledError)
    assert found[0].code == "not-modelled"
    assert kind in found[0].message


def test_layer_kinds_follow_windows_and_experts():
    model = resolve_model(
        {
            **SPEC,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 32, "first_dense_layers": 1},
        }
    )
    assert model.layer_kinds == (
        LayerKind(is_moe=False, window=16),
        LayerKind(is_moe=True, window=None),
        LayerKind(is_moe=True, window=16),
        LayerKind(is_moe=True, window=None),
    )


def test_moe_layer_frequency_counts_from_the_first_layer():
    every_other = resolve_model({**SPEC, "moe": {"num_experts": 2, "top_k": 1, "moe_layer_freq": 2}})
    assert [kind.is_moe for kind in every_other.layer_kinds] == [True, False, True, False]
    listed = resolve_model({**SPEC, "moe": {"num_experts": 2, "top_k": 1, "moe_layer_freq": [0, 0, 1, 0]}})
    assert [kind.is_moe for kind in listed.layer_kinds] == [False, False, True, False]


def test_a_model_of_experts_alone_has_no_dense_width():
    model = resolve_model({**SPEC, "moe": {"num_experts": 4, "top_k": 2}})
    assert model.intermediate_size == 0
    assert model.moe is not None
    assert model.moe.expert_intermediate_size == 96
    assert model.assumed["moe.expert_intermediate_size"] == 96


def test_a_preset_takes_overrides_field_by_field():
    model = resolve_model({"preset": "mixtral-8x7b", "num_layers": 3, "moe": {"capacity_factor": 1.5}})
    assert model.name == "mixtral-8x7b"
    assert len(model.layer_kinds) == 3
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.capacity_factor) == (8, 1.5)


def test_a_preset_with_alternating_layers_can_be_cut():
    model = resolve_model({"preset": "gemma-2-9b", "num_layers": 3})
    assert [kind.window for kind in model.layer_kinds] == [4096, None, 4096]


def test_preset_and_config_together_are_refused():
    found = problems({"preset": "gpt2-xl", "hf_config": {"model_type": "gpt2"}})
    assert "both given" in found[0].message


def test_many_wrong_fields_give_a_bounded_answer():
    assert len(problems({f"field_{i}": i for i in range(5000)})) == 20


def test_a_huge_integer_is_refused_by_its_size():
    assert "integer of" in problems({**SPEC, "hidden_size": 10**6000})[0].message


def test_mutating_a_document_does_not_change_what_was_resolved():
    document = {**SPEC}
    first = resolve_model(document)
    document["num_layers"] = 2
    assert (first.num_layers, resolve_model(document).num_layers) == (4, 2)
