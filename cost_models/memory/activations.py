"""Bytes that one decoder layer saves for its backward, per kind of layer and per implementation of its modules. [M-5]

A layer is a set of named parts, so that recomputation (`layer_memory`) can drop some and keep others. Everything is per rank and
for one micro-batch, shape (U,) over the distinct combinations of the axes that matter; the kernels' private scratch is left
out. Symbols as in EQUATIONS.md M-5: T tokens, h hidden, q query and kv key width, f MLP width, t tp, w bytes of the compute
type.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.autocast import autocast
from cost_models.layers.copies import products_of_one_input
from cost_models.layers.elementwise import operators_move_rows
from cost_models.layers.recurrent_core import gradient_bytes, saved_elements, saved_fp32_elements
from cost_models.layers.selective import kept_output_bytes, separate_norms
from cost_models.layers.sparse_core import index_score_bytes, sparse_bytes
from cost_models.specs.model import LayerKind, Mla, Model, Moe
from cost_models.strategies.strategy import Floats, Strategies

_FP32 = 4.0
_ROUTER_BYTES_PER_EXPERT = 16.0
"""Bytes per token and expert: logits and probabilities in fp32, about four tensors of the router's width."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one micro-batch on a rank, shape (U,) unless a scalar."""

    w: float
    """Bytes of an activation element."""
    linear_w: float
    """Bytes of an element saved as a linear layer's input; 1 under Transformer Engine's fp8."""
    residual_w: Floats
    """Bytes of an element of the residual stream; 4 under autocast of fp32 parameters."""
    tokens: Floats
    """Tokens of one micro-batch on this rank, micro-batch size times sequence over cp."""
    sequence: Floats
    """Tokens of one sequence on this rank."""
    context: float
    """Keys that unfused attention scores for each query: the whole sequence."""
    tp: Floats
    sp: Floats
    """Ranks that split the residual stream: tp with sequence parallelism, else 1."""
    etp: Floats
    context_outputs: Floats
    """1 where context parallelism keeps an attention output beside the one that the output projection saves, else 0."""
    ep: Floats

    def hidden(self, model: Model) -> Floats:
        """Bytes of one residual-stream tensor as it is stored between layers, shape (U,)."""
        return self.residual_w * model.hidden_size * self.tokens / self.sp


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Saved bytes of one layer by part, shape (U,) each."""

    block_input: Floats
    """Input of the layer, which is all that full recomputation keeps."""
    residual: Floats
    """Other tensors of the residual stream, and the norms' statistics."""
    norm_outputs: Floats
    """Outputs of the norms, which are the inputs of the linear layers."""
    separate_norm_outputs: Floats
    """The part of `norm_outputs` that norms outside of linear layers make."""
    qkv: Floats
    """Query, key and value, and what they are made from."""
    up_projections: Floats
    """The part of `qkv` that latent attention's up-projections make."""
    scores: Floats
    """Softmax matrices of unfused attention, or the log-sum-exp of flash attention."""
    context: Floats
    """Attention's output, which is the input of the output projection."""
    mlp: Floats
    """Hidden tensors of a dense MLP: gate, up and their product where it is gated."""
    shared: Floats
    """Hidden tensors of the shared experts."""
    experts: Floats
    """Permuted tokens, hidden tensors of the routed experts, and the router's."""
    expert_activation: Floats
    """The part of `experts` behind the activation function."""
    expert_inputs: Floats
    """The part of `experts` that their first products read: the permuted tokens."""
    expert_hidden: Floats
    """The part of `experts` between the first products and the activation function."""
    masks: Floats
    """Dropout masks of the residual stream, one byte per element."""
    matmul_outputs: Floats
    """What a policy that saves every other matrix product keeps beside block_input, scores and context. Not part of
    `saved`."""
    mlp_gradient: Floats
    """Gradients alive together inside the MLP's backward, beyond what it frees. Not part of `saved`."""
    score_gradient: Floats
    """Gradients of the score matrices. Not part of `saved`."""
    recurrent: Floats
    """What a recurrent mixer saves between its norm and its output projection. [M-50]"""
    recurrent_gradient: Floats
    """Gradients and chunks' states that are alive together in its backward. Not part of `saved`."""

    @property
    def saved(self) -> Floats:
        """Bytes saved without any recomputation. [M-5]"""
        return np.asarray(sum(getattr(self, name) for name in _SAVED))


