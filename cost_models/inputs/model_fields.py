"""The fields of a model as a user writes them: the contract's names, types and bounds. `model_input` resolves them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from cost_models.inputs.fields import STRICT, Count, CountOrZero, Flag, Layers, Name, Quantity


def _is_list(value: object) -> str:
    return "list" if isinstance(value, (list, tuple)) else "scalar"


def _is_text(value: object) -> str:
    return "text" if isinstance(value, str) else "flag"


class MoeInput(BaseModel):
    """A mixture-of-experts MLP."""

    model_config = STRICT

    num_experts: Annotated[Count, Field(le=100_000)]
    top_k: Count
    expert_intermediate_size: Count | None = None
    """Default: `intermediate_size`."""
    num_shared_experts: CountOrZero | None = None
    shared_expert_intermediate_size: CountOrZero | None = None
    """Width of one shared expert; default: `expert_intermediate_size`."""
    shared_expert_gate: Flag = False
    first_dense_layers: CountOrZero = 0
    moe_layer_freq: Annotated[
        Annotated[Count, Tag("scalar")] | Annotated[list[Literal[0, 1]], Field(max_length=10_000), Tag("list")],
        Discriminator(_is_list),
    ] = 1
    """n: every n-th layer (0, n, 2n, …) is MoE; or one 0/1 per layer."""
    router_bias: Flag = False
    capacity_factor: Quantity | None = None
    num_groups: Count = 1
    topk_groups: Count = 1


class MlaInput(BaseModel):
    """Multi-head latent attention."""

    model_config = STRICT

    q_lora_rank: Count | None = None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class ModelInput(BaseModel):
    """A model: `preset` with overrides, `hf_config`, or a spec."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        json_schema_extra={
            "examples": [
                {"preset": "llama-3.1-8b"},
                {
                    "name": "my-7b",
                    "num_layers": 32,
                    "hidden_size": 4096,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 8,
                    "intermediate_size": 14336,
                    "vocab_size": 128256,
                },
            ]
        },
    )

    preset: Name | None = None
    hf_config: dict[str, Any] | None = None
    name: Name | None = None
    num_layers: Layers | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: CountOrZero | None = None
    vocab_size: Count | None = None
    gated_mlp: Flag | None = None
    tie_word_embeddings: Flag | None = None
    norm: Literal["rmsnorm", "layernorm"] | None = None
    norm_bias: Flag | None = None
    norm_weight: Flag | None = None
    norms_per_layer: Annotated[Count, Field(le=8)] | None = None
    qk_norm: (
        Annotated[
            Annotated[Flag, Tag("flag")] | Annotated[Literal["none", "per_head", "full"], Tag("text")],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    """true means per head; "full" normalises the concatenated heads (OLMo 2)."""
    position_embedding: Literal["rope", "learned", "alibi", "none"] | None = None
    max_position_embeddings: Count | None = None
    attention_bias: (
        Annotated[Annotated[Flag, Tag("flag")] | Annotated[Literal["qkv", "out"], Tag("text")], Discriminator(_is_text)]
        | None
    ) = None
    mlp_bias: Flag | None = None
    linear_bias: Flag | None = None
    """Both `attention_bias` and `mlp_bias`, where those are absent."""
    head_bias: Flag | None = None
    parallel_block: Flag | None = None
    embedding_norm: Flag | None = None
    final_norm: Flag | None = None
    attention_sinks: Flag | None = None
    attention_gate: Flag | None = None
    """The attention's output is multiplied by the sigmoid of a projection of the layer's input (AFMoE)."""
    activation_parameters: CountOrZero | None = None
    """Scalars that the activation function of each dense MLP learns (xIELU: 2)."""
    sliding_window: Count | None = None
    layer_types: Annotated[list[Name], Field(max_length=10_000)] | None = None
    mtp_num_layers: CountOrZero | None = None
    moe: MoeInput | None = None
    mla: MlaInput | None = None
