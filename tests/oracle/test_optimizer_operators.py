"""Operators and bytes of optimizers that take one tensor after another, as PyTorch dispatches them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cost_models.step.looped_optimizers import ADAFACTOR_OPERATORS
from cost_models.step.muon import DTENSOR_COLLECTIVES, DTENSOR_LOCAL, DTENSOR_OPERATORS
from cost_models.step.optimizer import ADAFACTOR_BYTES, CAST_BYTES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
VIEWS = {
    "permute",
    "unsqueeze",
    "view",
    "t",
    "chunk",
    "_wrap_tensor_autograd",
    "_record_function_enter_new",
    "_record_function_exit",
}
"""Operators that launch nothing."""


def counter(distributed: type | None = None) -> Any:
    """A mode that counts operators by name, and bytes that they read and write; those on DTensor by themselves."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.moved, self.dispatched = Counter[str](), 0, 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if distributed is not None and any(issubclass(each, distributed) for each in types):
                self.dispatched += 1
                return NotImplemented
            made = function(*args, **(kwargs or {}))
            name = function.__name__.split(".")[0]
            if name not in VIEWS:
                self.names[name] += 1
                leaves = torch.utils._pytree.tree_leaves((args, kwargs, made))
                # A copy does not read what it overwrites.
                read = leaves[1:] if name == "copy_" else leaves
                self.moved += sum(each.nbytes for each in read if torch.is_tensor(each))
            return made

    return Count()


@pytest.mark.parametrize("half", [False, True])
def test_adafactor_of_transformers(half: bool):
    dtype = torch.bfloat16 if half else torch.float32
    weight = torch.nn.Parameter(torch.randn(512, 1024).to(dtype))
    weight.grad = torch.randn(512, 1024).to(dtype)
    made = transformers.optimization.Adafactor([weight], lr=1e-3, scale_parameter=False, relative_step=False)
    made.step()
    with counter() as counted:
        made.step()
    assert sum(counted.names.values()) == ADAFACTOR_OPERATORS + 3 * half
    # Sums of rows and columns move a few bytes more.
    assert counted.moved / weight.numel() == pytest.approx(ADAFACTOR_BYTES + 3 * CAST_BYTES * half, rel=0.01)


@pytest.mark.parametrize(("sizes", "wide"), [((16, 8), 0), ((8, 16), 1), ((8, 8), 1)])
def test_muon_on_sharded_matrices(sizes: tuple[int, int], wide: int):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        weight = torch.nn.Parameter(distribute_tensor(torch.randn(sizes), mesh, [Shard(0)]))
        weight.grad = distribute_tensor(torch.randn(sizes), mesh, [Shard(0)])
        made = torch.optim.Muon([weight])
        made.step()
        with counter(DTensor) as counted:
            made.step()
    finally:
        distributed.destroy_process_group()
    collectives = sum(count for name, count in counted.names.items() if name.startswith("all_"))
    # Operators that are views of DTensor dispatch, too.
    assert (counted.dispatched, collectives) == (DTENSOR_OPERATORS[wide], DTENSOR_COLLECTIVES[wide])
    own = {"lerp_", "lerp", "_to_copy", "linalg_vector_norm", "clamp", "div_", "mm", "addmm", "mul_", "add_"}
    extra = sum(count for name, count in counted.names.items() if name not in own) - collectives
    assert extra == pytest.approx(DTENSOR_LOCAL[wide], abs=5)