_SAVED = (
    "block_input", "residual", "norm_outputs", "qkv", "scores", "context", "mlp", "shared", "experts", "masks", "recurrent",
)  # fmt: skip
assert set(_SAVED) < {field.name for field in fields(LayerParts)}


def batch_sizes(job: Job, traits: MemoryTraits, rows: Strategies) -> Sizes:
    """Sizes of one micro-batch for these combinations of axes."""
    training = job.training
    w = training.compute_bytes
    quantised = training.precision in ("fp8", "nvfp4") and traits.transformer_engine
    return Sizes(
        w=w,
        linear_w=1.0 if quantised else w,
        residual_w=np.where(autocast(job, traits, rows), _FP32, w),
        tokens=rows.rank_tokens(training.seq_length),
        sequence=training.seq_length / rows.cp,
        context=float(training.seq_length),
        tp=rows.tp,
        sp=np.where(rows.sequence_parallel, rows.tp, 1.0),
        etp=rows.etp,
        context_outputs=np.where((rows.cp > 1) & traits.transformer_engine, 1.0, 0.0),
        ep=rows.ep,
    )


def fused_kernels(job: Job, traits: MemoryTraits) -> bool:
    """Whether Hugging Face's layers are patched with Liger's kernels, which a fused linear cross entropy implies."""
    liger = job.training.model_impl == "liger" or job.training.cross_entropy == "linear"
    return traits.huggingface_modules and liger


def upcasts_norms(job: Job, traits: MemoryTraits) -> bool:
    """Whether norms compute in fp32 step by step, as LlamaRMSNorm of transformers does."""
    return traits.huggingface_modules and job.model.norm == "rmsnorm" and not fused_kernels(job, traits)


def _upcast_bytes(job: Job, s: Sizes) -> float:
    """Bytes of an element that transformers' RMSNorm keeps in fp32: its input, and what it normalised where the weight is an offset
    from one in fp32, as in Qwen's gated delta nets (modeling_qwen3_next.py, Qwen3NextRMSNorm), or is
    multiplied in fp32, as in OLMo Hybrid. [M-5]
    """
    recurrent = job.model.recurrent
    offset = recurrent is not None and recurrent.kind == "gated-delta-net"
    return _FP32 + (_FP32 - s.w if offset else 0.0)


def layer_parts(job: Job, traits: MemoryTraits, kind: LayerKind, sizes: Sizes) -> LayerParts:
    """Saved bytes of one layer of this kind, by part. [M-5]"""
    model, s = job.model, sizes
    # The first two norms stand in front of attention and MLP, and their outputs are saved as inputs of linear layers.
    # Further ones (sandwich norms) stand behind the blocks; their outputs go into the residual stream and are not
    # saved.
    norms = model.norms_of(kind)
    before = float(min(norms, 2))
    after = float(max(norms - 2, 0))
    inputs = 1.0 if model.parallel_block else before
    gathered = job.framework.keeps_gathered_norms
    statistics = (2.0 if model.norm == "layernorm" else 1.0) * _FP32 * (before + after)
    block_input = s.hidden(model)
    # A learned scale of each block keeps the block's output.
    residual = (inputs - 1 + after + 2.0 * model.layer_scales) * block_input + statistics * s.tokens / s.sp
    # Under sequence parallelism Megatron saves the norm's shard and gathers it again in backward; TorchTitan and
    # older Nanotron save the gathered tensor.
    output = s.linear_w * model.hidden_size * s.tokens / (1.0 if gathered else s.sp)
    if upcasts_norms(job, traits):
        # The fp32 copy replaces the input as the norm's saved tensor; the normalised tensor before its weight is kept
        # too.
        residual = residual + before * _upcast_bytes(job, s) * model.hidden_size * s.tokens / s.sp
    attention = _attention(job, traits, s) if kind.attends else {}
    recurrent = recurrent_parts(job, s) if kind.recurs else {}
    mlp = _mlp(job, traits, kind, s) if kind.has_mlp else {}
    masks = float(kind.num_blocks) * model.hidden_size * s.tokens / s.sp if job.training.dropout > 0 else 0.0
    zero = np.zeros_like(s.tokens)
    cast = _casts_of_one_input(job, kind) * model.hidden_size * np.where(s.residual_w > s.w, s.w * s.tokens, 0.0)
    parts = {
        "block_input": block_input,
        "residual": residual,
        "norm_outputs": before * output + cast,
        "masks": zero + masks,
    }
    parts["separate_norm_outputs"] = separate_norms(job, kind) * output
    return LayerParts(**dict.fromkeys(_FIELDS, zero) | parts | attention | recurrent | mlp | {
        "matmul_outputs": _kept_outputs(job, kind, s)
    })  # fmt: skip


