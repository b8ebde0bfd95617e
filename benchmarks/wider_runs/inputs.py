"""What a step reads: random tokens, with images or with documents; and attention that stays inside documents."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from benchmarks.wider_runs.cases import Case

_IMAGE = 200
"""The token that stands for a place of an image; any that random text leaves out would do."""


def batch(case: Case, config: Any, device: torch.device) -> dict[str, Any]:
    """Keyword arguments of the model's forward."""
    rows, length = case["batch"], case["seq_length"]
    text = getattr(config, "text_config", config)
    tokens = torch.randint(0, min(text.vocab_size, _IMAGE), (rows, length), device=device)
    found: dict[str, Any] = {"input_ids": tokens, "labels": tokens.clone()}
    if "documents" in case:
        found |= _documents(case["documents"], device)
    if "images_per_sequence" in case:
        found |= _images(case, config, tokens)
        found["labels"][found["mm_token_type_ids"] == 1] = -100
    return found


def _documents(lengths: list[int], device: torch.device) -> dict[str, Any]:
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    places = torch.cat([torch.arange(length, device=device) for length in lengths])
    longest = max(lengths)
    return {
        "position_ids": places[None], "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest,
    }  # fmt: skip


def _images(case: Case, config: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Images spread over each sequence; `tokens` gets their places."""
    vision, (high, wide) = config.vision_config, case["image_patches"]
    count, rows = case["images_per_sequence"], tokens.size(0)
    each = high * wide // vision.spatial_merge_size**2
    stride = tokens.size(1) // count
    kinds = torch.zeros_like(tokens, dtype=torch.int32)
    for image in range(count):
        first = image * stride + 8
        tokens[:, first : first + each] = config.image_token_id
        kinds[:, first : first + each] = 1
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    # On one device with bf16 parameters the processor's fp32 patches are cast by the tower itself.
    pixels = torch.randn(rows * count * high * wide, patch, device=tokens.device)
    grid = torch.tensor([[1, high, wide]] * (rows * count), device=tokens.device)
    return {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}


def register_varlen() -> None:
    """Makes `attn_implementation="varlen"` PyTorch's attention of variable lengths (its FlashAttention kernel), without a mask."""
    AttentionInterface.register("varlen", _varlen)
    AttentionMaskInterface.register("varlen", lambda *_, **__: None)


def _varlen(
    _module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: None, *, scaling: float | None = None, **other: Any
) -> tuple[Tensor, None]:
    ends, longest = other["cu_seq_lens_q"], other["max_length_q"]
    q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=(-1, 0))
        return out[None], None
    parts = []
    for first, last in pairwise(ends.tolist()):
        one, keys, values = (each[first:last].transpose(0, 1)[None] for each in (q, k, v))
        inside = functional.scaled_dot_product_attention(
            one, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
        parts.append(inside[0].transpose(0, 1))
    return torch.cat(parts)[None], None
