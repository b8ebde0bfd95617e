"""What it costs the host to issue work: a bare operation, a collective, a whole eager layer, and the same layer under FSDP2,
under DTensor tensor parallelism, compiled, and captured. Sizes are so small that the device waits for the host. Also measured is
how fast the host itself updates parameters while every rank of the node does so.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

from cost_models.frameworks.facts import TORCH_LAYER_KERNELS
from profiler.rig import Rig
from profiler.tasks import Findings, NotSupportedError, Task, rounded

# Sixty-four tokens keep every kernel below the time that the host needs to launch it.
_LENGTH, _HEAD_WIDTH = 64, 64
_STACK = 4
"""Layers in a row, so that what a step pays only once is spread over them."""
_FORWARD_OPS = TORCH_LAYER_KERNELS[0]
_ADAM_BYTES = 28.0
"""Bytes per parameter: fp32 parameter, gradient and two moments are read, and all but the gradient written."""
_LAYER_OPS = sum(TORCH_LAYER_KERNELS)
"""Operations that the step model counts in such a layer. A layer's time is divided by them to price one operation."""


def tasks(rig: Rig) -> list[Task]:
    """The bare operation and the eager layer come first; compiling takes longest and comes last."""
    result = [
        Task("host/ops", 26, 1.5, _bare, "host cost of an operation"),
        Task("host/layer", 27, 3.0, _eager, "host cost of a layer"),
        Task("host/adam", 45, 3.0, _adam, "Adam on the host"),
    ]
    if rig.place.world > 1:
        result.append(Task("host/collective", 28, 1.0, _collective, "host cost of a collective"))
        result.append(Task("host/sharded", 50, 5.0, _sharded, "host cost under FSDP2"))
        result.append(Task("host/tensor-parallel", 51, 6.0, _tensor_parallel, "host cost under DTensor"))
        result.append(Task("host/sequence-parallel", 52, 6.0, _sequence_parallel, "host cost under DTensor, split"))
    if rig.on_gpu:
        result.append(Task("host/graph", 140, 2.0, _graph, "host cost of a captured layer"))
        result.append(Task("host/compiled", 141, 20.0, _compiled, "host cost of a compiled layer"))
    if rig.on_gpu and rig.place.world > 1:
        result.append(Task("host/compiled-sharded", 142, 12.0, _compiled_sharded, "compiled, under FSDP2"))
        result.append(Task("host/compiled-split", 143, 20.0, _compiled_split, "compiled, under DTensor, split"))
    return result


def build_layer(rig: Rig) -> Any:
    """A Llama layer in plain PyTorch: norm, projections, rotary, attention, gated MLP."""
    return layer_class(rig.torch, rig.scale.layer_width)().to(device=rig.device, dtype=rig.half)