def _casts_of_one_input(job: Job, kind: LayerKind) -> float:
    """Copies of norm outputs that autocast makes beyond one each. [M-5]

    Norms compute in fp32 there, and every product casts its own input: only casts of weights are kept for the next one
    (ATen/autocast_mode.cpp, cached_cast). Under tensor parallelism each cast is of what was gathered. A compiler makes one of equals.
    """
    return 0.0 if job.training.compile else max(sum(products_of_one_input(job, kind)) - 2.0, 0.0)


_FIELDS = tuple(field.name for field in fields(LayerParts))


def _attention(job: Job, traits: MemoryTraits, s: Sizes) -> dict[str, Floats]:
    """Bytes of the parts of the attention block, shape (U,) each. [M-5]"""
    model, flash = job.model, job.training.attention == "flash"
    heads = model.num_attention_heads / s.tp
    value_width = model.num_attention_heads * model.mla.v_head_dim if model.mla is not None else model.q_size
    context = s.w * value_width * s.tokens / s.tp
    # The gate keeps its sigmoid and the product that replaces attention's output as the input of the output
    # projection.
    gates = 2.0 * s.w * model.q_size * s.tokens / s.tp if model.attention_gate else 0.0
    if s.linear_w < s.w:  # the output projection keeps a quantised copy of its own
        context = context * (1.0 + s.linear_w / s.w)
    matrix = heads * s.tokens * s.context
    # Without dropout the softmax's output is also the product's input and saved once. Dropout makes a second tensor
    # and a mask of one byte per element.
    copies = s.w * (2.0 if job.training.dropout > 0 else 1.0) + (1.0 if job.training.dropout > 0 else 0.0)
    scores = _FP32 * heads * s.tokens if flash else copies * matrix
    qkv = _mla_qkv(job, model.mla, s) if model.mla is not None else _qkv(job, traits, s)
    # Each exchange keeps an output of its own: the ring's (SimuMax), the one before the last all-to-all, or the
    # halves of the all-gather's. transformer_engine context_parallel.py saves them, and the output projection saves
    # its input beside.
    kept = s.context_outputs * s.w * value_width * s.tokens / s.tp
    zero = np.zeros_like(s.tokens)
    if model.mla is not None and model.mla.indexer is not None:
        kept = kept + sparse_bytes(model, s.w, s.tokens, tp=s.tp, sp=s.sp)
    return {
        "qkv": qkv + gates + kept,
        "up_projections": _mla_up(model.mla, model, s) if model.mla is not None else zero,
        "scores": scores,
        "context": context,
        "score_gradient": (zero if flash else 2.0 * s.w * matrix) + index_score_bytes(model, s.tokens, s.context),
    }


def recurrent_parts(job: Job, s: Sizes) -> dict[str, Floats]:
    """Bytes that a recurrent mixer saves, and that its backward holds beside, shape (U,) each. [M-50]

    Under context parallelism a rank has a share of the heads of the whole sequence, which is as much.
    """
    r, fused = job.model.recurrent, job.has_hf_modules
    assert r is not None
    each = s.w * saved_elements(r, fused_norm=fused) + _FP32 * saved_fp32_elements(r, fused_norm=fused)
    share = s.tokens / s.tp
    return {"recurrent": each * share, "recurrent_gradient": gradient_bytes(r, s.w) * share}


