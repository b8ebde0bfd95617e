"""Memory of a job that trains adapters beside a frozen base, or leaves parts of the model frozen. [M-17] [M-18] [M-19]

A frozen weight has no gradient and no optimizer state, and what only its gradient would read is not saved: the inputs of frozen
linear layers, the normalised tensors in front of a frozen norm's weight. Counted on meta tensors, and measured: EQUATIONS.md.
Array suffixes: J layer kinds, K slots, U combinations, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.linears import Linear
from cost_models.layers.parameters import layer_parameters
from cost_models.layers.trained import adapted_linears, adapter_elements, frozen_layer_elements
from cost_models.memory.activations import LayerParts, Sizes
from cost_models.specs.adapter import Adapter
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Bools, Floats, Strategies

_FP32 = 4.0
NF4_BITS: Final = 0.5
"""Bytes of a weight in 4 bits. The QLoRA paper (Dettmers et al. 2023), section 3."""
NF4_SCALES: Final = 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
"""Bytes per weight of block scales quantised again: one byte for 64 weights, and fp32 for 256 of these. The same section."""
INT8_SCALES: Final = 4.0
"""Bytes of one fp32 scale per output of an 8-bit linear layer (LLM.int8(), row-wise)."""


@dataclass(frozen=True, slots=True)
class StoredBase:
    """How a layer's linear weights are stored."""

    weight: float
    """Bytes per weight of what ZeRO-3 or FSDP shards."""
    scales: float
    """Bytes per weight of scales, which are no parameters and so stay whole on every rank."""


def stored_base(job: Job) -> StoredBase:
    """Bytes per weight of the base's linear layers. [M-17]"""
    adapter = job.training.adapter
    kind = "none" if adapter is None else adapter.quantized_base
    if kind == "nf4":
        return StoredBase(NF4_BITS, NF4_SCALES)
    if kind in ("int8", "fp8"):
        return StoredBase(1.0, INT8_SCALES / job.model.hidden_size)
    return StoredBase(base_bytes(job), 0.0)


def base_bytes(job: Job) -> float:
    """Bytes of a frozen weight that is not quantised: the compute type where adapters are trained, else the stored type."""
    return job.training.compute_bytes if job.training.adapter is not None else BYTES_PER[job.training.param_dtype]


def trains_all(job: Job) -> bool:
    """Whether every parameter is trained."""
    towers = job.training.towers
    tower_frozen = towers is not None and any(not (use.trained and towers.projector_trained) for use in towers.uses)
    return job.training.adapter is None and not job.training.frozen and not tower_frozen


def trained_layer_elements(job: Job, kind: LayerKind) -> float:
    """Elements of a layer that are trained, before any split; adapters where there are any. [M-17]"""
    adapter = job.training.adapter
    assert adapter is not None
    return float(adapter_elements(job.model, adapter, kind))


def wide_adapters(job: Job, traits: MemoryTraits, rows: Strategies) -> Bools:
    """Whether adapters are stored in a wider type than the products', and autocast casts them, shape (U,)."""
    wide = BYTES_PER[job.training.param_dtype] > job.training.compute_bytes
    return np.asarray((rows.zero == 0) & (traits.casts_replicated_parameters and wide))


def casts_inputs(job: Job, traits: MemoryTraits, rows: Strategies) -> Bools:
    """Whether each adapter casts its input to its own wider type, and autocast casts it back, shape (U,).

    Source: peft/tuners/tuners_utils.py (_cast_input_dtype); peft/tuners/lora/bnb.py does not under autocast. FSDP gathers adapters
    in the compute type, so that nothing is cast.
    """
    adapter = job.training.adapter
    assert adapter is not None
    return wide_adapters(job, traits, rows) & (adapter.quantized_base == "none")


def adapted_parts(
    job: Job, traits: MemoryTraits, kind: LayerKind, sizes: Sizes, plain: LayerParts, rows: Strategies
) -> LayerParts:
    """Bytes that a layer saves where adapters are trained beside its frozen weights, by part. [M-18]

    Args:
        job: whose adapter it is.
        traits: of its framework.
        kind: kind of layer.
        sizes: of one micro-batch.
        plain: what the layer saves where everything is trained.
        rows: combinations of axes, shape (U,).
    """
    adapter = job.training.adapter
    assert adapter is not None
    adapted = adapted_linears(job.model, adapter, kind)
    casts = casts_inputs(job, traits, rows)
    extras = _adapter_tensors(adapted, adapter, sizes)
    if not traits.huggingface_modules:
        return replace(plain, qkv=plain.qkv + extras)
    token = sizes.w * sizes.tokens / sizes.tp
    by_input = {name: [linear for linear in adapted if linear.reads == name] for name in {x.reads for x in adapted}}

    def inputs(name: str) -> Floats:
        """Bytes of the adapters' inputs made of one tensor: the tensor itself, or a copy for each."""
        readers = by_input.get(name, [])
        if not readers:
            return np.zeros_like(token)
        own = adapter.dropout > 0
        return token * readers[0].inputs * np.where(casts | own, len(readers), 1.0)

    return replace(
        plain,
        block_input=sizes.hidden(job.model),
        residual=_norm_inputs(job, kind, sizes),
        norm_outputs=inputs("norm1") + inputs("norm2"),
        qkv=_attention_inputs(job, kind, plain, sizes) + inputs("latent") + extras,
        # The attention kernel keeps its output whether or not an adapter reads it; a cast makes a copy.
        context=plain.context + np.where(casts, inputs("context"), 0.0),
        mlp=_hidden_tensors(job, kind, sizes) + inputs("hidden"),
        shared=plain.shared + np.where(casts, inputs("shared"), 0.0),
        mlp_gradient=_backward(job, adapted, sizes, casts=casts),
    )


