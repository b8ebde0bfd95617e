"""Reading a Hugging Face config: class defaults for absent keys, null as its own value, refusals by name."""

from __future__ import annotations

import json

import pytest

from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.hf.families import FAMILIES
from cost_models.inputs.hf_config import REFUSED
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters


def read(**config):
    return resolve_model({"hf_config": config})


def problems(error: type[InvalidInputError] = InvalidInputError, **config) -> list:
    with pytest.raises(error) as caught:
        read(**config)
    return list(caught.value.problems)


def test_absent_key_value_heads_are_the_class_default_not_the_heads():
    """MistralConfig has 8 key-value heads whatever the heads; LlamaConfig has as many as heads."""
    assert read(model_type="mistral", num_attention_heads=16, hidden_size=2048).num_key_value_heads == 8
    assert read(model_type="llama", num_attention_heads=16, hidden_size=2048).num_key_value_heads == 16


def test_null_key_value_heads_mean_the_heads():
    assert read(model_type="mistral", num_attention_heads=16, num_key_value_heads=None).num_key_value_heads == 16


def test_absent_head_dim_is_the_class_default():
    """Qwen3Config has heads of 128: 2560 / 32 = 80 would be wrong (Qwen3-4B)."""
    assert read(model_type="qwen3", hidden_size=2560, num_attention_heads=32).head_dim == 128
    assert read(model_type="qwen2", hidden_size=2560, num_attention_heads=32).head_dim == 80


def test_class_defaults_are_reported():
    model = read(model_type="llama", num_hidden_layers=2)
    assert model.assumed["hidden_size"] == 4096
    assert model.assumed["vocab_size"] == 32000
    assert "num_layers" not in model.assumed


def test_gpt2_inner_width_null_is_four_times_the_width():
    assert read(model_type="gpt2", n_embd=64, n_head=4, n_inner=None).intermediate_size == 256


def test_gpt2_accepts_the_attribute_map_spellings():
    assert read(model_type="gpt2", hidden_size=64, num_attention_heads=4, num_hidden_layers=3).num_layers == 3


def test_qwen2_windows_only_where_switched_on():
    off = read(model_type="qwen2", num_hidden_layers=4, sliding_window=128)
    assert {kind.window for kind in off.layer_kinds} == {None}
    on = read(model_type="qwen2", num_hidden_layers=4, sliding_window=128, use_sliding_window=True, max_window_layers=3)
    assert [kind.window for kind in on.layer_kinds] == [None, None, None, 128]


def test_gemma2_alternates_from_a_windowed_layer():
    model = read(model_type="gemma2", num_hidden_layers=3)
    assert [kind.window for kind in model.layer_kinds] == [4096, None, 4096]
    assert model.norms_per_layer == 4


def test_deepseek_first_layers_are_dense():
    model = read(model_type="deepseek_v3", num_hidden_layers=4, num_nextn_predict_layers=1)
    assert [kind.is_moe for kind in model.layer_kinds] == [False, False, False, True]
    assert model.mla is not None
    assert model.mla.q_lora_rank == 1536
    assert model.mtp_num_layers == 1


def test_version_5_and_4_spellings_read_alike():
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    old = read(model_type="llama", torch_dtype="bfloat16", rope_theta=1e4, rope_scaling=None, **sizes)
    new = read(model_type="llama", dtype="bfloat16", rope_parameters={"rope_theta": 1e4}, **sizes)
    assert old == new


def test_a_multimodal_config_is_read_as_its_text_model():
    text = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 100,
    }  # fmt: skip
    model = read(model_type="llava", text_config=text, vision_config={"model_type": "clip_vision_model"})
    assert "vision-tower-ignored" in model.warnings
    alone = read(**text)
    assert count_parameters(model).total == count_parameters(alone).total
    assert alone.warnings == ()


def test_a_multimodal_config_without_sizes_is_not_given_those_of_another_model():
    found = problems(model_type="qwen2_vl", vision_config={})
    assert {"/model/hf_config/hidden_size", "/model/hf_config/num_hidden_layers"} <= {p.pointer for p in found}


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_refused_architectures_say_why(model_type):
    found = problems(NotModelledError, model_type=model_type, num_hidden_layers=2)
    assert found[0].code == "not-modelled"
    assert model_type in found[0].message


def test_an_encoder_decoder_flag_is_refused_whatever_the_type():
    assert problems(NotModelledError, model_type="llama", is_encoder_decoder=True)[0].code == "not-modelled"


