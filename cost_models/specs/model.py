"""A transformer as the cost models see it: sizes and layer kinds, nothing about how it is split or run.

`Model` is what the readers (`model_input`, `hf_config`, presets) produce. It knows no defaults: the reader applies and reports
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cost_models.specs.recurrent import Recurrent

Norm = Literal["rmsnorm", "layernorm"]
PositionEmbedding = Literal["rope", "learned", "alibi", "none"]
Mixer = Literal["attention", "recurrent", "both", "none"]
"""What mixes the tokens of a layer; "both" stands side by side and reads one input (Falcon-H1), "none" is an MLP alone."""


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture-of-experts MLP. Counts are per MoE layer, widths in elements."""

    num_experts: int
    top_k: int
    expert_intermediate_size: int
    num_shared_experts: int
    shared_expert_intermediate_size: int
    """Width of one shared expert; 0 without shared experts."""
    shared_expert_gate: bool
    """Whether the shared expert has a gate from hidden size to 1 (qwen2_moe)."""
    router_bias: bool
    capacity_factor: float | None
    num_groups: int
    topk_groups: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """What chooses the keys that a query sees (DeepSeek-V3.2, section 2.1); width of a head in elements."""

    num_heads: int
    head_dim: int
    top_k: int
    """Keys that a query sees; all of those before it where there are fewer."""


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1). Ranks and head widths in elements."""

    q_lora_rank: int | None
    """None means that the query projection is one full matrix."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    """None where every query sees all keys before it."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that cost the same: they mix tokens in the same way and have the same MLP."""

    is_moe: bool
    window: int | None
    """Tokens that a query can see (sliding window); None is full causal attention."""
    mixer: Mixer = "attention"
    has_mlp: bool = True
    """Whether the layer has an MLP, dense or of experts."""

    @property
    def attends(self) -> bool:
        """Whether the layer has attention."""
        return self.mixer in ("attention", "both")

    @property
    def recurs(self) -> bool:
        """Whether the layer has a recurrent mixer."""
        return self.mixer in ("recurrent", "both")

    @property
    def is_plain(self) -> bool:
        """Whether the layer is attention with an MLP behind it."""
        return self.mixer == "attention" and self.has_mlp

    @property
    def num_blocks(self) -> int:
        """Blocks with a norm in front of them and a residual addition behind: mixer and MLP, or one of them."""
        return int(self.mixer != "none") + int(self.has_mlp)


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer; sizes in elements."""

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    """Width of a dense MLP; 0 when every layer is MoE."""
    vocab_size: int
    gated_mlp: bool
    tie_word_embeddings: bool
    norm: Norm
    norms_per_layer: int
    """Full-width norms in a layer: 2; 4 with sandwich norms; 1 where attention and MLP share one."""
    qk_norm: Literal["none", "per_head", "full"]
    """per_head: one head_dim-wide weight for q and one for k; full: heads*head_dim wide (olmo2)."""
    position_embedding: PositionEmbedding
    max_position_embeddings: int | None
    qkv_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    norm_bias: bool
    """Whether a LayerNorm has a bias vector."""
    head_bias: bool
    parallel_block: bool
    embedding_norm: bool
    final_norm: bool
    attention_sinks: bool
    layer_kinds: tuple[LayerKind, ...]
    """One entry per decoder layer, in model order."""
    norm_weight: bool = True
    """Whether norms have a weight vector; false for norms that only normalize (OLMo)."""
    attention_gate: bool = False
    """Whether attention's output is multiplied by the sigmoid of a projection as wide as the queries (AFMoE)."""
    activation_parameters: int = 0
    """Scalars that the activation function of each dense MLP learns (xIELU: 2)."""
    rotary_interleaved: bool | None = None
    """Whether rotary positions turn neighbouring elements, or the halves of a head; None: as the framework's module of the family."""
    moe: Moe | None = None
    mla: Mla | None = None
    recurrent: Recurrent | None = None
    """The mixer of layers that do not attend, or do not attend alone."""
    mtp_num_layers: int = 0
    causal: bool = True
    """Whether a token sees only those before it; the encoders of images and sounds see all of their input."""
    packed_rows: bool = False
    """Whether one product makes query, key and value of all inputs of a micro-batch, which are rotated in fp32 and taken apart for
    attention: transformers' encoders of images that may have any size."""
    layer_scales: bool = False
    """Whether the outputs of attention and MLP are multiplied by a learned vector before they are added, as InternVL's encoder does."""
    quick_gelu: bool = False
    """Whether the activation is x times the sigmoid of 1.702 x, three operators, as CLIP's is."""
    classes: int | None = None
    """Outputs of a classification head that stands in for the output projection; None for a language model."""
    multimodal: Mapping[str, Any] | None = None
    """The configuration that the model is the text part of, where that has towers; read only where a job asks for them."""
    family: str = ""
    """The `model_type` of the configuration that the model was read from; it decides what modules are called."""
    assumed: Mapping[str, object] = field(default_factory=dict)
    """Contract fields that the reader filled in, with the value it used."""
    warnings: tuple[str, ...] = ()
    distinct_kinds: tuple[LayerKind, ...] = field(init=False, repr=False, compare=False)
    """The different layer kinds, in order of first appearance."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "distinct_kinds", tuple(dict.fromkeys(self.layer_kinds)))

    @property
    def indexer(self) -> Indexer | None:
        """What chooses the keys that a query sees, where not all are seen."""
        return None if self.mla is None else self.mla.indexer

    def norms_of(self, kind: LayerKind) -> int:
        """Full-width norms of a layer of this kind; a layer with one block has that block's share."""
        return self.norms_per_layer if kind.num_blocks == 2 else max(self.norms_per_layer // 2, 1)

    @property
    def mean_norms(self) -> float:
        """Full-width norms of a layer, on average over the layers."""
        return sum(self.norms_of(kind) for kind in self.layer_kinds) / self.num_layers

    @property
    def head_outputs(self) -> int:
        """Outputs of the head for one token, before any padding."""
        return self.vocab_size if self.classes is None else self.classes

    @property
    def q_size(self) -> int:
        """Elements of all query heads together."""
        if self.mla is not None:
            return self.num_attention_heads * (self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim)
        return self.num_attention_heads * self.head_dim

    @property
    def fused_qkv(self) -> bool:
        """Whether query, key and value are one matrix in the model itself, whatever the framework.

        That is encoders of packed rows, and GPT-2's line (GPT-2, BLOOM, MPT, Falcon-RW), which is recognized here by its positions. OPT, which has three matrices, is
        priced as if it had one.
        """
        return self.mla is None and (self.packed_rows or self.position_embedding in ("learned", "alibi"))

    @property
    def kv_size(self) -> int:
        """Elements of all key heads together; values have as many. It means nothing under MLA."""
        return self.num_key_value_heads * self.head_dim
