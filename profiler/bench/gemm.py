"""Matrix products in the layouts of training: forward, data gradient, weight gradient, batched, grouped, other precisions.

Inputs are random, because zeros run faster, and rotated so that they exceed the cache, as they do in a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from profiler.rig import Rig
from profiler.scale import Weight
from profiler.tasks import Findings, NotSupportedError, Task, timed
from profiler.timing import Call

_FP8_SHAPES = ((8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (8192, 8192, 8192), (2048, 8192, 8192))
_FP16_SHAPES = ((8192, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096))
# A plain fp32 product takes fifteen times as long as a 16-bit one, and its share of the peak hardly depends on the shape.
_FP32_SHAPES = ((2048, 4096, 4096), (8192, 4096, 4096), (4096, 14336, 4096))
_FP32_MODES = {"fp32": "highest", "tf32": "high"}
"""torch.set_float32_matmul_precision's names."""
# A task ends within seconds of being asked to, and a rerun repeats no more than this much.
_SHAPES_PER_TASK = 8
_SQUARES = (1024, 2048, 4096, 8192)
_Wanted = tuple[dict[str, Any], Callable[[], Call]]
"""A sample without its time, and the function that builds its call."""


def tasks(rig: Rig) -> list[Task]:
    """The most telling shapes first, by rows."""
    scale, each_s = rig.scale, 1.3 * rig.scale.effort.expected_s + 0.01
    result = []
    for order, rows in enumerate(scale.tokens):
        # The first two counts of rows are those of common micro-batches; the others refine the curve after everything else.
        value = 20 + 3 * order if order < 2 else 60 + order
        # Products of many rows are long, so that they are measured in several passes.
        passes = scale.effort.passes if rows >= 4096 else 1
        # Only some seven in ten of these shapes are long enough for further passes.
        long_s = each_s * (1 + 0.7 * (passes - 1))
        result += _forward_tasks(f"gemm/forward/{rows}", value, rows, scale.weights, long_s)
        more = 66 if order < 2 else 120 + order
        result += _forward_tasks(f"gemm/forward-more/{rows}", more, rows, scale.more_weights, long_s)
    if rig.on_gpu:
        squares = tuple((size, size, size) for size in _SQUARES)
        result.append(_shapes_task("gemm/squares", 22, squares, "bf16", each_s))
        result.append(_shapes_task("gemm/fp16", 130, _FP16_SHAPES, "fp16", each_s))
        result.append(_shapes_task("gemm/fp8", 72, _FP8_SHAPES, "fp8", each_s))
        result.append(_shapes_task("gemm/fp32", 131, _FP32_SHAPES, "fp32", each_s))
        result.append(_shapes_task("gemm/tf32", 133, _FP32_SHAPES, "tf32", each_s))
    for order, rows in enumerate(scale.gradient_tokens):
        result.append(_gradient_task(f"gemm/gradients/{rows}", 70 + order, rows, scale.gradient_weights, each_s))
    result.append(_accumulating_task(scale.gradient_tokens[0], scale.gradient_weights, each_s))
    result.append(_batched_task(scale.batched, each_s))
    result.append(_grouped_task(scale.experts, each_s))
    return result


def heat(rig: Rig) -> None:
    """Works until the device runs at the clock of sustained load, which is lower than that of a cold start."""
    if rig.scale.heat_s <= 0:
        return
    # The square that draws the most power: all multipliers are busy and the memory is not.
    call = _forward(rig, 8192, 8192, 8192)
    timing = rig.stopwatch.measure(call, effort=rig.scale.effort)
    for index in range(int(rig.scale.heat_s / timing.time_s)):
        call(index)
    rig.stopwatch.synchronize()


# --- calls ------------------------------------------------------------------------------------------------------------