def test_an_unknown_type_lists_the_known_ones():
    problem = problems(model_type="lama")[0]
    assert problem.code == "unknown-model-type"
    assert "Did you mean 'llama'?" in problem.hint
    assert all(name in problem.hint for name in FAMILIES)


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": 3}, {"model_type": ["llama"]}])
def test_a_config_without_a_type_is_refused(config):
    assert problems(**config)[0].pointer == "/model/hf_config/model_type"


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "32", True, float("nan"), 10**16, [], {}])
def test_an_impossible_size_names_its_own_key(value):
    found = problems(model_type="llama", hidden_size=value)
    assert found[0].pointer == "/model/hf_config/hidden_size"


def test_unknown_keys_of_a_config_are_ignored():
    assert read(model_type="llama", some_future_key={"a": 1}).hidden_size == 4096


def test_overrides_follow_a_config():
    model = resolve_model({"hf_config": {"model_type": "llama"}, "num_layers": 2, "name": "short"})
    assert (model.name, model.num_layers) == ("short", 2)
    assert "num_layers" not in model.assumed


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "opt", "word_embed_proj_dim": 512, "hidden_size": 1024}, "word_embed_proj_dim"),
        ({"model_type": "mpt", "no_bias": False}, "no_bias"),
        ({"model_type": "mpt", "expansion_ratio": 3}, "expansion_ratio"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_features_without_a_model_are_refused(config, key):
    assert problems(NotModelledError, **config)[0].pointer.endswith(key)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": [1, 2]}, "moe_topk"),
        ({"model_type": "ernie4_5_moe", "use_bias": True}, "use_bias"),
        ({"model_type": "dbrx", "tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_mixtures_without_a_model_are_refused(config, key):
    assert problems(NotModelledError, **config)[0].pointer.endswith(key)


def test_an_inner_config_is_read_and_its_problems_point_into_it():
    model = read(model_type="dbrx", attn_config={"kv_n_heads": 8}, ffn_config={"moe_num_experts": 16, "moe_top_k": 4})
    assert (model.num_key_value_heads, model.moe.num_experts, model.moe.top_k) == (8, 16, 4)
    assert read(model_type="dbrx").assumed["num_key_value_heads"] == 1
    found = problems(model_type="dbrx", attn_config={"kv_n_heads": 0}, ffn_config=[])
    assert [p.pointer.removeprefix("/model/hf_config/") for p in found] == ["ffn_config", "attn_config/kv_n_heads"]


def test_llama4_text_is_found_inside_its_multimodal_config():
    """Every fourth layer sees everything, the others 8192 tokens; every second one is sparse in the larger model."""
    text = {
        "model_type": "llama4_text", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8,
        "intermediate_size": 96, "intermediate_size_mlp": 192, "vocab_size": 100, "interleave_moe_layer_step": 2,
    }  # fmt: skip
    model = read(model_type="llama4", text_config=text, vision_config={})
    assert [kind.window for kind in model.layer_kinds] == [8192, 8192, 8192, None]
    assert [kind.is_moe for kind in model.layer_kinds] == [False, True, False, True]
    assert (model.intermediate_size, model.moe.expert_intermediate_size) == (192, 96)
    assert model.warnings == ("vision-tower-ignored",)


def test_sandwich_norms_and_norms_without_weights():
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    assert read(model_type="glm4", num_key_value_heads=2, **sizes).norms_per_layer == 4
    # OLMo: 4 h^2 of attention + 3 h f of MLP + two vocabulary matrices, and nothing else.
    expected = 4 * 64**2 + 3 * 64 * 96 + 2 * 100 * 64
    assert count_parameters(read(model_type="olmo", vocab_size=100, **sizes)).total == expected


def test_smollm_windows_are_in_the_layers_without_rotary_positions():
    on = read(model_type="smollm3", num_hidden_layers=4, use_sliding_window=True, sliding_window=64)
    assert [kind.window for kind in on.layer_kinds] == [None, None, None, 64]


@pytest.mark.parametrize("key", ["moe_layers", "no_rope_layers"])
@pytest.mark.parametrize("value", ["all", [1.5], [-1], [None], {}])
def test_a_list_of_layers_must_be_one(key, value):
    assert problems(model_type="llama4_text", **{key: value})[0].pointer == f"/model/hf_config/{key}"


SIZES = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100,
}  # fmt: skip


def test_class_defaults_hold_for_a_text_model_that_is_the_class_itself():
    """LlavaConfig builds the class that its text_config names; Qwen2VLTextConfig has defaults other than Qwen2Config's."""
    text = {"model_type": "llama", "vocab_size": 32064}
    assert read(model_type="llava", text_config=text).num_layers == 32
    assert "/model/hf_config/text_config/hidden_size" in {
        p.pointer for p in problems(model_type="qwen2_vl", text_config={})
    }


def test_an_unknown_family_is_answered_with_the_spec_that_would_say_it():
    """The specification in the hint is one that can be planned: 2 layers, 2 of 8 experts of 24."""
    problem = problems(
        model_type="newcomer", num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, **SIZES
    )[0]
    start = problem.hint.index("{")
    spec, _ = json.JSONDecoder().raw_decode(problem.hint[start:])
    model = resolve_model(spec)
    assert (model.num_layers, model.hidden_size, model.moe.num_experts, model.moe.top_k) == (2, 64, 8, 2)
    assert model.moe.expert_intermediate_size == 24
    assert spec == {
        "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100,
        "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 24},
    }  # fmt: skip


@pytest.mark.parametrize(
    "foreign",
    [{"mamba_d_state": 16}, {"layer_types": ["full_attention", "linear_attention"]}, {"vocab_size": None}, {"hidden_size": 66},
     {"intermediate_size": None}],
)  # fmt: skip
def test_no_spec_is_offered_for_what_none_says(foreign):
    assert "{" not in problems(model_type="newcomer", **{**SIZES, **foreign})[0].hint


def test_an_adapter_is_told_apart_from_a_model_in_one_sentence():
    adapter = {
        "peft_type": "LORA",
        "r": 16,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
    }
    found = problems(NotModelledError, **adapter)
    assert len(found) == 1
    assert "LORA adapter" in found[0].message
    assert "base model (meta-llama/Llama-3.1-8B)" in found[0].hint


def test_a_quantised_checkpoint_is_planned_unquantised_and_says_so():
    assert read(model_type="llama", quantization_config={"quant_method": "fp8"}).warnings == ("quantization-ignored",)
    inner = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}, **SIZES}
    assert "quantization-ignored" in read(model_type="llava", text_config=inner).warnings
    assert read(model_type="llama", quantization_config=None).warnings == ()


