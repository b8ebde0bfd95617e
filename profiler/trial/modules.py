"""The transformer of a trial, in plain PyTorch: the operations of torchtitan's modules, with random weights.

Tensors are (batch B, tokens S, hidden H); attention works on (B, heads, S, head width). Under tensor parallelism a module sees its own
heads and its own part of the MLP, which is why no module reads the number of heads from the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from cost_models.specs.model import LayerKind, Model
from profiler.trial.experts import Mixture

# Llama 3's (`rope_theta` of its config.json). It changes losses and no time.
_THETA = 500_000.0
# In this order, as torchtitan 0.2 asks for them (`models/attention.py`).
_CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
# torchtitan 0.3's for FlexAttention (`models/common/attention.py`).
_FLEX_OPTIONS = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.cudagraphs": False}


class AttentionCore(nn.Module):  # type: ignore[misc]
    """Causal attention of queries, keys and values of shape (B, heads, S, head width); a module, so that context parallelism finds it."""

    def __init__(self, *, cudnn_first: bool = False) -> None:
        super().__init__()
        self.cudnn_first = cudnn_first
        self.ring: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        """What takes the place of the kernel where several ranks share a sequence on processors."""
        self.flex: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        """FlexAttention, where it takes the place of the kernel."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.ring is not None:
            return self.ring(q, k, v)
        if self.flex is not None:
            return self.flex(q, k, v)
        with sdpa_kernel(_CUDNN_FIRST, set_priority=True) if self.cudnn_first else contextlib.nullcontext():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with grouped keys and values."""

    def __init__(self, model: Model, core: AttentionCore) -> None:
        super().__init__()
        self.core = core
        self.head_dim = model.head_dim
        self.wq = nn.Linear(model.hidden_size, model.q_size, bias=model.qkv_bias)
        self.wk = nn.Linear(model.hidden_size, model.kv_size, bias=model.qkv_bias)
        self.wv = nn.Linear(model.hidden_size, model.kv_size, bias=model.qkv_bias)
        self.wo = nn.Linear(model.q_size, model.hidden_size, bias=model.attention_out_bias)
        per_head = model.qk_norm == "per_head"
        self.q_norm = nn.RMSNorm(model.head_dim) if per_head else None
        self.k_norm = nn.RMSNorm(model.head_dim) if per_head else None

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotated(q, rotation), rotated(k, rotation)
        out = self.core(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.wo(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):  # type: ignore[misc]
    """A dense MLP of `wide` elements, gated or not."""

    def __init__(self, model: Model, wide: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(model.hidden_size, wide, bias=model.mlp_bias)
        self.w3 = nn.Linear(model.hidden_size, wide, bias=model.mlp_bias) if model.gated_mlp else None
        self.w2 = nn.Linear(wide, model.hidden_size, bias=model.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.w3 is None:
            return self.w2(functional.gelu(self.w1(x)))
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):  # type: ignore[misc]
    """One decoder layer with a norm before each half."""

    def __init__(self, model: Model, kind: LayerKind, core: AttentionCore) -> None:
        super().__init__()
        self.attention_norm = _norm(model)
        self.attention = Attention(model, core)
        self.mlp_norm = _norm(model)
        self.mlp = _mixture(model) if kind.is_moe else Mlp(model, model.intermediate_size)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class Chunk(nn.Module):  # type: ignore[misc]
    """Layers `first` to `last` of the model, with the embedding in the first chunk and the head in the last one."""

    def __init__(
        self, model: Model, *, first: int, last: int, seq_length: int, is_first: bool = True, is_last: bool = True,
        cudnn_first: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size) if is_first else None
        self.layers = nn.ModuleDict(
            {
                str(i): Layer(model, model.layer_kinds[i], AttentionCore(cudnn_first=cudnn_first))
                for i in range(first, last)
            }
        )
        self.norm = _norm(model) if is_last else None
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=model.head_bias) if is_last else None
        self.is_tied = is_first and is_last and model.tie_word_embeddings
        self.tie()
        self.register_buffer("rotation", rotation(torch.arange(seq_length), model), persistent=False)

    def tie(self) -> None:
        """Lets a tied head use the embedding's weights; what splits both, or gives them memory, makes two tensors of them."""
        if self.is_tied and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (B, S) or hidden states (B, S, H) in; hidden states or logits (B, S, V) out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.rotation)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def flex(seq_length: int, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """PyTorch's FlexAttention for causal attention, compiled at its first call; one serves all layers, or each would compile its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    made: Any = torch.compile(flex_attention, options=_FLEX_OPTIONS)
    mask = create_block_mask(
        lambda _b, _h, seeing, seen: seeing >= seen, None, None, seq_length, seq_length, device=device
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # It is not among the operations that autocast knows, which leaves norms of heads in fp32.
        out: Tensor = made(q.to(v.dtype), k.to(v.dtype), v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return out

    return attend


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in fp32, as torchtitan computes it."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def rotation(positions: Tensor, model: Model) -> Tensor:
    """Rotary positions (S,) as `rotated` takes them: complex numbers (S, head width / 2), or cosines and sines (2, S, head width).

    Numbers turn neighbouring elements, as torchtitan's Llama does. Its Qwen3, whose queries and keys are normed, turns halves, which is
    a chain of operators and priced three times as long [F-3].
    """
    width = model.head_dim
    frequency = 1.0 / _THETA ** (torch.arange(0, width, 2, device=positions.device).float() / width)
    angle = torch.outer(positions.float(), frequency)
    halves = model.qk_norm != "none" if model.rotary_interleaved is None else not model.rotary_interleaved
    if halves:
        angle = angle.repeat(1, 2)
        return torch.stack((angle.cos(), angle.sin()))
    return torch.polar(torch.ones_like(angle), angle)


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Queries or keys (B, S, heads, head width) turned by `rotation` of at least S positions."""
    if rotation.is_complex():
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotation[None, : x.shape[1], None, :]).flatten(3).type_as(x)
    cos, sin = (part[None, : x.shape[1], None, :].to(x.dtype) for part in rotation)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _norm(model: Model) -> Any:
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.hidden_size)
    return nn.LayerNorm(model.hidden_size, bias=model.norm_bias)


def _mixture(model: Model) -> Mixture:
    assert model.moe is not None
    wide = model.moe.num_shared_experts * model.moe.shared_expert_intermediate_size
    return Mixture(model, Mlp(model, wide) if wide else None)
