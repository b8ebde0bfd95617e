"""The optimizers of the runs, as lists that are stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.optimization import Adafactor

RATE = 1e-5
"""Small, so that bf16 stays finite for as many steps as one likes; it moves no time."""
_NS = (3.4445, -4.7750, 2.0315)
"""The coefficients of Newton-Schulz that Muon was published with, which torch.optim.Muon takes too."""


def optimizers(name: str, model: nn.Module) -> list[Any]:
    """What updates the model's trained parameters, by the name in `cases.py`."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name.startswith("muon"):
        matrices, others = _matrices(model)
        of_matrices = PackedMuon(matrices) if name == "muon-packed" else torch.optim.Muon(
            matrices, lr=RATE, adjust_lr_fn="match_rms_adamw"
        )  # fmt: skip
        return [of_matrices, _adamw(others)]
    return [_SINGLE[name](trained)]


def state_bytes(each: Any) -> int:
    """Bytes of this rank's optimizer state, as allocated."""
    seen: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, DTensor):
            add(value.to_local())
        elif isinstance(value, Tensor) and hasattr(value, "__tensor_flatten__"):
            for inner in value.__tensor_flatten__()[0]:
                add(getattr(value, inner))
        elif isinstance(value, Tensor) and value.device.type != "meta":
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            for inner in value.values():
                add(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                add(inner)

    add([dict(item.state) for item in each])
    return sum(seen.values())


def _matrices(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Weights of linear layers, and everything else that is trained: embeddings, heads, norms, biases, convolutions."""
    head = model.get_output_embeddings()
    linear = [module.weight for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    kept = {id(weight) for weight in linear if weight.requires_grad}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [p for p in trained if id(p) in kept], [p for p in trained if id(p) not in kept]


def _adamw(parameters: list[Tensor]) -> Any:
    return torch.optim.AdamW(parameters, lr=RATE, fused=True)


def _bitsandbytes(name: str) -> Callable[[list[Tensor]], Any]:
    def make(parameters: list[Tensor]) -> Any:
        return getattr(import_module("bitsandbytes").optim, name)(parameters, lr=RATE)

    return make


def _torchao(name: str) -> Callable[[list[Tensor]], Any]:
    def make(parameters: list[Tensor]) -> Any:
        return getattr(import_module("torchao.optim"), name)(parameters, lr=RATE)

    return make


_SINGLE: dict[str, Callable[[list[Tensor]], Any]] = {
    "adamw": _adamw,
    "adam-8bit-bitsandbytes": _bitsandbytes("AdamW8bit"),
    "adam-8bit-torchao": _torchao("AdamW8bit"),
    "adam-4bit-torchao": _torchao("AdamW4bit"),
    "adafactor": lambda parameters: Adafactor(parameters, lr=RATE, scale_parameter=False, relative_step=False),
    "lion": _bitsandbytes("Lion"),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9, fused=True),
}


class PackedMuon:
    """Muon over FSDP2's shards: whole matrices lie on ranks while they are orthogonalised, each on one.

    As many matrices of one shape as there are ranks are exchanged at a time: every rank sends its rows of each and receives all rows of
    one, runs five steps of Newton-Schulz on it, and sends the rows of the result back. Momentum stays sharded. That is how Muon's
    distributed forms for FSDP2 spread its work (Liu et al. 2025, arXiv:2502.16982; Ahn et al. 2025, arXiv:2504.05295).
    """

    def __init__(self, parameters: list[Tensor], *, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        self.parameters, self.momentum, self.weight_decay = parameters, momentum, weight_decay
        self.state: dict[Tensor, Tensor] = {}

    def step(self) -> None:
        """One update of every matrix."""
        by_shape: dict[torch.Size, list[DTensor]] = {}
        for parameter in self.parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        world = dist.get_world_size()
        with torch.no_grad():
            for alike in by_shape.values():
                for first in range(0, len(alike), world):
                    self._update(alike[first : first + world])

    def _update(self, several: list[DTensor]) -> None:
        world = dist.get_world_size()
        rows = [self._direction(each) for each in several]
        # Where fewer matrices are left than there are ranks, the last one is sent again, and what comes back of it is dropped.
        sent = torch.cat(rows + [rows[-1]] * (world - len(rows)))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        dist.all_to_all_single(sent, newton_schulz(received))
        for parameter, update in zip(several, sent.chunk(world), strict=False):
            local = parameter.to_local()
            local.mul_(1 - RATE * self.weight_decay)
            local.add_(update, alpha=-RATE * 0.2 * max(parameter.shape) ** 0.5)

    def _direction(self, parameter: DTensor) -> Tensor:
        gradient = parameter.grad.to_local()
        if parameter not in self.state:
            self.state[parameter] = torch.zeros_like(gradient)
        held = self.state[parameter]
        held.lerp_(gradient, 1 - self.momentum)
        return gradient.lerp(held, self.momentum).bfloat16()


def newton_schulz(matrix: Tensor, steps: int = 5) -> Tensor:
    """The orthogonal factor of a matrix, about: five steps of the quintic iteration in bf16, of the smaller side's Gram matrix."""
    a, b, c = _NS
    x = matrix.bfloat16()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T.contiguous() if tall else x
