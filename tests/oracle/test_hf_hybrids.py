"""Parameter counts of hybrids against the real modules, as tests/oracle/test_hf_parameters.py does for models that attend everywhere.

Nemotron-H, Bamba, Granite 4, Falcon-H1, Jamba, Qwen3-Next, Qwen3.5, OLMo Hybrid and LFM2: transformers builds drawn configs of each on
the meta device.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import presets
from cost_models.errors import InvalidInputError
from cost_models.inputs.hf.hybrid_families import HYBRIDS
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters
from planner.request.resolved import model_document

torch = pytest.importorskip("torch", reason="torch is not installed: the modules cannot be built")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: no modules to count")
transformers.utils.logging.set_verbosity_error()

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own deprecations are not ours to answer for


def modules_count(config: dict[str, Any]) -> int:
    """Parameters of the causal language model that transformers builds from this config."""
    built = transformers.AutoConfig.for_model(**{"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **config})
    with torch.device("meta"):
        return int(transformers.AutoModelForCausalLM.from_config(built).num_parameters())


def our_count(config: dict[str, Any]) -> int:
    model = resolve_model({"hf_config": config})
    # The document of a resolved request has to mean the same model.
    again = resolve_model(model_document(model))
    assert again.layer_kinds == model.layer_kinds
    assert count_parameters(again).total == count_parameters(model).total
    return count_parameters(model).total


def drawn(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """A small random config of this family with every switch that a count depends on."""
    flag, few = st.booleans(), st.integers(1, 3)
    kv_heads, layers = draw(few), draw(st.integers(1, 5))
    heads = kv_heads * draw(few)
    hidden = 8 * heads
    base = {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "hidden_size": hidden, "intermediate_size": draw(st.integers(4, 60)), "vocab_size": draw(st.integers(8, 90)),
        "tie_word_embeddings": draw(flag),
    }  # fmt: skip
    bias = {"attention_bias": draw(flag), "mlp_bias": draw(flag)}
    groups = draw(st.sampled_from([1, 2]))
    mamba_heads = groups * draw(st.sampled_from([1, 2]))
    mamba = {
        "mamba_n_heads": mamba_heads, "mamba_n_groups": groups, "mamba_d_state": draw(st.integers(1, 9)), "mamba_d_conv": draw(few),
        "mamba_expand": 4, "mamba_conv_bias": draw(flag), "mamba_proj_bias": draw(flag),
    }  # fmt: skip
    delta = {
        "linear_num_key_heads": groups, "linear_num_value_heads": mamba_heads, "linear_key_head_dim": draw(st.integers(1, 9)),
        "linear_value_head_dim": draw(st.integers(1, 9)), "linear_conv_kernel_dim": draw(few),
    }  # fmt: skip
    experts = {
        "num_experts_per_tok": 1,
        "moe_intermediate_size": draw(st.integers(1, 20)),
        "num_experts": draw(st.integers(2, 4)),
    }
    shared = {"shared_expert_intermediate_size": draw(st.integers(1, 20))}
    kinds = [draw(st.sampled_from(["full_attention", "linear_attention"])) for _ in range(layers)]
    convs = ["conv" if kind == "linear_attention" else kind for kind in kinds]
    letters = "".join(draw(st.sampled_from("M-*E")) for _ in range(layers))
    specific: dict[str, dict[str, Any]] = {
        "nemotron_h": {
            "hybrid_override_pattern": letters, "mlp_bias": draw(flag) and "E" not in letters, "use_bias": draw(flag),
            "use_conv_bias": draw(flag), "mamba_num_heads": mamba_heads, "mamba_head_dim": draw(few), "n_groups": groups,
            "ssm_state_size": draw(few), "conv_kernel": draw(few), "n_routed_experts": 2, "moe_intermediate_size": draw(few),
            "moe_shared_expert_intermediate_size": draw(few), "num_experts_per_tok": 1, "head_dim": 8,
        },
        "bamba": {**mamba, **bias, "attn_layer_indices": [i for i, kind in enumerate(kinds) if kind == "full_attention"]},
        "granitemoehybrid": {
            **mamba, "attention_bias": draw(flag), "shared_intermediate_size": draw(st.integers(1, 30)), "num_experts_per_tok": 1,
            "num_local_experts": draw(st.sampled_from([0, 2, 3])), "layer_types": kinds if draw(flag) else None,
        },
        "falcon_h1": {
            **mamba, **bias, "mamba_d_ssm": 4 * mamba_heads if draw(flag) else None, "mamba_rms_norm": draw(flag),
            "projectors_bias": draw(flag),
        },
        "jamba": {
            "mamba_d_state": draw(few), "mamba_d_conv": draw(few), "mamba_expand": draw(few), "mamba_conv_bias": draw(flag),
            "mamba_proj_bias": draw(flag), "mamba_dt_rank": draw(st.sampled_from(["auto", 1, 5])), "num_experts": draw(few),
            "num_experts_per_tok": 1, "attn_layer_period": 3, "attn_layer_offset": draw(st.integers(0, 2)),
            "expert_layer_period": 2, "expert_layer_offset": draw(st.integers(0, 1)),
        },
        "qwen3_next": {
            **delta, **experts, **shared, "layer_types": kinds if draw(flag) else None, "decoder_sparse_step": draw(few), "head_dim": 8,
            "mlp_only_layers": [0] if draw(flag) else [],
        },
        "qwen3_5_text": {**delta, "layer_types": kinds if draw(flag) else None, "head_dim": 8},
        "qwen3_5_moe_text": {**delta, **experts, **shared, "layer_types": kinds, "head_dim": 8},
        "olmo_hybrid": {
            "attention_bias": bias["attention_bias"], **(delta if draw(flag) else {}),
            "layer_types": None if len(set(kinds)) == 1 else kinds, "num_hidden_layers": max(layers, 2),
        },
        "lfm2": {
            "conv_bias": draw(flag), "conv_L_cache": draw(few), "block_multiple_of": draw(st.sampled_from([1, 8])),
            "block_auto_adjust_ff_dim": draw(flag), "block_ffn_dim_multiplier": draw(st.sampled_from([1.0, 1.3])),
            "layer_types": convs if draw(flag) else None, "full_attn_idxs": [0] if draw(flag) else None,
        },
        "lfm2_moe": {
            **experts, "conv_bias": draw(flag), "conv_L_cache": draw(few), "num_dense_layers": draw(st.integers(0, 2)), "layer_types": convs,
        },
    }  # fmt: skip
    config = {**base, **specific[model_type]}
    if model_type == "olmo_hybrid" and config["layer_types"] is not None:
        config["num_hidden_layers"] = layers
    return config


@pytest.mark.parametrize("model_type", sorted(HYBRIDS))
@settings(max_examples=10)
@given(data=st.data())
def test_a_drawn_hybrid_counts_what_its_modules_hold(model_type: str, data: st.DataObject):
    config = data.draw(st.composite(drawn)(model_type))
    assert our_count(config) == modules_count(config), config


AWKWARD = st.sampled_from([None, -1, 0, 1, 3, 7, True, False, 1.5, "8", [], {}, 10**12])


@pytest.mark.proof
@pytest.mark.parametrize("model_type", sorted(HYBRIDS))
@settings(max_examples=40)
@given(data=st.data())
def test_a_hybrid_with_a_wrong_key_is_refused_or_counted_right(model_type: str, data: st.DataObject):
    config = data.draw(st.composite(drawn)(model_type))
    key = data.draw(st.sampled_from(sorted(set(config) - {"model_type"})))
    config[key] = data.draw(AWKWARD)
    try:
        ours = our_count(config)
    except InvalidInputError:
        return
    if ours > 10**10:
        return
    try:
        theirs = modules_count(config)
    except Exception:  # noqa: BLE001 - the classes refuse in their own ways, often later than we need to
        return
    assert ours == theirs, config


@pytest.mark.parametrize("model_type", sorted(HYBRIDS))
def test_defaults_alone_count_what_a_hybrid_class_builds(model_type: str):
    needed = {"lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8}}
    config = {"model_type": model_type, **needed.get(model_type, {})}
    assert our_count(config) == modules_count(config)


PUBLISHED: dict[str, dict[str, Any]] = {
    "nemotron-h-8b": {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "max_position_embeddings": 8192,
    },
    "nemotron-h-56b": {
        "model_type": "nemotron_h", "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 32768, "mamba_num_heads": 256,
        "ssm_state_size": 256, "max_position_embeddings": 8192,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    },
    "nemotron-nano-9b-v2": {
        "model_type": "nemotron_h", "hidden_size": 4480, "num_attention_heads": 40, "intermediate_size": 15680, "mamba_head_dim": 80,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", "max_position_embeddings": 131072,
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h", "hidden_size": 2688, "num_key_value_heads": 2, "intermediate_size": 1856, "mamba_num_heads": 64,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "max_position_embeddings": 262144,
    },
    "qwen3-next-80b-a3b": {"model_type": "qwen3_next", "max_position_embeddings": 262144},
    "granite-4.0-h-small": {
        "model_type": "granitemoehybrid", "hidden_size": 4096, "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 72,
        "num_experts_per_tok": 10, "shared_intermediate_size": 1536, "intermediate_size": 768, "mamba_d_state": 128,
        "tie_word_embeddings": True, "vocab_size": 100352, "max_position_embeddings": 131072,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    },
    "jamba-v0.1": {"model_type": "jamba"},
    "lfm2-1.2b": {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
}  # fmt: skip
"""The config.json of each hybrid preset, in the keys that differ from its class's defaults."""
PUBLISHED_COUNTS = {
    "nemotron-nano-9b-v2": 8_888_227_328,
    "granite-4.0-h-small": 32_207_337_984,
    "lfm2-1.2b": 1_170_340_608,
}
"""Parameters that the hub's model cards state; but for LFM2's, whose card prints it, from the checkpoints' own headers."""


def test_every_hybrid_preset_has_a_published_config():
    found = {name for name in presets.names("models") if resolve_model({"preset": name}).recurrent is not None}
    assert set(PUBLISHED) == found


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_hybrid_preset_counts_what_its_published_config_builds(name: str):
    config = PUBLISHED[name]
    preset = resolve_model({"preset": name})
    assert count_parameters(preset).total == our_count(config) == modules_count(config)
    assert preset.layer_kinds == resolve_model({"hf_config": config}).layer_kinds
    assert count_parameters(preset).total == PUBLISHED_COUNTS.get(name, count_parameters(preset).total)
