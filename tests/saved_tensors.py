"""What a forward of PyTorch's keeps for its backward, counted by torch's own hooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any


def saved_bytes(model: Any, forward: Callable[[], Any], *, place: Callable[[], int] = lambda: 0) -> dict[int, int]:
    """Bytes that a forward keeps, weights left out, by what `place` says as each is kept. Bytes of one storage count once."""
    import torch  # which tests without it skip before

    seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: list[Any] = []
    found: dict[int, int] = defaultdict(int)

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            held.append(storage)  # held, so that no other tensor takes its place
            found[place()] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return found