def _sets(rig: Rig, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> list[tuple[Any, Any, Any]]:
    """Rotating (left, right, output) tensors."""
    elements = sum(_size(shape) for shape in (left, right, out))
    count = rig.rotation(2.0 * elements)
    return [
        (rig.random(*left), rig.random(*right), rig.torch.empty(*out, device=rig.device, dtype=rig.half))
        for _ in range(count)
    ]


def _single(rig: Rig, m: int, n: int, k: int, *, mode: str) -> Call:
    """Y(m, n) = X(m, k) W(n, k)^T in fp32. PyTorch's mode decides whether inputs are rounded to TF32, and it holds for a call alone."""
    torch = rig.torch
    full = {"dtype": torch.float32}
    sets = [
        (rig.random(m, k, **full), rig.random(n, k, **full).t(), torch.empty(m, n, device=rig.device, **full))
        for _ in range(rig.rotation(4.0 * (m * k + n * k + m * n)))
    ]
    multiply = _multiply(rig, sets)

    def call(index: int) -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(mode)
        try:
            multiply(index)
        finally:
            torch.set_float32_matmul_precision(before)

    return call


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _forward(rig: Rig, m: int, n: int, k: int, *, dtype: Any = None) -> Call:
    """Y(m, n) = X(m, k) W(n, k)^T, as a linear layer stores its weight."""
    sets = _sets(rig, (m, k), (n, k), (m, n))
    if dtype is not None:
        sets = [(x.to(dtype), w.to(dtype), y.to(dtype)) for x, w, y in sets]
    return _multiply(rig, [(x, w.t(), y) for x, w, y in sets])


def _data_gradient(rig: Rig, m: int, n: int, k: int) -> Call:
    """dX(m, n) = dY(m, k) W(k, n), the stored weight untransposed."""
    return _multiply(rig, _sets(rig, (m, k), (k, n), (m, n)))


def _weight_gradient(rig: Rig, m: int, n: int, k: int) -> Call:
    """dW(m, n) = dY(k, m)^T X(k, n), summed over the rows k."""
    return _multiply(rig, [(dy.t(), x, dw) for dy, x, dw in _sets(rig, (k, m), (k, n), (m, n))])


def _multiply(rig: Rig, sets: list[tuple[Any, Any, Any]]) -> Call:
    matmul, count = rig.torch.matmul, len(sets)

    def call(index: int) -> None:
        left, right, out = sets[index % count]
        matmul(left, right, out=out)

    return call


def _eight_bit(rig: Rig, m: int, n: int, k: int) -> Call:
    """The scaled fp8 product, one scale per tensor, bf16 out."""
    torch = rig.torch
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        raise NotSupportedError("this PyTorch has no scaled fp8 product")
    one = torch.ones((), device=rig.device, dtype=torch.float32)
    eight = torch.float8_e4m3fn
    sets = [
        (rig.random(m, k).to(eight), rig.random(n, k).to(eight).t()) for _ in range(rig.rotation(float(m * k + n * k)))
    ]

    def call(index: int) -> None:
        left, right = sets[index % len(sets)]
        torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: SLF001 - the fp8 entry point

    return call


# --- tasks ------------------------------------------------------------------------------------------------------------


def _forward_tasks(key: str, value: int, rows: int, weights: Sequence[Weight], each_s: float) -> list[Task]:
    """Tasks of at most eight shapes each."""
    result = []
    for first in range(0, len(weights), _SHAPES_PER_TASK):
        chosen = weights[first : first + _SHAPES_PER_TASK]

        def run(rig: Rig, chosen: Sequence[Weight] = chosen) -> Findings:
            return _samples(rig, [({"m": rows, "n": n, "k": k}, partial(_forward, rig, rows, n, k)) for n, k in chosen])

        title = f"matrix products of {rows} rows"
        result.append(Task(f"{key}/{first}", value, each_s * len(chosen), run, title))
    return result


def _shapes_task(key: str, value: int, shapes: Sequence[tuple[int, int, int]], dtype: str, each_s: float) -> Task:
    def build(rig: Rig, m: int, n: int, k: int) -> Call:
        if dtype == "fp8":
            return _eight_bit(rig, m, n, k)
        if dtype in _FP32_MODES:
            return _single(rig, m, n, k, mode=_FP32_MODES[dtype])
        return _forward(rig, m, n, k, dtype=rig.torch.float16 if dtype == "fp16" else None)

    def run(rig: Rig) -> Findings:
        return _samples(
            rig, [({"m": m, "n": n, "k": k, "dtype": dtype}, partial(build, rig, m, n, k)) for m, n, k in shapes]
        )

    return Task(key, value, each_s * len(shapes), run, f"matrix products in {dtype}")


def _gradient_task(key: str, value: int, rows: int, weights: Sequence[Weight], each_s: float) -> Task:
    def run(rig: Rig) -> Findings:
        wanted: list[_Wanted] = []
        for n, k in weights:
            data, weight = {"m": rows, "n": k, "k": n}, {"m": n, "n": k, "k": rows}
            wanted.append(({**data, "layout": "dgrad"}, partial(_data_gradient, rig, rows, k, n)))
            wanted.append(({**weight, "layout": "wgrad"}, partial(_weight_gradient, rig, n, k, rows)))
        return _samples(rig, wanted)

    return Task(key, value, 2 * each_s * len(weights), run, f"gradient products of {rows} rows")


def _accumulating_task(rows: int, weights: Sequence[Weight], each_s: float) -> Task:
    """Weight gradients added into an fp32 buffer by the product's own kernel, as Megatron's fused accumulation does."""

    def build(rig: Rig, n: int, k: int) -> Call:
        torch = rig.torch
        sets = [
            (dy.t(), x, torch.zeros(n, k, device=rig.device)) for dy, x, _ in _sets(rig, (rows, n), (rows, k), (1, 1))
        ]

        def call(index: int) -> None:
            dy, x, total = sets[index % len(sets)]
            torch.addmm(total, dy, x, out_dtype=torch.float32)

        try:
            call(0)
        except (TypeError, RuntimeError, ValueError) as error:
            raise NotSupportedError("no product that adds bf16 inputs into an fp32 buffer here") from error
        return call

    def run(rig: Rig) -> Findings:
        same = {"k": rows, "layout": "wgrad", "output_dtype": "fp32"}
        return _samples(rig, [({"m": n, "n": k, **same}, partial(build, rig, n, k)) for n, k in weights[:6]])

    return Task("gemm/accumulating", 132, 6 * each_s, run, "gradient products into fp32")


def _batched_task(shapes: Sequence[tuple[int, int, int, int]], each_s: float) -> Task:
    def build(rig: Rig, batch: int, m: int, n: int, k: int) -> Call:
        torch = rig.torch
        count = rig.rotation(2.0 * batch * (m * k + k * n + m * n), most=4)
        sets = [(rig.random(batch, m, k), rig.random(batch, n, k).transpose(1, 2)) for _ in range(count)]
        out = torch.empty(batch, m, n, device=rig.device, dtype=rig.half)
        return lambda index: torch.bmm(*sets[index % count], out=out)

    def run(rig: Rig) -> Findings:
        return _samples(
            rig, [({"m": m, "n": n, "k": k, "batch": b}, partial(build, rig, b, m, n, k)) for b, m, n, k in shapes]
        )

    return Task("gemm/batched", 74, each_s * len(shapes), run, "batched products of math attention")


def _grouped_task(shapes: Sequence[tuple[int, int, int, int]], each_s: float) -> Task:
    """The products of all experts of a layer in one kernel."""

    def build(rig: Rig, experts: int, rows: int, n: int, k: int) -> Call:
        torch = rig.torch
        # The public name and, in older releases, the private one.
        grouped: Callable[..., Any] | None = getattr(torch.nn.functional, "grouped_mm", None) or getattr(
            torch, "_grouped_mm", None
        )
        if grouped is None:
            raise NotSupportedError("this PyTorch has no grouped product")
        ends = torch.arange(1, experts + 1, device=rig.device, dtype=torch.int32) * rows
        x = rig.random(experts * rows, k)
        weights = [
            rig.random(experts, n, k).transpose(1, 2) for _ in range(rig.rotation(2.0 * experts * n * k, most=3))
        ]
        product = grouped
        return lambda index: product(x, weights[index % len(weights)], offs=ends)

    def run(rig: Rig) -> Findings:
        return _samples(
            rig, [({"m": m, "n": n, "k": k, "batch": b}, partial(build, rig, b, m, n, k)) for b, m, n, k in shapes]
        )

    return Task("gemm/grouped", 134, each_s * len(shapes), run, "grouped products of experts")


def _samples(rig: Rig, wanted: Sequence[_Wanted]) -> Findings:
    """Timed samples of these shapes. Fields with the document's default value are left out."""
    timings = rig.local_each([build for _, build in wanted])
    found = []
    for (shape, _), timing in zip(wanted, timings, strict=True):
        sample = {k: v for k, v in shape.items() if (k, v) not in {("dtype", "bf16"), ("batch", 1)}}
        found.append(timed(sample, time_s=timing.time_s, spread_fraction=timing.spread_fraction))
    return {"gemm": found}
