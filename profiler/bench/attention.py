"""Causal attention, forward and backward: PyTorch's own flash kernel, cuDNN's, and the unfused chain that writes its scores.

Grouped key heads run as the kernels offer them. What a build or device cannot do is left out, and a note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.rig import Rig
from profiler.scale import AttentionShape
from profiler.tasks import Findings, NotSupportedError, Task, timed

_BACKENDS = {"sdpa": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH"}


def tasks(rig: Rig) -> list[Task]:
    """The library kernels, then the unfused chain."""
    # Forward takes one measurement, backward one that is two to three times as long, and building the inputs about 0.1 s.
    scale, each_s = rig.scale, 2.5 * rig.scale.effort.expected_s + 0.1
    kernels = ("sdpa", "cudnn") if rig.on_gpu else ("sdpa",)
    # In halves, so that a short budget sees the most common shapes of both kernels before the rarer ones of either.
    half = (len(scale.attention) + 1) // 2
    result = []
    for order, kernel in enumerate(kernels):
        parts = (("main", scale.attention[:half]), ("more", scale.attention[half:]))
        for part, shapes in parts:
            value = (32 if part == "main" else 68) + order
            result.append(_task(f"attention/{kernel}/{part}", value, kernel, shapes, each_s))
    result.append(_task("attention/math", 136, "math", scale.math_attention, each_s))
    return result


def _task(key: str, value: int, kernel: str, shapes: Sequence[AttentionShape], each_s: float) -> Task:
    def run(rig: Rig) -> Findings:
        name = "math_attention" if kernel == "math" else "attention"
        return {name: [sample for shape in shapes for sample in _samples(rig, kernel, shape)]}

    return Task(key, value, each_s * len(shapes), run, f"attention ({kernel})")


def _samples(rig: Rig, kernel: str, shape: AttentionShape) -> list[dict[str, Any]]:
    """Forward and backward of one shape."""
    torch = rig.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    query = rig.random(shape.sequences, shape.heads, shape.length, shape.width).requires_grad_()
    key, value = (
        rig.random(shape.sequences, shape.kv_heads, shape.length, shape.width).requires_grad_() for _ in range(2)
    )
    grouped = {"enable_gqa": True} if shape.kv_heads != shape.heads else {}
    with sdpa_kernel(getattr(SDPBackend, _BACKENDS[kernel])):
        # Tried once outside the timing: whether a kernel takes this shape on this device only shows when it is called.
        try:
            out = attend(query, key, value, is_causal=True, **grouped)
            gradient = torch.randn_like(out)
            torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True)
        except (RuntimeError, TypeError) as error:
            raise NotSupportedError(f"attention kernel {kernel}: {str(error).splitlines()[0][:120]}") from error
        # Without a graph, because recording one costs the host more than a short kernel takes. With flash kernels both write the same.
        with torch.no_grad():
            forward = rig.local(lambda _index: attend(query, key, value, is_causal=True, **grouped))
        backward = rig.local(lambda _index: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True))
    sizes: dict[str, Any] = {
        "sequences": shape.sequences, "heads": shape.heads, "kv_heads": shape.kv_heads, "q_length": shape.length,
        "kv_length": shape.length,
    }  # fmt: skip
    sizes |= {"d": shape.width} if kernel == "math" else {"kernel": kernel, "d_qk": shape.width, "d_v": shape.width}
    return [
        timed({**sizes, "direction": direction}, time_s=t.time_s, spread_fraction=t.spread_fraction)
        for direction, t in (("forward", forward), ("backward", backward))
    ]