def _adapter_tensors(adapted: tuple[Linear, ...], adapter: Adapter, s: Sizes) -> Floats:
    """Bytes that the adapters save beside their inputs: the narrow product, dropout's mask, and DoRA's two wide products."""
    narrow = sum(adapter.rank_of(linear.name) for linear in adapted)
    masks = sum(linear.inputs for linear in adapted) if adapter.dropout > 0 else 0
    # peft/tuners/lora/dora.py: (scale - 1) * base and scale * adapter are products with a trained magnitude.
    wide = 2 * sum(linear.outputs for linear in adapted) if adapter.dora else 0
    return np.asarray((s.w * (narrow + wide / s.tp) + masks / s.tp) * s.tokens)


def liger(job: Job) -> bool:
    """Whether Liger's kernels run, its linear cross entropy among them."""
    return job.training.model_impl == "liger" or job.training.cross_entropy == "linear"


def _norm_inputs(job: Job, kind: LayerKind, s: Sizes) -> Floats:
    """Bytes that frozen norms save, the layer's own input left out.

    transformers' RMSNorm saves an fp32 copy of its input; other norms save the input itself, of which the first is the layer's.
    """
    model, norms = job.model, job.model.norms_of(kind)
    each = model.hidden_size * s.tokens / s.sp
    statistics = (2.0 if model.norm == "layernorm" else 1.0) * _FP32 * norms * s.tokens / s.sp
    upcasts = model.norm == "rmsnorm" and not liger(job)
    if upcasts:
        # The layer's input is needed by nobody then: the copies count, less what stands for it already.
        return np.asarray(norms * _FP32 * each - s.hidden(model) + statistics)
    return np.asarray((norms - 1.0) * s.residual_w * each + statistics)


def _attention_inputs(job: Job, kind: LayerKind, plain: LayerParts, s: Sizes) -> Floats:
    """Bytes of query, key and value as the attention core saves them, and of norms of queries and keys."""
    model = job.model
    if model.mla is not None or job.training.attention == "math" or not kind.attends:
        return plain.qkv
    q, kv = model.q_size / s.tp, model.kv_size / np.minimum(s.tp, model.num_key_value_heads)
    normed = np.zeros_like(s.tokens)
    if model.qk_norm != "none":
        normed = (s.w if liger(job) else _FP32) * (q + kv)
    return np.asarray((s.w * (q + 2 * kv) + normed) * s.tokens)


def _hidden_tensors(job: Job, kind: LayerKind, s: Sizes) -> Floats:
    """Bytes of an MLP's hidden tensors that are saved whoever reads them: gate, its activation and up; Liger repeats the activation."""
    if kind.is_moe or not kind.has_mlp:
        return np.zeros_like(s.tokens)
    count = 1.0 if not job.model.gated_mlp else 2.0 if liger(job) else 3.0
    return np.asarray(count * s.w * job.model.intermediate_size * s.tokens / s.tp)


def _backward(job: Job, adapted: tuple[Linear, ...], s: Sizes, *, casts: Bools) -> Floats:
    """Bytes alive together in the MLP's backward: two gradients of the hidden width, the casts of an adapter's, and a weight that
    was quantised. [M-19]
    """
    model, adapter = job.model, job.training.adapter
    assert adapter is not None
    widths = [linear.inputs for linear in adapted if linear.reads in ("hidden", "shared")]
    hidden = s.tokens / s.tp * (max(widths) if widths else model.intermediate_size)
    bytes_ = 2.0 * s.w * hidden + np.where(casts, (_FP32 if widths else 0.0) * hidden, 0.0)
    if adapter.quantized_base != "none":
        bytes_ = bytes_ + s.w * model.hidden_size * max(model.intermediate_size, model.q_size) / s.tp
    return np.asarray(bytes_)


def reduced_layer(job: Job, kind: LayerKind) -> float:
    """Elements of a layer whose gradients are reduced, before any split."""
    if job.training.adapter is not None:
        return trained_layer_elements(job, kind)
    layer = layer_parameters(job.model, kind).total
    return layer - frozen_layer_elements(job.model, kind, job.training.frozen)