def _qkv(job: Job, traits: MemoryTraits, s: Sizes) -> Floats:
    """Bytes of query, key and value of plain attention, shape (U,). [M-5]"""
    model = job.model
    q = model.q_size / s.tp
    kv = model.kv_size / np.minimum(s.tp, model.num_key_value_heads)
    rotary = model.position_embedding == "rope"
    whole, rotated = q + 2 * kv, q + kv
    elements = whole
    packed = model.packed_rows and traits.huggingface_modules
    # Where rows are packed, values are a view that keeps the whole joined projection.
    if traits.keeps_fused_qkv or packed:
        elements = whole + (rotated if rotary else 0.0)
    elif traits.keeps_query_twice:
        elements = whole + q
    # Outputs of the inputs are put together in a copy, which the output projection keeps.
    if job.calls_attention_by_input:
        elements = elements + q
    if traits.torch_operators and job.training.attention == "math":
        elements = 3.0 * q  # keys and values are expanded to all heads
    # A norm of queries and keys saves its inputs, which values pass by; of Transformer Engine's layers the joined
    # projection is counted whole.
    upcast: Floats | float = 0.0
    if model.qk_norm != "none" and traits.torch_operators:
        elements = elements + rotated
        if upcasts_norms(job, traits):  # an fp32 copy takes the input's place, and the normalised tensor is kept too
            upcast = _upcast_bytes(job, s) * rotated
    elif model.qk_norm != "none" and traits.transformer_engine:
        elements = elements + whole
    bytes_ = s.tokens * (s.w * elements + upcast)
    if rotary and traits.saves_rotary_tables:
        bytes_ = bytes_ + 2 * _FP32 * model.head_dim * s.sequence  # cosines and sines, neither split nor per sample
    return np.asarray(bytes_)


def _mla_qkv(job: Job, mla: Mla, s: Sizes) -> Floats:
    """Bytes of latent attention's latents before and after their norms and of the full-width query, key and value, shape (U,).

    The latents are those of the rank's own tokens where the framework splits them along the sequence again.
    """
    latents = 2.0 * ((mla.q_lora_rank or 0) + mla.kv_lora_rank) + mla.qk_rope_head_dim
    rows = s.tokens if job.latent_down == "whole" else s.tokens / s.sp
    return s.w * latents * rows + _mla_up(mla, job.model, s)


def _mla_up(mla: Mla, model: Model, s: Sizes) -> Floats:
    """Bytes of what latent attention's up-projections make, shape (U,): query, key and value of this rank's heads."""
    width = 2.0 * (mla.qk_nope_head_dim + mla.qk_rope_head_dim) + mla.v_head_dim
    if (
        mla.indexer is not None
    ):  # the query before and behind the keys' matrix, which takes the place of keys and values [M-57]
        width = mla.qk_nope_head_dim + 2.0 * mla.qk_rope_head_dim + mla.kv_lora_rank
    return np.asarray(s.w * model.num_attention_heads * width * s.tokens / s.tp)


def _hidden_tensors(job: Job, traits: MemoryTraits) -> tuple[float, float]:
    """Number of MLP-wide tensors saved before and behind the activation function.

    A gated MLP saves gate and up before it. Kernels that fuse activation and product save only the product's output behind it; as
    operators of their own, the activation's output is an input of the product and is saved as well. EQUATIONS.md M-5 has the
    table by framework.
    """
    if not job.model.gated_mlp:
        return 1.0, 1.0
    if traits.fuses_gated_activation or fused_kernels(job, traits):
        return 2.0, 1.0
    return 2.0, 2.0


def _repeats_activation(job: Job, traits: MemoryTraits) -> bool:
    """Whether a compiled layer makes the activation again in backward, which lies between products and costs the compiler nothing."""
    return job.training.compile and traits.torch_operators and job.model.gated_mlp


