"""Recomputation of activations: whole layers, or only what is cheap to compute again, by torchtitan's list of operators."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_PRODUCT = torch.ops.aten.mm.default
# What selective recomputation keeps: torchtitan 0.2, models/llama4/infra/parallelize.py, `_op_sac_save_list`. The attention kernel of
# processors stands beside those of GPUs.
_KEPT = {
    _PRODUCT,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_attention_math.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,  # noqa: SLF001
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001
    torch.ops._c10d_functional.all_to_all_single.default,  # noqa: SLF001
    torch.ops.aten.max.default,
    # Ties between experts may fall otherwise when they are computed again (torchtitan 0.3, distributed/activation_checkpoint.py).
    torch.ops.aten.topk.default,
}


def recomputed_whole(layer: nn.Module) -> nn.Module:
    """The layer, of which only the input is kept."""
    return checkpoint_wrapper(layer, preserve_rng_state=False)


def recomputed_in_part(layer: nn.Module, *, gathers_inside: bool = False) -> nn.Module:
    """The layer, of which every other matrix product, attention and what was received from other ranks is kept.

    Args:
        layer: what to wrap.
        gathers_inside: whether a part of it is sharded for itself. FSDP then runs operators inside of the layer that differ between forward
            and recomputation, which PyTorch's own contexts do not let pass from release 2.13.
    """
    return checkpoint_wrapper(
        layer, context_fn=_own_contexts if gathers_inside else _contexts, preserve_rng_state=False
    )


class _Choice:
    """Which results are kept. Forward and recomputation each have their own, so that both meet the same products at the same numbers."""

    def __init__(self) -> None:
        self._products = 0

    def keeps(self, operator: Any) -> bool:
        self._products += operator is _PRODUCT
        return operator in _KEPT and not (operator is _PRODUCT and self._products % 2 == 0)


def _contexts() -> Any:
    choices = {False: _Choice(), True: _Choice()}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        keeps = choices[context.is_recompute].keeps(operator)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _own_contexts() -> Any:
    kept: dict[Any, deque[Any]] = defaultdict(deque)
    return _Forward(kept), _Recomputation(kept)


class _Forward(TorchDispatchMode):  # type: ignore[misc]
    """Keeps results, by operator and in order."""

    def __init__(self, kept: dict[Any, deque[Any]]) -> None:
        super().__init__()
        self._kept, self._choice = kept, _Choice()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._choice.keeps(func):
            self._kept[func].append(tree_map_only(torch.Tensor, torch.Tensor.detach, out))
        return out


class _Recomputation(TorchDispatchMode):  # type: ignore[misc]
    """Hands out what was kept, and computes the rest."""

    def __init__(self, kept: dict[Any, deque[Any]]) -> None:
        super().__init__()
        self._kept, self._choice = kept, _Choice()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._kept[func].popleft() if self._choice.keeps(func) else func(*args, **(kwargs or {}))