@cache
def layer_class(torch: Any, width: int) -> Any:
    """The class of all layers, one as in a model, because the compiler generates code, and checks it at every call, per class."""
    nn, functional = torch.nn, torch.nn.functional
    heads = max(1, width // _HEAD_WIDTH)

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for name in ("wq", "wk", "wv", "wo"):
                setattr(self, name, nn.Linear(width, width, bias=False))

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (
                projection(x).view(batch, length, -1, width // heads) for projection in (self.wq, self.wk, self.wv)
            )
            q, k = _rotated(torch, q), _rotated(torch, k)
            seen = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            return self.wo(seen.transpose(1, 2).reshape(batch, length, -1))

    class FeedForward(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w3 = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
            self.w2 = nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            return self.w2(functional.silu(self.w1(x)) * self.w3(x))

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.feed_forward = Attention(), FeedForward()
            self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.ffn_norm(x))

    return Layer


def _rotated(torch: Any, x: Any) -> Any:
    """A rotary embedding as public eager code writes it: fp32, complex product, cast back."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], half, 2))
    return torch.view_as_real(pairs * turn).flatten(3).to(x.dtype)


def _step(rig: Rig, forward: Callable[[Any], Any], *, split: int = 1) -> Callable[[int], None]:
    """Forward and backward of a stack on a short sequence, of which each rank holds 1 / `split`."""
    x = rig.random(1, _LENGTH // split, rig.scale.layer_width)

    def call(_index: int) -> None:
        forward(x).float().sum().backward()

    return call


def _host_s(rig: Rig, call: Callable[[int], None], *, calls: int, per: float = 1.0) -> float:
    """Host seconds of one call on the slowest rank, divided by `per`, without garbage collection."""
    # TorchTitan collects garbage at fixed steps only, and so does Megatron with --manual-gc, because a collection in the middle of
    # a step stalls its rank and with it all others.
    gc.collect()
    gc.disable()
    try:
        return rounded(rig.slowest(rig.stopwatch.host_seconds(call, calls=calls)).time_s / per, 4)
    finally:
        gc.enable()


def _bare(rig: Rig) -> Findings:
    torch = rig.torch
    x, y = rig.random(1024), rig.random(1024)
    out = torch.empty_like(x)
    calls = 500 if rig.on_gpu else 50
    return {"host": [{"raw_op_s": _host_s(rig, lambda _i: torch.add(x, y, out=out), calls=calls)}]}


def _eager(rig: Rig) -> Findings:
    """PyTorch's own encoder layer, which any release has, and a plain Llama layer."""
    torch, calls, width = rig.torch, 8 if rig.on_gpu else 2, rig.scale.layer_width
    encoder = torch.nn.TransformerEncoderLayer(
        width, width // _HEAD_WIDTH, 4 * width, dropout=0.0, batch_first=True, device=rig.device, dtype=rig.half
    )
    encoder_s = _host_s(rig, _step(rig, encoder), calls=calls)
    layer_s = _host_s(rig, _step(rig, _stack(rig)), calls=calls, per=_STACK)
    op_s = rounded(layer_s / _LAYER_OPS, 4)
    return {"host": [{"eager_layer_s": encoder_s, "plain_layer_s": layer_s, "eager_op_s": op_s}]}


def _adam(rig: Rig) -> Findings:
    """Adam over fp32 parameters in host memory with the threads that a training process has, all ranks of a node at once."""
    torch, count, ranks = rig.torch, rig.scale.host_adam_parameters, rig.place.local_world
    parameter = torch.nn.Parameter(torch.zeros(count))
    parameter.grad = torch.ones(count)
    try:
        optimizer = torch.optim.AdamW([parameter], fused=True)
    except (RuntimeError, TypeError):  # PyTorch before 2.4 fuses on GPUs alone
        optimizer = torch.optim.AdamW([parameter])
    # All ranks at once, because they share the memory's bandwidth: one alone would be several times as fast.
    rig.align()
    timing = rig.slowest(rig.stopwatch.host_seconds(lambda _index: optimizer.step(), calls=1, blocks=3))
    return {
        "host_adam": [
            {
                "ranks": ranks,
                "parameters": count,
                "threads": torch.get_num_threads(),
                "bytes_per_s": rounded(ranks * count * _ADAM_BYTES / timing.time_s),
                "spread_fraction": rounded(timing.spread_fraction, 3),
            }
        ]
    }


def _collective(rig: Rig) -> Findings:
    dist = rig.torch.distributed
    x = rig.random(1024, dtype=rig.wire, scale=0.0)
    call_s = _host_s(rig, lambda _i: dist.all_reduce(x), calls=200 if rig.on_gpu else 20)
    return {"host": [{"collective_call_s": call_s}]}


def _sharded(rig: Rig) -> Findings:
    """FSDP2 around every layer: what a step's operations cost with the framework's own work among them."""
    stack = _stack(rig, master=True)
    _shard(rig, stack)
    layer_s = _host_s(rig, _step(rig, stack), calls=6 if rig.on_gpu else 2, per=_STACK)
    return {"host": [{"sharded_layer_s": layer_s}]}


def _tensor_parallel(rig: Rig) -> Findings:
    """DTensor tensor parallelism over all ranks of a node, sequence kept whole."""
    stack = _stack(rig)
    _split(rig, stack, sequence=False)
    layer_s = _host_s(rig, _step(rig, stack), calls=6 if rig.on_gpu else 2, per=_STACK)
    return {"host": [{"tensor_parallel_layer_s": layer_s}]}


def _sequence_parallel(rig: Rig) -> Findings:
    """The same with the sequence split between the projections, as TorchTitan lays a layer out."""
    stack = _stack(rig)
    _split(rig, stack, sequence=True)
    call = _step(rig, stack, split=rig.place.local_world)
    return {"host": [{"sequence_parallel_layer_s": _host_s(rig, call, calls=6 if rig.on_gpu else 2, per=_STACK)}]}


def _stack(rig: Rig, *, master: bool = False) -> Any:
    """Layers in a row; with fp32 parameters where a framework casts them."""
    layers = (build_layer(rig) for _ in range(_STACK))
    return rig.torch.nn.Sequential(*(layer.float() if master else layer for layer in layers))


def _shard(rig: Rig, stack: Any) -> None:
    """FSDP2 around each layer and around all."""
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise NotSupportedError("this PyTorch has no FSDP2 (fully_shard)") from error
    policy = MixedPrecisionPolicy(param_dtype=rig.half, reduce_dtype=rig.torch.float32)
    for layer in stack:
        fully_shard(layer, mp_policy=policy)
    fully_shard(stack, mp_policy=policy)


def _split(rig: Rig, stack: Any, *, sequence: bool) -> None:
    """DTensor tensor parallelism over the ranks of this node."""
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )
    except ImportError as error:
        raise NotSupportedError("this PyTorch has no DTensor parallel styles") from error
    place = rig.place
    heads = max(1, rig.scale.layer_width // _HEAD_WIDTH)
    if heads % place.local_world or _LENGTH % place.local_world:
        raise NotSupportedError(f"{heads} heads do not split over {place.local_world} ranks")
    meshes = [
        DeviceMesh(rig.device.type, list(range(first, first + place.local_world)))
        for first in range(0, place.world, place.local_world)
    ]
    into = {"attention": ("wq", "wk", "wv"), "feed_forward": ("w1", "w3")}
    plan: dict[str, Any] = {f"{block}.{name}": ColwiseParallel() for block, names in into.items() for name in names}
    if sequence:
        whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan |= {block: PrepareModuleInput(**whole) for block in into}
        plan |= {norm: SequenceParallel() for norm in ("attention_norm", "ffn_norm")}
    out = {"output_layouts": Shard(1)} if sequence else {}
    plan |= {name: RowwiseParallel(**out) for name in ("attention.wo", "feed_forward.w2")}
    for layer in stack:
        parallelize_module(layer, meshes[place.node], plan)


def _graph(rig: Rig) -> Findings:
    torch, stack = rig.torch, _stack(rig)
    x = rig.random(1, _LENGTH, rig.scale.layer_width)
    # Warmed up on a side stream, as CUDA graphs require: the first calls allocate workspaces that must not be captured.
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            stack(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        stack(x)
    op_s = _host_s(rig, lambda _i: graph.replay(), calls=50, per=_STACK * _FORWARD_OPS)
    return {"host": [{"graph_op_s": op_s}]}


def _compiled(rig: Rig) -> Findings:
    layer_s = _compiled_s(rig, _stack(rig))
    return {"host": [{"compiled_layer_s": layer_s, "compiled_op_s": rounded(layer_s / _LAYER_OPS, 4)}]}


def _compiled_sharded(rig: Rig) -> Findings:
    """Each layer compiled, then under FSDP2, in TorchTitan's order."""
    return {"host": [{"compiled_sharded_layer_s": _compiled_s(rig, _stack(rig, master=True), shard=True)}]}


def _compiled_split(rig: Rig) -> Findings:
    """Each layer tensor and sequence parallel, then compiled, in TorchTitan's order."""
    stack = _stack(rig)
    _split(rig, stack, sequence=True)
    layer_s = _compiled_s(rig, stack, split=rig.place.local_world)
    return {"host": [{"compiled_sequence_parallel_layer_s": layer_s}]}


def _compiled_s(rig: Rig, stack: Any, *, shard: bool = False, split: int = 1) -> float:
    """Host seconds of one of a stack's layers, each compiled by itself."""
    # Nothing may be left of an earlier task: after eight variants of a function the compiler gives up and runs it eagerly.
    rig.torch.compiler.reset()
    for layer in stack:
        layer.compile()
    if shard:
        _shard(rig, stack)
    try:
        call = _step(rig, stack, split=split)
        call(0)
    except (RuntimeError, ImportError, OSError, AttributeError) as error:  # a missing compiler shows in many ways
        raise NotSupportedError(f"torch.compile: {type(error).__name__}") from error
    return _host_s(rig, call, calls=8, per=_STACK)
