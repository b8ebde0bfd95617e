"""Parameter counts against the real modules: transformers builds each model on the meta device and counts it.

Every family is drawn at random sizes with its switches, with class defaults left in place, and every published
config that a preset stands for is built whole.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import presets
from cost_models.errors import InvalidInputError
from cost_models.inputs.hf.families import FAMILIES as ALL_FAMILIES
from cost_models.inputs.hf.hybrid_families import HYBRIDS
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters

torch = pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")
transformers.utils.logging.set_verbosity_error()

FAMILIES = {name: family for name, family in ALL_FAMILIES.items() if name not in HYBRIDS}
"""Hybrids have a test file of their own."""

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for


def same_modules(config: dict[str, Any]) -> dict[str, Any]:
    """The config under a family that transformers has, where the published code is another's under a new name.

    MiMo-7B subclasses Qwen2; Ling and Ring (modeling_bailing_moe_v2.py) have the modules of GLM-4.5: query, key and value
    biased or not, a norm per head or none, dense layers first, experts and one shared MLP of their summed width.
    """
    if config["model_type"] == "mimo":
        return {**config, "model_type": "qwen2"}
    if not config["model_type"].startswith("bailing"):
        return config
    renamed = {
        "num_experts": "n_routed_experts",
        "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
    }
    config = {"head_dim": config["hidden_size"] // config["num_attention_heads"], "n_shared_experts": 0,
              "first_k_dense_replace": 0, **config}  # fmt: skip
    return {"model_type": "glm4_moe", **{renamed.get(key, key): config[key] for key in config if key != "model_type"}}


def modules_count(config: dict[str, Any]) -> int:
    """Parameters of the causal language model that transformers builds from this config."""
    config = same_modules(config)
    if config["model_type"] in TEXT_OF:
        return text_modules_count({"model_type": TEXT_OF[config["model_type"]], "text_config": config})
    # Token ids default past a small vocabulary; they do not change a shape.
    built = transformers.AutoConfig.for_model(**{"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **config})
    with torch.device("meta"):
        return int(transformers.AutoModelForCausalLM.from_config(built).num_parameters())


TEXT_OF = {"glm4v_text": "glm4v", "glm4v_moe_text": "glm4v_moe"}
"""Text models that transformers only builds inside a multimodal one."""


def text_modules_count(config: dict[str, Any]) -> int:
    """Parameters of a multimodal model less those of its vision tower and projector."""
    inner = {"pad_token_id": 0, **config["text_config"]}
    tied = {
        name: inner[name] for name in ("tie_word_embeddings",) if name in inner
    }  # transformers 5 asks the outer one
    built = transformers.AutoConfig.for_model(**{**tied, **config, "text_config": inner})
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(built)
    parts = model.named_parameters()
    return sum(p.numel() for name, p in parts if not any(part in name for part in ("vision", "visual", "multi_modal")))


def our_count(config: dict[str, Any]) -> int:
    return count_parameters(resolve_model({"hf_config": config})).total


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * draw(st.sampled_from([4, 8, 16])),
        "intermediate_size": draw(st.integers(1, 96)),
        "vocab_size": draw(st.integers(8, 300)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def without(config: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {**{key: value for key, value in config.items() if key not in names}, **more}


def family_config(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """A small random config of this family; keys that the class can default are sometimes left out."""
    base, flag = draw(sizes()), st.booleans()
    heads, kv_heads = base["num_attention_heads"], base["num_key_value_heads"]
    bias = {"attention_bias": draw(flag)}
    gpt = {"n_embd": base["hidden_size"], "n_layer": base["num_hidden_layers"], "n_head": heads}
    no_kv = without(base, "num_key_value_heads")
    few = {"num_experts_per_tok": draw(st.integers(1, 2))}
    experts = draw(st.integers(2, 5))
    qwen_moe = {
        "num_experts": experts,
        "moe_intermediate_size": draw(st.integers(1, 40)),
        **few,
        "decoder_sparse_step": draw(st.integers(1, 2)),
        "mlp_only_layers": draw(st.sampled_from([None, [0]])),
    }
    latent = {
        "kv_lora_rank": 12,
        "q_lora_rank": draw(st.sampled_from([None, 20])),
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": draw(st.sampled_from([8, 12])),
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": draw(st.integers(1, 40)),
        "n_shared_experts": draw(st.integers(1, 2)),
        "first_k_dense_replace": draw(st.integers(0, base["num_hidden_layers"])),
        **few,
        **bias,
    }
    small_gpt = {**gpt, "vocab_size": base["vocab_size"], "n_positions": draw(st.integers(1, 90)),
                 "n_inner": draw(st.sampled_from([None, 50]))}  # fmt: skip
    local = {"num_local_experts": experts, **few}
    rope = {"rope_theta": 1e4}
    glm_experts = {"n_routed_experts": 8, "moe_intermediate_size": 12, "n_shared_experts": draw(st.integers(1, 2)),
                   "first_k_dense_replace": draw(st.integers(0, 5))}  # fmt: skip
    ling = {**base, **few, "use_bias": False, "use_qkv_bias": draw(flag), "use_qk_norm": draw(flag), "num_experts": 8,
            "moe_intermediate_size": 12, "num_shared_experts": draw(st.integers(1, 2)),
            "first_k_dense_replace": draw(st.integers(0, 5))}  # fmt: skip
    specific: dict[str, dict[str, Any]] = {
        "llama": {**base, **bias, "mlp_bias": draw(flag)},
        "mistral": {**base, "head_dim": draw(st.sampled_from([None, 6]))},
        "mixtral": {**base, "num_local_experts": experts, **few},
        "qwen2": base,
        "qwen3": {**base, **bias},
        "qwen2_moe": {**base, **qwen_moe, "shared_expert_intermediate_size": 24, "qkv_bias": draw(flag)},
        "qwen3_moe": {**base, **qwen_moe, **bias},
        "gemma": {**base, **bias},
        "gemma2": {**base, **bias, "head_dim": draw(st.sampled_from([8, 10]))},
        "gemma3_text": {**base, **bias},
        "gpt2": {**gpt, "vocab_size": base["vocab_size"], "n_positions": draw(st.integers(1, 90)),
                 "n_inner": draw(st.sampled_from([None, 50])), "tie_word_embeddings": base["tie_word_embeddings"]},
        "deepseek_v3": {**no_kv, **latent},
        "deepseek_v2": {**no_kv, **latent},
        "deepseek_v32": {**no_kv, **latent, "q_lora_rank": 20, "index_n_heads": draw(st.integers(1, 5)),
                         "index_head_dim": draw(st.sampled_from([4, 10])), "index_topk": draw(st.integers(1, 9))},
        "phi3": base,
        "phi": base,
        "olmo2": {**base, **bias},
        "olmoe": {**base, **bias, "num_experts": experts, **few},
        "gpt_neox": {**no_kv, **bias, "use_parallel_residual": draw(flag)},
        "opt": {**without(no_kv, "intermediate_size"), "ffn_dim": 40, "enable_bias": draw(flag),
                "do_layer_norm_before": draw(flag), "max_position_embeddings": draw(st.integers(1, 90))},
        "bloom": {"hidden_size": base["hidden_size"], "n_layer": base["num_hidden_layers"], "n_head": heads,
                  "vocab_size": base["vocab_size"]},
        "falcon": {**without(no_kv, "intermediate_size"), "new_decoder_architecture": draw(flag), "bias": draw(flag),
                   "multi_query": draw(flag), "parallel_attn": draw(flag), "alibi": draw(flag),
                   "num_kv_heads": draw(st.sampled_from([None, kv_heads]))},
        "mpt": {"d_model": base["hidden_size"], "n_layers": base["num_hidden_layers"], "n_heads": heads,
                "vocab_size": base["vocab_size"]},
        "starcoder2": {**base, "use_bias": draw(flag)},
        "cohere": {**base, **bias, "use_qk_norm": draw(flag)},
        "granite": {**base, **bias, "mlp_bias": draw(flag)},
        "stablelm": {**base, "use_qkv_bias": draw(flag), "use_parallel_residual": draw(flag)},
        "nemotron": {**base, **bias, "mlp_bias": draw(flag), "head_dim": draw(st.sampled_from([None, 6]))},
        "gpt_oss": {**base, **bias, "num_local_experts": experts, **few},
        "gptj": {**small_gpt, "rotary_dim": 2, "tie_word_embeddings": base["tie_word_embeddings"]},
        "codegen": {**small_gpt, "n_head": 4, "n_embd": 32, "rotary_dim": 2, "tie_word_embeddings": base["tie_word_embeddings"]},
        "gpt_bigcode": {**small_gpt, "multi_query": draw(flag), "tie_word_embeddings": base["tie_word_embeddings"]},
        "cohere2": {**base, **bias, "sliding_window_pattern": draw(st.integers(1, 3))},
        "olmo": {**base, **bias},
        "olmo3": {**base, **bias},
        "glm": {**base, **bias, "head_dim": draw(st.sampled_from([8, 12]))},
        "glm4": {**base, **bias, "head_dim": draw(st.sampled_from([8, 12]))},
        "smollm3": {**base, **bias, "mlp_bias": draw(flag)},
        "ernie4_5": {**base, "use_bias": draw(flag), "head_dim": draw(st.sampled_from([None, 8]))},
        "hunyuan_v1_dense": {**base, **bias, **rope, "head_dim": 8},
        "exaone4": {**base, "sliding_window_pattern": draw(st.integers(1, 3))},
        "arcee": {**base, **bias, "mlp_bias": draw(flag)},
        "seed_oss": {**base, **bias, "attention_out_bias": draw(flag), "mlp_bias": draw(flag),
                     "head_dim": draw(st.sampled_from([None, 8]))},
        "glm4_moe": {**without(base, "tie_word_embeddings"), **glm_experts, **bias, **few, "use_qk_norm": draw(flag)},
        "phimoe": {**base, **bias, **local, "lm_head_bias": draw(flag)},
        "granitemoe": {**base, **bias, **local},
        "minimax_m2": {**base, **local, "head_dim": 8},
        "llama4_text": {**base, **bias, "num_local_experts": experts, "num_experts_per_tok": 1, "head_dim": 8,
                        "intermediate_size_mlp": draw(st.integers(1, 40)),
                        "interleave_moe_layer_step": draw(st.integers(1, 3)),
                        "moe_layers": draw(st.sampled_from([None, [0], []]))},
        "ernie4_5_moe": {**base, "moe_num_experts": experts, "moe_k": 2, "moe_intermediate_size": 12,
                         "moe_num_shared_experts": draw(st.integers(0, 2)),
                         "moe_layer_start_index": draw(st.integers(0, 2)),
                         "moe_layer_end_index": draw(st.integers(-1, 3)),
                         "moe_layer_interval": draw(st.integers(1, 2))},
        "hunyuan_v1_moe": {**base, **bias, **rope, "num_experts": experts, "head_dim": 8,
                           "moe_topk": draw(st.sampled_from([1, [2] * base["num_hidden_layers"]]))},
        "apertus": {**base, **bias, "hidden_act": draw(st.sampled_from(["xielu", "silu"]))},
        "ministral": {**base, "head_dim": draw(st.sampled_from([6, 8]))},
        "ministral3": {**base, "head_dim": 8},
        "mimo": {**base, "num_nextn_predict_layers": draw(st.integers(0, 1))},
        "glm4v_text": base,
        "glm4v_moe_text": {**base, **glm_experts, **bias, **few},
        "glm4_moe_lite": {**no_kv, **without(latent, "first_k_dense_replace"),
                          "mlp_layer_types": draw(st.sampled_from([None, ["sparse"] * base["num_hidden_layers"]]))},
        "dots1": {**base, **glm_experts, **bias, **few},
        "afmoe": {**base, **bias, **few, "head_dim": 8, "num_experts": experts, "num_shared_experts": draw(st.integers(1, 2)),
                  "moe_intermediate_size": draw(st.integers(1, 40)), "num_dense_layers": draw(st.integers(0, 4))},
        "bailing_moe": ling, "bailing_moe_v2": ling,
        "granitemoeshared": {**base, **bias, **local, "shared_intermediate_size": draw(st.sampled_from([0, 24]))},
        "dbrx": {"n_layers": base["num_hidden_layers"], "d_model": base["hidden_size"], "n_heads": heads,
                 "vocab_size": base["vocab_size"],
                 "attn_config": {"kv_n_heads": kv_heads, "rope_theta": 1e4},
                 "ffn_config": {"ffn_hidden_size": base["intermediate_size"], "moe_num_experts": experts,
                                "moe_top_k": 2}},
    }  # fmt: skip
    config = specific[model_type]
    droppable = sorted(set(config) & {"vocab_size", "intermediate_size", "tie_word_embeddings", "attention_bias"}
                       & set(FAMILIES[model_type].defaults))  # fmt: skip
    if droppable and draw(flag):
        config = without(config, draw(st.sampled_from(droppable)))
    return {"model_type": model_type, **config}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@settings(max_examples=12)
@given(data=st.data())
def test_a_drawn_config_counts_what_its_modules_hold(model_type: str, data: st.DataObject):
    config = data.draw(st.composite(family_config)(model_type))
    assert our_count(config) == modules_count(config), config


AWKWARD = st.sampled_from([None, -1, 0, 1, 3, 7, True, False, 1.5, "8", [], {}, 10**12])


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@settings(max_examples=8)
@given(data=st.data())
def test_a_config_with_a_key_missing_or_wrong_is_refused_or_counted_right(model_type: str, data: st.DataObject):
    config = data.draw(st.composite(family_config)(model_type))
    key = data.draw(st.sampled_from(sorted(set(config) - {"model_type"})))
    config = without(config, key) if data.draw(st.booleans()) else {**config, key: data.draw(AWKWARD)}
    try:
        ours = our_count(config)
    except InvalidInputError:
        return
    if ours > 10**10:
        return  # layers and experts in numbers that nobody can build
    try:
        theirs = modules_count(config)
    except Exception:  # noqa: BLE001 - the classes refuse in their own ways, often later than we need to
        return
    assert ours == theirs, config


NEEDED: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 1e4}}, "hunyuan_v1_moe": {"rope_theta": 1e4, "head_dim": 128},
    "hunyuan_v1_dense": {"rope_theta": 1e4, "head_dim": 128}, "nemotron": {"num_key_value_heads": 48},
    "deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "glm4v_moe_text": {"head_dim": 128}, "ministral": {"head_dim": 128},
}  # fmt: skip
"""What a class cannot build a model without."""


@pytest.mark.parametrize("model_type", sorted(name for name in FAMILIES if not name.startswith("bailing")))
def test_defaults_alone_count_what_the_class_builds(model_type: str):
    """A config that says nothing is the class's own model, which for most families is a published one."""
    config = {"model_type": model_type, **NEEDED.get(model_type, {})}
    assert our_count(config) == modules_count(config)


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name in transformers.CONFIG_MAPPING])
def test_sizes_that_a_config_leaves_out_are_those_of_its_class(model_type: str):
    """Also those that no parameter is counted by, such as the longest sequence; null and 0 mean different things by class."""
    theirs = transformers.AutoConfig.for_model(model_type)
    ours = {key: value for key, value in FAMILIES[model_type].defaults.items() if type(value) is int and value > 0}
    known = {key: getattr(theirs, key, None) for key in ours}
    assert {key: value for key, value in known.items() if value} == {key: ours[key] for key in ours if known[key]}
    assert sum(bool(value) for value in known.values()) >= 3


PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-2-7b": {"model_type": "llama"},
    "llama-2-13b": {"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
                    "intermediate_size": 13824},
    "llama-2-70b": {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "intermediate_size": 28672},
    "llama-3.1-8b": {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 14336,
                     "vocab_size": 128256},
    "llama-3.1-70b": {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                      "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256},
    "llama-3.1-405b": {"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
                       "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
                       "vocab_size": 128256},
    "llama-3.2-1b": {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_key_value_heads": 8,
                     "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True},
    "llama-3.2-3b": {"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
                     "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
                     "tie_word_embeddings": True},
    "mistral-7b": {"model_type": "mistral"},
    "mixtral-8x7b": {"model_type": "mixtral"},
    "mixtral-8x22b": {"model_type": "mixtral", "hidden_size": 6144, "num_hidden_layers": 56,
                      "num_attention_heads": 48, "intermediate_size": 16384},
    "qwen2.5-7b": {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                   "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
    "qwen2.5-72b": {"model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064},
    "qwen3-8b": {"model_type": "qwen3", "num_hidden_layers": 36, "num_key_value_heads": 8,
                 "intermediate_size": 12288},
    "qwen3-32b": {"model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
                  "num_key_value_heads": 8, "intermediate_size": 25600},
    "qwen3-30b-a3b": {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128},
    "qwen3-235b-a22b": {"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94,
                        "num_attention_heads": 64, "head_dim": 128, "moe_intermediate_size": 1536,
                        "intermediate_size": 12288},
    "gemma-2-9b": {"model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "intermediate_size": 14336},
    "gemma-3-27b": {"model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62,
                    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
                    "intermediate_size": 21504, "sliding_window": 1024},
    "phi-4": {"model_type": "phi3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
              "num_key_value_heads": 10, "intermediate_size": 17920, "vocab_size": 100352},
    "olmo-2-13b": {"model_type": "olmo2", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
                   "intermediate_size": 13824, "vocab_size": 100352},
    "nemotron-4-340b": {"model_type": "nemotron", "hidden_size": 18432, "num_hidden_layers": 96,
                        "num_attention_heads": 96, "num_key_value_heads": 8, "intermediate_size": 73728},
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    "deepseek-v2": {"model_type": "deepseek_v2", "hidden_size": 5120, "num_hidden_layers": 60,
                    "num_attention_heads": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
                    "n_routed_experts": 160, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "n_group": 8,
                    "topk_group": 3},
    "deepseek-v3": {"model_type": "deepseek_v3"},
    "deepseek-v3.2": {"model_type": "deepseek_v32"},
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "gpt3-1.3b": {"model_type": "gpt2", "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048},
    "gpt3-6.7b": {"model_type": "gpt2", "n_embd": 4096, "n_layer": 32, "n_head": 32, "n_positions": 2048},
    "gpt3-13b": {"model_type": "gpt2", "n_embd": 5120, "n_layer": 40, "n_head": 40, "n_positions": 2048},
    "gpt3-175b": {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048},
    "mt-nlg-530b": {"model_type": "gpt2", "n_embd": 20480, "n_layer": 105, "n_head": 128, "n_positions": 2048},
    "megatron-1t": {"model_type": "gpt2", "n_embd": 25600, "n_layer": 128, "n_head": 160, "n_positions": 2048,
                    "vocab_size": 51200},
    "bloom-176b": {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112},
    "opt-66b": {"model_type": "opt", "hidden_size": 9216, "num_hidden_layers": 64, "num_attention_heads": 72,
                "ffn_dim": 36864},
    "falcon-40b": {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
                   "num_kv_heads": 8, "new_decoder_architecture": True},
    "mpt-7b": {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
    "mpt-30b": {"model_type": "mpt", "d_model": 7168, "n_layers": 48, "n_heads": 64, "vocab_size": 50432},
}  # fmt: skip
"""Each preset's published config, less the keys in which it equals its class's defaults."""


def test_every_preset_has_a_published_config():
    hybrids = {name for name in presets.names("models") if resolve_model({"preset": name}).recurrent is not None}
    assert set(PUBLISHED) == set(presets.names("models")) - hybrids


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_model_counts_what_its_modules_hold(name: str):
    config = PUBLISHED[name]
    expected = modules_count(config)
    assert our_count(config) == expected
    assert count_parameters(resolve_model({"preset": name})).total == expected


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_preset_is_what_the_reader_makes_of_the_published_config(name: str):
    """Same layers, whichever way the model is named (names, positions and defaults aside)."""
    preset = resolve_model({"preset": name})
    read = resolve_model({"hf_config": PUBLISHED[name]})
    for field in ("num_key_value_heads", "head_dim", "gated_mlp", "norm", "norms_per_layer", "qk_norm", "qkv_bias",
                  "attention_out_bias", "mlp_bias", "parallel_block", "layer_kinds", "mla", "moe",
                  "position_embedding", "tie_word_embeddings", "intermediate_size"):  # fmt: skip
        assert getattr(preset, field) == getattr(read, field), field


WELL_KNOWN: dict[str, tuple[dict[str, Any], float]] = {
    "EleutherAI/gpt-j-6b": ({"model_type": "gptj"}, 6.05),
    "bigcode/starcoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_positions": 8192,
         "n_inner": 24576, "vocab_size": 49152}, 15.5),
    "microsoft/Phi-3.5-MoE-instruct": (
        {"model_type": "phimoe", "attention_bias": True, "lm_head_bias": True}, 41.9),
    "CohereLabs/c4ai-command-a-03-2025": (
        {"model_type": "cohere2", "hidden_size": 12288, "intermediate_size": 36864, "num_hidden_layers": 64,
         "num_attention_heads": 96, "num_key_value_heads": 8}, 111.0),
    "LGAI-EXAONE/EXAONE-4.0-32B": (
        {"model_type": "exaone4", "hidden_size": 5120, "intermediate_size": 27392, "num_hidden_layers": 64,
         "num_attention_heads": 40, "num_key_value_heads": 8}, 32.0),
    "allenai/OLMo-7B-hf": ({"model_type": "olmo"}, 6.9),
    "THUDM/glm-4-9b-chat-hf": ({"model_type": "glm"}, 9.4),
    "zai-org/GLM-4.5": (
        {"model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92,
         "head_dim": 128, "attention_bias": True, "use_qk_norm": True, "moe_intermediate_size": 1536,
         "n_routed_experts": 160, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1}, 353.0),
    "meta-llama/Llama-4-Scout-17B-16E": ({"model_type": "llama4_text"}, 107.8),
    "meta-llama/Llama-4-Maverick-17B-128E": (
        {"model_type": "llama4_text", "num_local_experts": 128, "interleave_moe_layer_step": 2}, 400.0),
    "databricks/dbrx-base": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
         "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 131.6),
    "baidu/ERNIE-4.5-21B-A3B-PT": ({"model_type": "ernie4_5_moe"}, 21.8),
    "tencent/Hunyuan-A13B-Instruct": (
        {"model_type": "hunyuan_v1_moe", "intermediate_size": 3072, "num_key_value_heads": 8, "head_dim": 128,
         "num_experts": 64, "moe_topk": 8, "vocab_size": 128167, "tie_word_embeddings": True, "rope_theta": 1e4},
        80.4),
    "moonshotai/Kimi-K2-Instruct": (
        {"model_type": "deepseek_v3", "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
         "n_group": 1, "topk_group": 1, "vocab_size": 163840}, 1026.0),
    "MiniMaxAI/MiniMax-M2": ({"model_type": "minimax_m2"}, 229.0),
}  # fmt: skip
"""Well-known models of families without a preset: the config less its class's defaults, and the size in billions that
its model card or its name rounds to (text model, without multi-token prediction)."""


@pytest.mark.parametrize("name", sorted(WELL_KNOWN))
def test_a_well_known_model_counts_what_its_modules_hold(name: str):
    config, billions = WELL_KNOWN[name]
    expected = modules_count(config)
    assert our_count(config) == expected
    assert expected / 1e9 == pytest.approx(billions, rel=0.01)


def test_kimi_is_read_as_the_family_whose_code_it_uses():
    config, _ = WELL_KNOWN["moonshotai/Kimi-K2-Instruct"]
    assert our_count({**config, "model_type": "kimi_k2"}) == our_count(config)
