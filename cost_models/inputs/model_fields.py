"""The fields of a model as a user writes them: the contract's names, types and bounds. `model_input` resolves them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from cost_models.documented import Documented
from cost_models.inputs.fields import STRICT, Count, CountOrZero, Flag, Layers, Name, Quantity
from cost_models.inputs.recurrent import RecurrentInput


def _is_list(value: object) -> str:
    return "list" if isinstance(value, (list, tuple)) else "scalar"


def _is_text(value: object) -> str:
    return "text" if isinstance(value, str) else "flag"


class MoeInput(Documented):
    """A mixture-of-experts MLP."""

    model_config = STRICT

    num_experts: Annotated[Count, Field(le=100_000)]
    """Number of routed experts of a MoE layer."""
    top_k: Count
    """Number of experts that each token visits."""
    expert_intermediate_size: Count | None = None
    """Width of one expert's MLP; default: `intermediate_size`."""
    num_shared_experts: CountOrZero | None = None
    """Number of experts that every token visits. Default 0, or 1 where `shared_expert_intermediate_size` is given."""
    shared_expert_intermediate_size: CountOrZero | None = None
    """Width of one shared expert; default: `expert_intermediate_size`."""
    shared_expert_gate: Flag = False
    """Whether the shared expert's output is scaled by a gate of its own (Qwen2-MoE)."""
    first_dense_layers: CountOrZero = 0
    """Number of layers at the start whose MLP is dense (DeepSeek's first_k_dense_replace)."""
    moe_layer_freq: Annotated[
        Annotated[Count, Tag("scalar")] | Annotated[list[Literal[0, 1]], Field(max_length=10_000), Tag("list")],
        Discriminator(_is_list),
    ] = 1
    """Which layers are MoE: a number n for every n-th layer (0, n, 2n, …), or one 0 or 1 for each layer."""
    router_bias: Flag = False
    """Whether the router has a bias for each expert."""
    capacity_factor: Quantity | None = None
    """Tokens that an expert takes at most, as a multiple of its even share. Default: no token is dropped."""
    num_groups: Count = 1
    """Number of groups that the experts form where routing first chooses groups (DeepSeek)."""
    topk_groups: Count = 1
    """Number of groups that a token may be sent to."""


class IndexerInput(Documented):
    """The indexer of sparse attention, which scores every key before a query and keeps the best."""

    model_config = STRICT

    num_heads: Count
    """Number of the indexer's query heads."""
    head_dim: Count
    """Width of one of them, and of the one key that they share."""
    top_k: Count
    """Number of keys that a query sees, such as 2,048."""


class MlaInput(Documented):
    """Multi-head latent attention."""

    model_config = STRICT

    q_lora_rank: Count | None = None
    """Width of the queries' low-rank bottleneck. Default: none, so that queries have one full matrix."""
    kv_lora_rank: Count
    """Width of the low-rank bottleneck of keys and values."""
    qk_nope_head_dim: Count
    """Width of a head's query and key without position."""
    qk_rope_head_dim: Count
    """Width of the part of a head's query and key that carries the rotary position."""
    v_head_dim: Count
    """Width of a head's value."""
    indexer: IndexerInput | None = None
    """What chooses the keys that a query sees (sparse attention of DeepSeek-V3.2). Default: none, so that all are seen."""


