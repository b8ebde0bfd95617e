"""How a model is trained: batch, precision, framework, and every default of that framework already applied.

`Training` is resolved by `training_input` against `cost_models.frameworks`. Every field has a value; `assumed` lists those that the
user did not give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cost_models.specs.adapter import Adapter
from cost_models.specs.average import Average
from cost_models.specs.documents import Lengths, cut_documents, filled_share, spans
from cost_models.specs.run import Checkpoint
from cost_models.specs.tower import Towers, TowerUse

Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "fp32"]
Framework = Literal["megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron"]
Attention = Literal["flash", "math"]
AttentionKernel = Literal["fa1", "fa2", "fa3", "cudnn", "sdpa", "flex"]
ModelImpl = Literal["native", "transformers", "liger"]
CrossEntropy = Literal["unfused", "fused", "te", "compiled", "linear", "chunked"]
Recipe = Literal["nvidia-perf"]
Optimizer = Literal["adam", "sgd", "adam-8bit", "adam-4bit", "adafactor", "muon", "lion", "sgd-momentum"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
Packing = Literal["packed", "padded"]
EXAMPLE_TRAINING: Mapping[str, Any] = {
    "seq_length": 8192, "global_batch_size": 512, "precision": "bf16", "framework": "megatron",
}  # fmt: skip
"""The least that a training job has to say, for hints and documents."""
BYTES_PER: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "none": 0.0}
"""Bytes of one stored element; nvfp4 carries one fp8 scale for 16 elements."""


@dataclass(frozen=True, slots=True)
class Training:
    """A resolved training job; lengths in tokens, the batch in sequences."""

    seq_length: int
    global_batch_size: int
    precision: Precision
    framework: Framework
    framework_version: str
    software_date: str
    """YYYY-MM: which generation of kernels is meant."""
    model_impl: ModelImpl
    """Whose modules run: the framework's own, Hugging Face transformers, or these with Liger's kernels. No formula reads it yet."""
    transformer_impl: Literal["transformer-engine", "local"]
    attention: Attention
    attention_kernel: AttentionKernel
    cross_entropy: CrossEntropy
    fp8_recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"]
    optimizer: Optimizer
    param_dtype: Dtype
    main_param_dtype: Literal["fp32", "bf16", "fp16", "fp8", "none"]
    grad_dtype: Dtype
    grad_reduce_dtype: Dtype
    optimizer_state_dtype: Dtype
    compile: bool
    cuda_graphs: bool
    expandable_segments: bool
    dropout: float
    recipe: Recipe | None
    """Whose habits stand in for what the user did not say; None means the framework's own defaults."""
    mean_document_length: float | None
    total_tokens: float | None
    checkpoint: Checkpoint | None = None
    adapter: Adapter | None = None
    """Adapters that are trained beside a frozen base. `param_dtype` and the other types are then theirs, and the base is stored in the
    compute type or quantised."""
    document_lengths: Lengths | None = None
    """Lengths of packed documents, each with its share of all documents. `mean_document_length` is then the length whose attention
    costs as much."""
    frozen: tuple[str, ...] = ()
    """Parts of the model that are not trained."""
    towers: Towers | None = None
    """Encoders of images and sounds that run in front of the text model; None where they are not counted."""
    packing: Packing | None = None
    """Whether documents fill sequences one after another, which None means too, or have a padded row each."""
    ema: Average | None = None
    """A moving average of the trained parameters that is kept beside them; None where there is none."""
    assumed: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def tower_uses(self) -> tuple[TowerUse, ...]:
        """The encoders that run in front of the text model."""
        return () if self.towers is None else self.towers.uses

    @property
    def attended_length(self) -> float:
        """Tokens that one token's attention spans: the whole sequence, or one document where several are packed."""
        return min(self.mean_document_length or self.seq_length, float(self.seq_length))

    @property
    def attended_spans(self) -> Lengths:
        """Lengths in which tokens see each other, in tokens, each with its share of all tokens. [F-31]"""
        if self.is_padded and not self.skips_padding:
            return ((float(self.seq_length), 1.0),)
        if self.is_padded:
            computed = self.attended_share
            return tuple((length, share * computed) for length, share in self.document_spans)
        return self.document_spans

    @property
    def document_spans(self) -> Lengths:
        """The same of the documents' own tokens, without padding. [F-31] [F-36]"""
        if self.is_padded:
            return spans(cut_documents(self._lengths, self.seq_length), self.seq_length)
        if self.document_lengths is None:
            return ((self.attended_length, 1.0),)
        return spans(self.document_lengths, self.seq_length)

    @property
    def _lengths(self) -> Lengths:
        """Lengths of the documents; a mean stands for all of them."""
        return self.document_lengths or ((self.mean_document_length or float(self.seq_length), 1.0),)

    @property
    def is_padded(self) -> bool:
        """Whether each sequence holds one document and padding."""
        return self.packing == "padded"

    @property
    def skips_padding(self) -> bool:
        """Whether attention leaves padding out, as transformers does before it calls FlashAttention. [F-36]"""
        # modeling_flash_attention_utils.py, _flash_attention_forward: a mask that hides something makes it call _upad_input.
        own = self.model_impl in ("transformers", "liger") and self.attention == "flash"
        return own and self.attention_kernel in ("fa2", "fa3")

    @property
    def attended_share(self) -> float:
        """Share of a sequence's tokens that attention computes. [F-36]"""
        return self.filled_share if self.skips_padding else 1.0

    @property
    def filled_share(self) -> float:
        """Share of the tokens of all sequences that are no padding. [F-36]"""
        return filled_share(self._lengths, self.seq_length) if self.is_padded else 1.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one optimizer step learns from, without padding."""
        return float(self.seq_length) * self.global_batch_size * self.filled_share

    @property
    def compute_dtype(self) -> Dtype:
        """Type of activations and of the copies that products read; fp8 and nvfp4 keep bf16 activations."""
        return {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get(self.precision, "bf16")  # type: ignore[return-value]

    @property
    def compute_bytes(self) -> float:
        """Bytes of one activation element."""
        return BYTES_PER[self.compute_dtype]

    @property
    def gather_bytes(self) -> float:
        """Bytes per parameter that a gather moves: the stored type, or the compute type where that is narrower."""
        return min(BYTES_PER[self.param_dtype], self.compute_bytes)
