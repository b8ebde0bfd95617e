"""The specification that the refusal of an unknown config proposes: what it takes over, and when there is none."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cost_models.inputs.hf.own_spec import spec_hint

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 2816, "vocab_size": 32000,
}  # fmt: skip
SPEC = {"num_layers" if name == "num_hidden_layers" else name: value for name, value in CONFIG.items()}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
MOE = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512}
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}


def proposed(**changed: Any) -> dict[str, Any] | None:
    """The specification in the hint, if there is one; a field that is changed to None is left out."""
    config = {name: value for name, value in {**CONFIG, **changed}.items() if value is not None}
    found = re.search(r"\{.*\}", spec_hint(config))
    return json.loads(found[0]) if found else None


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in SPEC.items() if name not in names}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, SPEC),
        ({"num_hidden_layers": None, "n_layer": 12}, SPEC),
        ({"attention_bias": True, "mlp_bias": 1}, {**SPEC, "attention_bias": True}),
        # A model has at most 10,000 layers.
        ({"num_hidden_layers": 10_000}, {**SPEC, "num_layers": 10_000}),
        ({"num_hidden_layers": 10_001}, None),
        ({"num_hidden_layers": 1}, {**SPEC, "num_layers": 1}),
        ({"num_hidden_layers": 0}, None),
        ({"num_hidden_layers": True}, None),
        # No count has sixteen digits.
        ({"vocab_size": 10**15 - 1}, {**SPEC, "vocab_size": 10**15 - 1}),
        ({"vocab_size": 10**15}, None),
        # Latent attention may go without a rank for its queries, and then has no other sizes of heads.
        (LATENT, {**without("head_dim", "num_key_value_heads"), "mla": LATENT}),
        ({**LATENT, "q_lora_rank": 96}, {**without("head_dim", "num_key_value_heads"), "mla": {"q_lora_rank": 96, **LATENT}}),
        ({**LATENT, "v_head_dim": None}, SPEC),
        ({**LATENT, "q_lora_rank": 96, "kv_lora_rank": None}, SPEC),
        # Experts count where both their number and how many a token takes are known.
        (EXPERTS, {**SPEC, "moe": MOE}),
        ({**EXPERTS, "intermediate_size": None}, {**without("intermediate_size"), "moe": MOE}),
        ({**EXPERTS, "num_experts_per_tok": None}, SPEC),
        ({"intermediate_size": None}, None),
        # Heads: groups of equal size, and a width that is whole or given.
        ({"num_key_value_heads": 5}, None),
        ({"num_key_value_heads": None}, without("num_key_value_heads")),
        ({"head_dim": None}, without("head_dim")),
        ({"head_dim": None, "hidden_size": 1025}, None),
        ({"hidden_size": 1025}, {**SPEC, "hidden_size": 1025}),
        # Layers that no specification has.
        ({"layer_types": ["full_attention", "sliding_attention"]}, SPEC),
        ({"layer_types": ["full_attention", "linear_attention"]}, None),
        ({"mamba_d_ssm": 16}, None),
    ],
)  # fmt: skip
def test_a_hint_proposes_what_the_config_says(changed: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert proposed(**changed) == expected