class ModelInput(Documented):
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
    """Name of a model preset, as `GET /v1/presets/models` lists them. Other fields are laid over it."""
    hf_config: dict[str, Any] | None = None
    """The content of a Hugging Face config.json, unchanged."""
    name: Name | None = None
    """What the model is called in answers."""
    num_layers: Layers | None = None
    """Number of decoder layers."""
    hidden_size: Count | None = None
    """Width of the residual stream."""
    num_attention_heads: Count | None = None
    """Number of query heads of a layer."""
    num_key_value_heads: Count | None = None
    """Number of key and value heads (grouped-query attention). Default: `num_attention_heads`."""
    head_dim: Count | None = None
    """Width of one head. Default: `hidden_size` / `num_attention_heads`."""
    intermediate_size: CountOrZero | None = None
    """Width of a dense MLP; 0 where every layer is a mixture of experts."""
    vocab_size: Count | None = None
    """Number of tokens of the vocabulary, before any padding."""
    gated_mlp: Flag | None = None
    """Whether the MLP has a gate, as SwiGLU does: three matrices, not two. Default true."""
    tie_word_embeddings: Flag | None = None
    """Whether the output layer shares the embedding's matrix. Default false."""
    norm: Literal["rmsnorm", "layernorm"] | None = None
    """Kind of the norms. Default rmsnorm."""
    norm_bias: Flag | None = None
    """Whether a LayerNorm has a bias."""
    norm_weight: Flag | None = None
    """Whether norms have a weight; false for norms that only normalise (OLMo)."""
    norms_per_layer: Annotated[Count, Field(le=8)] | None = None
    """Number of full-width norms of a layer: 2; 4 with sandwich norms; 1 where attention and MLP share one."""
    qk_norm: (
        Annotated[
            Annotated[Flag, Tag("flag")] | Annotated[Literal["none", "per_head", "full"], Tag("text")],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    """Whether queries and keys are normalised: true means per head; "full" normalises the concatenated heads (OLMo 2)."""
    position_embedding: Literal["rope", "learned", "alibi", "none"] | None = None
    """How positions enter. Default rope."""
    max_position_embeddings: Count | None = None
    """Number of tokens that positions reach; needed where they are learned."""
    attention_bias: (
        Annotated[Annotated[Flag, Tag("flag")] | Annotated[Literal["qkv", "out"], Tag("text")], Discriminator(_is_text)]
        | None
    ) = None
    """Which projections of attention have a bias: all, none, the inputs ("qkv") or the output ("out"). Default false."""
    mlp_bias: Flag | None = None
    """Whether the projections of the MLP have a bias. Default false."""
    linear_bias: Flag | None = None
    """Both `attention_bias` and `mlp_bias`, where those are absent."""
    head_bias: Flag | None = None
    """Whether the output layer has a bias."""
    parallel_block: Flag | None = None
    """Whether attention and MLP read the same input and run side by side (GPT-NeoX, Falcon)."""
    embedding_norm: Flag | None = None
    """Whether the embedding is followed by a norm (BLOOM)."""
    final_norm: Flag | None = None
    """Whether the last layer is followed by a norm."""
    attention_sinks: Flag | None = None
    """Whether each head has a learned sink in its softmax (gpt-oss)."""
    attention_gate: Flag | None = None
    """The attention's output is multiplied by the sigmoid of a projection of the layer's input (AFMoE)."""
    activation_parameters: CountOrZero | None = None
    """Number of scalars that the activation function of each dense MLP learns (xIELU: 2)."""
    rotary_interleaved: Flag | None = None
    """Whether rotary positions turn neighbouring elements of a head, as one product of complex numbers (torchtitan's Llama), or its two
    halves, eagerly a chain of operators (Qwen3's, Hugging Face's). Default: as the framework's module of the model's family does."""
    sliding_window: Count | None = None
    """Number of tokens that a query sees in layers with a sliding window."""
    layer_types: Annotated[list[Name], Field(max_length=10_000)] | None = None
    """Kind of each layer, in order: "full_attention" or "sliding_attention"; "linear_attention", "mamba" or "conv" where `recurrent` takes
    attention's place, and "hybrid" where it stands beside attention. In models whose layers are single blocks (Nemotron-H) also "mlp" and
    "moe". Default: all attend alike."""
    mtp_num_layers: CountOrZero | None = None
    """Number of layers for multi-token prediction (DeepSeek-V3), which come on top of `num_layers`."""
    moe: MoeInput | None = None
    """The mixture of experts, where the model has one."""
    mla: MlaInput | None = None
    """Multi-head latent attention, where the model has it."""
    recurrent: RecurrentInput | None = None
    """What mixes tokens in the layers of `layer_types` that do not attend: Mamba, Mamba-2, a gated delta net or a short convolution."""
    single_block_layers: Flag | None = None
    """Whether each layer is a mixer or an MLP, and not both (Nemotron-H). Default: where `layer_types` has "mlp" or "moe"."""
    classes: Count | None = None
    """Number of outputs of a classification head, such as 2, or 1 for a reward model. It stands in for the output projection, as in transformers'
    AutoModelForSequenceClassification."""
    multimodal: dict[str, Any] | None = None
    """The towers beside this text model, which `training.towers` counts: `model_type` of the whole model with its `vision_config` or
    `audio_config`, as in its config.json. An `hf_config` says this by itself."""