def _mlp(job: Job, traits: MemoryTraits, kind: LayerKind, s: Sizes) -> dict[str, Floats]:
    """Bytes of the parts of the MLP, dense or mixture of experts, and of the gradients of its backward, shape (U,). [M-5]
    [M-6]
    """
    model = job.model
    first, second = _hidden_tensors(job, traits)
    # Beside its input, the product keeps the sigmoid.
    first = first + (model.quick_gelu and traits.huggingface_modules and not job.training.compile)
    behind = 1.0 if _repeats_activation(job, traits) else second

    def dense(width: float) -> dict[str, Floats]:
        column = width * s.tokens / s.tp
        gradients = (2.0 if model.gated_mlp else 1.0) * s.w * column
        # The down-projection's weight gradient is made while the hidden gradient is alive; a product that adds into
        # the gradient buffer needs no tensor for it.
        weight = 0.0 if traits.fuses_weight_gradients else s.w * width * model.hidden_size / s.tp
        return {
            "hidden": (s.w * (first + behind - 1) + s.linear_w) * column,
            "mlp_gradient": np.maximum(gradients, s.w * column + weight),
        }

    zero = np.zeros_like(s.tokens)
    if not kind.is_moe:
        parts = dense(float(model.intermediate_size))
        return {"mlp": parts.pop("hidden"), **parts}
    moe = model.moe
    assert moe is not None
    routed = _experts(job, moe, s, first=first, second=second)
    width = float(moe.num_shared_experts * moe.shared_expert_intermediate_size)
    return {**routed, "shared": dense(width)["hidden"] if width else zero}


def _kept_outputs(job: Job, kind: LayerKind, s: Sizes) -> Floats:
    """Bytes that PyTorch's per-operator policy keeps, shape (U,): matrix products, reduce-scatters behind them,
    all-to-alls.
    """
    if not job.framework.selective_alternates:
        return np.zeros_like(s.tokens)
    model, moe = job.model, job.model.moe if kind.is_moe else None
    outputs = kept_output_bytes(job, kind, tokens=s.tokens, tp=s.tp, ep=s.ep, etp=s.etp, element_bytes=s.w)
    whole = s.w * model.hidden_size * s.tokens
    blocks = 1.0 if model.parallel_block or (moe is not None and not moe.num_shared_experts) else 2.0
    blocks -= 2.0 - kind.num_blocks
    # The policy saves the outputs of reduce-scatters and all-to-alls; only all-gathers are repeated.
    outputs = outputs + np.where(s.sp > 1, blocks * whole / s.sp, 0.0)
    if moe is not None:
        routed = job.routed_copies * whole / s.tp
        outputs = outputs + np.where(s.ep > 1, 2.0 * routed, 0.0)
    return np.asarray(outputs)


def _experts(job: Job, moe: Moe, s: Sizes, *, first: float, second: float) -> dict[str, Floats]:
    """Bytes of permuted tokens, hidden tensors and router of the routed experts, shape (U,), with balanced routing. [M-5]

    A rank's share of the routed copies is T * top_k / t. Expert tensor parallelism gathers the shares of etp ranks and splits the
    width. Where tokens are weighted outside of the experts, the tensor before or behind that product is saved too, by operators in fp32.
    """
    copies = job.routed_copies * s.tokens / s.tp
    rows = copies * s.etp
    width = moe.expert_intermediate_size / s.etp
    activation = s.linear_w * width * rows
    weighed_w = 0.0 if job.framework.weighs_inside_experts else _FP32 if operators_move_rows(job) else s.w
    permuted = job.model.hidden_size * (s.linear_w * rows + weighed_w * copies)
    hidden = s.w * (first + second - 1) * width * rows
    router = _ROUTER_BYTES_PER_EXPERT * moe.num_experts * s.tokens / s.sp
    return {
        "experts": permuted + hidden + activation + router,
        "expert_activation": activation,
        "expert_inputs": permuted,
        "expert_hidden": hidden,
        "mlp_gradient": 2.0 * s.w * (job.model.hidden_size + width) * rows,
    }