def test_granite_4_has_mamba_where_a_layer_does_not_attend():
    mixed = {"model_type": "granitemoehybrid", **SIZES, "shared_intermediate_size": 96, "mamba_n_heads": 4}
    assert [kind.mixer for kind in read(**mixed, layer_types=["attention", "mamba"]).layer_kinds] == [
        "attention",
        "recurrent",
    ]
    assert [kind.mixer for kind in read(**mixed).layer_kinds] == ["recurrent"] * 2
    assert problems(NotModelledError, **mixed, layer_types=["attention", "rwkv"])[0].pointer.endswith("layer_types")
    assert problems(**mixed, layer_types=["attention"])[0].pointer.endswith("layer_types")
    assert read(**mixed, layer_types=["attention"] * 2, num_local_experts=0).position_embedding == "none"


def test_ling_of_the_first_version_with_biases_everywhere_is_refused():
    sizes = {**SIZES, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    assert problems(NotModelledError, model_type="bailing_moe", **sizes)[0].pointer.endswith("use_bias")
    second = read(model_type="bailing_moe", n_group=2, topk_group=1, **sizes)
    assert (second.qkv_bias, second.attention_out_bias, second.moe.num_groups) == (False, True, 2)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({}, 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 65536),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"rope_scaling": {"factor": "four"}}, 32768),
        ({"rope_scaling": None}, 32768),
    ],
)
def test_positions_are_those_after_scaling(config, positions):
    """Qwen2Config has 32,768; YaRN with factor 4 makes 131,072 of them (Qwen2.5's model card)."""
    assert read(model_type="qwen2", **config).max_position_embeddings == positions


@pytest.mark.parametrize(
    "bare", [{"model_type": "llama"}, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}]
)
def test_a_config_in_the_place_of_a_specification_is_said_once(bare):
    with pytest.raises(InvalidInputError) as caught:
        resolve_model({**bare, "torch_dtype": "bfloat16", "rope_theta": 1e4})
    assert len(caught.value.problems) == 1
    assert "hf_config" in caught.value.problems[0].hint
