"""What torch.compile's partitioner keeps of a layer for its backward."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.bench.host import layer_class

torch = pytest.importorskip("torch")
WIDTH, HEADS, TOKENS = 128, 2, 64


def kept_bytes(run: Any, own: set[int]) -> int:
    """Bytes of the distinct storages that a forward keeps, without those that exist anyway."""
    storages: dict[int, int] = {}
    alive: list[Any] = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        alive.append(tensor)
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storages.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit, from within torch's own compiler
def test_a_compiled_gated_mlp_keeps_three_of_its_four_wide_tensors() -> None:
    """Gate, up and their product: the activation's output, which eager code keeps too, is made again. [M-5]"""
    torch.compiler.reset()
    layer = layer_class(torch, WIDTH)().bfloat16()
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    mlp = layer.feed_forward
    wide = 2 * TOKENS * 4 * WIDTH
    narrow = 2 * TOKENS * WIDTH
    assert kept_bytes(lambda: mlp(x), own) == 4 * wide + narrow
    compiled = torch.compile(mlp, backend="aot_eager_decomp_partition")
    assert kept_bytes(lambda: compiled(x), own) == 3 * wide + narrow
