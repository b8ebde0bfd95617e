"""The transformer of a trial, in plain PyTorch: the operations of torchtitan's modules, with random weights.

Tensors are (batch B, tokens S, hidden H); attention works on (B, heads, S, head width). Under tensor parallelism a module sees its own
heads and its own part of the MLP, which is why no module reads the number of heads from the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cost_models.specs.model import LayerKind, Model

# Llama 3's (`rope_theta` of its config.json). It changes losses and no time.
_THETA = 500_000.0


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with grouped keys and values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
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
        q, k = _rotated(q, rotation), _rotated(k, rotation)
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=q.shape[2] != k.shape[2]
        )
        return self.wo(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):  # type: ignore[misc]
    """A dense MLP, gated or not."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        wide = model.intermediate_size
        self.w1 = nn.Linear(model.hidden_size, wide, bias=model.mlp_bias)
        self.w3 = nn.Linear(model.hidden_size, wide, bias=model.mlp_bias) if model.gated_mlp else None
        self.w2 = nn.Linear(wide, model.hidden_size, bias=model.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.w3 is None:
            return self.w2(functional.gelu(self.w1(x)))
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):  # type: ignore[misc]
    """One decoder layer with a norm before each half."""

    def __init__(self, model: Model, kind: LayerKind) -> None:
        super().__init__()
        assert not kind.is_moe
        self.attention_norm = _norm(model)
        self.attention = Attention(model)
        self.mlp_norm = _norm(model)
        self.mlp = Mlp(model)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class Chunk(nn.Module):  # type: ignore[misc]
    """Layers `first` to `last` of the model, with the embedding where they are the first ones and the head where they are the last."""

    def __init__(self, model: Model, *, first: int, last: int, seq_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size) if first == 0 else None
        self.layers = nn.ModuleDict({str(i): Layer(model, model.layer_kinds[i]) for i in range(first, last)})
        is_last = last == model.num_layers
        self.norm = _norm(model) if is_last else None
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=model.head_bias) if is_last else None
        if self.embedding is not None and self.head is not None and model.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        self.register_buffer("rotation", rotation(seq_length, model.head_dim), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (B, S) or hidden states (B, S, H) in; hidden states or logits (B, S, V) out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.rotation)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in fp32, as torchtitan computes it."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def rotation(seq_length: int, head_dim: int) -> Tensor:
    """Cosines and sines of rotary positions, shape (2, S, head width) in fp32."""
    frequency = 1.0 / _THETA ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(seq_length).float(), frequency).repeat(1, 2)
    return torch.stack((angle.cos(), angle.sin()))


def _rotated(x: Tensor, cos_and_sin: Tensor) -> Tensor:
    cos, sin = (part[None, : x.shape[1], None, :].to(x.dtype) for part in cos_and_sin)
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _norm(model: Model) -> Any:
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.hidden_size)
    return nn.LayerNorm(model.hidden_size, bias=model.norm_bias)
