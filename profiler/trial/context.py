"""Attention over a sequence that several ranks share: PyTorch's ring attention, with keys and values gathered or passed on.

On GPUs `scaled_dot_product_attention` is dispatched to the ring as torchtitan does it (`distributed/context_parallel.py`). PyTorch has no
such dispatch for the attention kernel of processors; there the same ring is called with that kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental._attention import _ContextParallel, _enable_context_parallel_dispatcher
from torch.distributed.tensor.experimental._context_parallel._attention import (
    _templated_ring_attention,
    _templated_ring_attention_backward,
    set_rotate_method,
)
from torch.distributed.tensor.parallel import parallelize_module

from profiler.trial.modules import Chunk
from profiler.trial.plan import TrialPlan

_SEQUENCE = 2
_ROTATION = {"allgather": "allgather", "p2p": "alltoall"}


def over_context_ranks(chunk: Chunk, ranks: DeviceMesh, plan: TrialPlan) -> None:
    """Lets the attention of every layer see the keys and values of all `ranks`."""
    set_rotate_method(_ROTATION[plan.cp_comm])
    cores = [layer.attention.core for layer in chunk.layers.values()]
    if ranks.device_type == "cpu":
        for core in cores:
            core.ring = partial(_ring_on_processors, ranks=ranks.get_group())
        return
    _enable_context_parallel_dispatcher()
    for core in cores:
        parallelize_module(core, ranks, _ContextParallel(_SEQUENCE, _ContextParallel.AttentionType.SDPA))


class _RingOnProcessors(torch.autograd.Function):  # type: ignore[misc]
    """Causal attention of queries, keys and values of shape (B, heads, S / cp, head width) over the ranks of a group."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ranks: Any) -> Tensor:
        """Attention of the own queries to the keys of all ranks."""
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
        out, spread, *_ = _templated_ring_attention(
            ranks, _SEQUENCE, kernel, query=q, key=k, value=v, is_causal=True, dropout_p=0.0, scale=None
        )
        ctx.save_for_backward(q, k, v, out, spread)
        ctx.ranks = ranks
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys and values."""
        q, k, v, out, spread = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default  # noqa: SLF001
        of_q, of_k, of_v, *_ = _templated_ring_attention_backward(
            ctx.ranks, _SEQUENCE, kernel, gradient.contiguous(), "grad_out", q, k, v, out, spread, is_causal=True,
            dropout_p=0.0, scale=None,
        )  # fmt: skip
        return of_q, of_k, of_v, None


def _ring_on_processors(q: Tensor, k: Tensor, v: Tensor, *, ranks: Any) -> Tensor:
    """The same for fewer heads of keys and values than of queries, which the kernel does not know."""
    times = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(times, dim=1) for part in (k, v))
    out: Tensor = _RingOnProcessors.apply(q, k, v, ranks)
    return out
