"""Random weights that depend on a parameter's name alone, so that one plan starts where every other plan of the model does."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_STD = 0.02
# Names of parameters gain these parts from what wraps a layer.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def initialize(module: nn.Module, *, seed: int) -> None:
    """Fills every parameter on its own device; one whole parameter at a time is held beside the shards."""
    for full_name, parameter in module.named_parameters():
        name = full_name
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        whole = _whole(name, parameter, seed=seed)
        if isinstance(parameter, DTensor):
            # Every rank has drawn the same numbers, so nothing is sent.
            parameter.data.to_local().copy_(_own_part(whole, parameter))
        else:
            parameter.data.copy_(whole)


def _own_part(whole: Tensor, parameter: DTensor) -> Tensor:
    """What this rank holds of a parameter."""
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None
    split = [
        (placement, parameter.device_mesh.size(dimension), coordinate[dimension])
        for dimension, placement in enumerate(parameter.placements)
        if hasattr(placement, "dim")
    ]
    # FSDP's dimensions of a mesh come first, but it splits what tensor or expert parallelism left: its placement then has a stride.
    for placement, ranks, place in sorted(split, key=lambda each: hasattr(each[0], "split_factor")):
        pieces = whole.chunk(ranks, dim=placement.dim)
        # A last rank holds nothing where the elements do not suffice for all.
        whole = pieces[place] if place < len(pieces) else whole.narrow(placement.dim, 0, 0)
    return whole


def _whole(name: str, parameter: Tensor, *, seed: int) -> Tensor:
    options = {"device": parameter.device, "dtype": parameter.dtype}
    if parameter.dim() == 1:
        return (
            torch.zeros(parameter.shape, **options) if name.endswith("bias") else torch.ones(parameter.shape, **options)
        )
    generator = torch.Generator(device=parameter.device).manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    return torch.empty(parameter.shape, **options).normal_(std=_STD, generator=generator)
