"""Matrix products on a made-up torch that knows shapes alone: what a sample says was multiplied is what was multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.bench import gemm
from profiler.ranks import Ranks
from profiler.rig import Rig
from profiler.scale import gpu_scale
from profiler.tasks import NotSupportedError, Task
from profiler.timing import Call, Stopwatch, Timing

DEVICE = SimpleNamespace(type="cuda")
GPU = gpu_scale(budget_s=300.0)


@dataclass(eq=False, frozen=True)
class Array:
    shape: tuple[int, ...]
    dtype: str
    is_transposed: bool = False

    def t(self) -> Array:
        return Array(self.shape[::-1], self.dtype, not self.is_transposed)

    def transpose(self, first: int, second: int) -> Array:
        assert (first, second) == (1, 2)
        return Array((self.shape[0], self.shape[2], self.shape[1]), self.dtype, not self.is_transposed)

    def to(self, dtype: str) -> Array:
        return Array(self.shape, dtype, self.is_transposed)

    def __mul__(self, factor: int) -> Array:
        return Array((factor,), self.dtype)


@dataclass(frozen=True)
class Product:
    """One multiplication of (batch, m, k) by (batch, k, n), and which of its inputs were transposed."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    kind: str
    transposed: tuple[bool, bool]


class Torch:
    bfloat16, float16, float32, int32, float8_e4m3fn = "bf16", "fp16", "fp32", "i32", "fp8"

    def __init__(self, *, free: float = 1e15) -> None:
        self.made: list[Product] = []
        self.random: list[Array] = []
        self.mode = "highest"
        self.cuda = SimpleNamespace(
            mem_get_info=lambda _device: (free, 2 * free), memory_reserved=lambda _device: 0.0,
            memory_allocated=lambda _device: 0.0, synchronize=lambda: None,
            get_device_properties=lambda _device: SimpleNamespace(L2_cache_size=50e6),
        )  # fmt: skip
        self.nn = SimpleNamespace(functional=SimpleNamespace(grouped_mm=self.grouped))

    def get_float32_matmul_precision(self) -> str:
        return self.mode

    def set_float32_matmul_precision(self, mode: str) -> None:
        self.mode = mode

    def randn(self, *shape: int, device: Any, dtype: str) -> Array:
        self.random.append(Array(shape, dtype))
        return self.random[-1]

    def empty(self, *shape: int, device: Any, dtype: str) -> Array:
        return Array(shape, dtype)

    def zeros(self, *shape: int, device: Any) -> Array:
        return Array(shape, "fp32")

    def ones(self, shape: tuple[int, ...], *, device: Any, dtype: str) -> Array:
        assert (shape, dtype) == ((), "fp32")
        return Array(shape, dtype)

    def arange(self, first: int, end: int, *, device: Any, dtype: str) -> Array:
        assert (first, dtype) == (1, "i32")
        return Array((end - first,), dtype)

    def note(self, kind: str, left: Array, right: Array, *, batch: int = 1) -> tuple[int, int]:
        (m, k), (rows, n) = left.shape[-2:], right.shape[-2:]
        assert k == rows
        assert left.dtype == right.dtype
        transposed = (left.is_transposed, right.is_transposed)
        self.made.append(Product(batch, m, n, k, left.dtype, kind, transposed))
        return m, n

    def matmul(self, left: Array, right: Array, *, out: Array) -> None:
        rounded = left.dtype == "fp32" and self.mode == "high"
        assert self.note("matmul in TF32" if rounded else "matmul", left, right) == out.shape
        assert out.dtype == left.dtype

    def addmm(self, total: Array, left: Array, right: Array, *, out_dtype: str) -> None:
        assert self.note("addmm", left, right) == total.shape
        assert (total.dtype, out_dtype) == ("fp32", "fp32")

    def bmm(self, left: Array, right: Array, *, out: Array) -> None:
        assert left.shape[0] == right.shape[0] == out.shape[0]
        assert self.note("bmm", left, right, batch=left.shape[0]) == out.shape[1:]

    def _scaled_mm(self, left: Array, right: Array, *, scale_a: Array, scale_b: Array, out_dtype: str) -> None:
        assert (scale_a.shape, scale_b.shape, out_dtype) == ((), (), "bf16")
        self.note("scaled", left, right)

    def grouped(self, rows: Array, weights: Array, *, offs: Array) -> None:
        """Every expert multiplies as many rows: its offset ends them."""
        (each,), experts = offs.shape, weights.shape[0]
        assert rows.shape[0] == each * experts
        self.note("grouped", Array((each, rows.shape[1]), rows.dtype), weights, batch=experts)


class Watch(Stopwatch):
    """Makes five calls, and takes the same 2 ms for each kind."""

    def measure(self, call: Call, **_how: Any) -> Timing:
        for index in range(5):
            call(index)
        return Timing(2e-3, 0.0, 5, (2e-3, 2e-3, 2e-3))


def rig_of(torch: Torch) -> Rig:
    return Rig(torch, DEVICE, Ranks(0, 1, 0, 1, "none"), GPU, Watch(torch, DEVICE))


def task(rig: Rig, key: str) -> Task:
    (found,) = [each for each in gemm.tasks(rig) if each.key == key]
    return found


def measured(key: str) -> tuple[list[dict[str, Any]], list[Product]]:
    """The samples of a task, in order, and the products that were made for them, each once."""
    torch = Torch()
    rig = rig_of(torch)
    samples = task(rig, key).run(rig)["gemm"]
    return samples, list(dict.fromkeys(torch.made))


def said(sample: dict[str, Any]) -> tuple[int, ...]:
    return sample.get("batch", 1), sample["m"], sample["n"], sample["k"]


LLAMA = [(4096, 4096), (14336, 4096), (4096, 14336)]
"""Output and input features of layers of Llama 3.1 8B."""


@pytest.mark.parametrize(
    ("key", "dtype", "shapes"),
    [
        ("gemm/squares", None, [(size, size, size) for size in (1024, 2048, 4096, 8192)]),
        ("gemm/fp16", "fp16", [(8192, *LLAMA[0]), (8192, 8192, 8192), (4096, *LLAMA[1])]),
        ("gemm/fp8", "fp8", [*((8192, *layer) for layer in LLAMA), (8192, 8192, 8192), (2048, 8192, 8192)]),
    ],
)
def test_other_precisions_are_measured_on_layers_of_llama_and_on_squares(
    key: str, dtype: str | None, shapes: list[tuple[int, ...]]
) -> None:
    samples, made = measured(key)
    assert [said(sample)[1:] for sample in samples] == shapes
    assert [(each.m, each.n, each.k) for each in made] == shapes
    assert {sample.get("dtype") for sample in samples} == {dtype}
    assert {each.dtype for each in made} == {dtype or "bf16"}
    assert {each.kind for each in made} == {"scaled" if dtype == "fp8" else "matmul"}
    assert {each.transposed for each in made} == {(False, True)}, "a linear layer stores its weight (out, in)"


@pytest.mark.parametrize(("precision", "kind"), [("fp32", "matmul"), ("tf32", "matmul in TF32")])
@pytest.mark.parametrize("mode", ["highest", "high"])
def test_fp32_is_measured_plain_and_as_tf32_whatever_mode_the_process_is_in(
    precision: str, kind: str, mode: str
) -> None:
    """The inputs are fp32 random numbers, not 16-bit ones widened, whose zero bits would draw less power."""
    torch = Torch()
    torch.mode = mode
    rig = rig_of(torch)
    (task,) = (each for each in gemm.tasks(rig) if each.key == f"gemm/{precision}")
    samples = task.run(rig)["gemm"]
    assert [(sample["m"], sample["n"], sample["k"], sample["dtype"]) for sample in samples] == [
        (2048, 4096, 4096, precision), (8192, 4096, 4096, precision), (4096, 14336, 4096, precision)
    ]  # fmt: skip
    assert {(each.dtype, each.kind, each.transposed) for each in torch.made} == {("fp32", kind, (False, True))}
    assert {each.dtype for each in torch.random} == {"fp32"}
    assert torch.mode == mode, "the mode holds for the measured call alone"


def test_a_forward_task_has_eight_shapes_at_most_and_they_are_the_weights_in_order() -> None:
    rig = rig_of(Torch())
    keys = [each.key for each in gemm.tasks(rig) if each.key.startswith("gemm/forward/2048/")]
    assert keys == ["gemm/forward/2048/0", "gemm/forward/2048/8"]  # 14 shapes
    samples = [sample for key in keys for sample in measured(key)[0]]
    assert [(sample["m"], sample["n"], sample["k"]) for sample in samples] == [(2048, n, k) for n, k in GPU.weights]
    assert len(measured(keys[0])[0]) == 8
    (product, *_) = measured(keys[0])[1]
    assert product == Product(1, 2048, 4096, 4096, "bf16", "matmul", (False, True))
    assert samples[0] == {"m": 2048, "n": 4096, "k": 4096, "time_s": 0.002, "spread_fraction": 0.0}


def test_gradients_are_products_with_the_stored_weight_and_with_the_transposed_gradient() -> None:
    """Y = X W^T of 2,048 rows: dX(2048, in) sums over the outputs, dW(out, in) over the rows."""
    samples, made = measured("gemm/gradients/2048")
    expected = [shape for n, k in GPU.gradient_weights for shape in ((1, 2048, k, n), (1, n, k, 2048))]
    assert [said(sample) for sample in samples] == expected
    assert [sample["layout"] for sample in samples] == ["dgrad", "wgrad"] * len(GPU.gradient_weights)
    told = {(each.m, each.n, each.k, each.transposed) for each in made}
    assert told == {
        (m, n, k, (place % 2 == 1, False)) for place, (_, m, n, k) in enumerate(expected)
    }  # fmt: skip


def test_weight_gradients_are_added_into_fp32_for_six_layers() -> None:
    samples, made = measured("gemm/accumulating")
    expected = [(1, n, k, 8192) for n, k in GPU.gradient_weights[:6]]
    assert [said(sample) for sample in samples] == expected
    assert {(sample["layout"], sample["output_dtype"]) for sample in samples} == {("wgrad", "fp32")}
    assert [(each.batch, each.m, each.n, each.k) for each in made] == expected
    assert {(each.kind, each.transposed) for each in made} == {("addmm", (True, False))}


@pytest.mark.parametrize(
    ("key", "kind", "shapes"), [("gemm/batched", "bmm", GPU.batched), ("gemm/grouped", "grouped", GPU.experts)]
)
def test_batches_and_experts_are_multiplied_side_by_side(
    key: str, kind: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    samples, made = measured(key)
    assert [said(sample) for sample in samples] == list(shapes)
    assert [(each.batch, each.m, each.n, each.k) for each in made] == list(shapes)
    assert {(each.kind, each.dtype) for each in made} == {(kind, "bf16")}


@pytest.mark.parametrize(
    ("missing", "key", "words"),
    [
        ("float8_e4m3fn", "gemm/fp8", "no scaled fp8 product"),
        ("_scaled_mm", "gemm/fp8", "no scaled fp8 product"),
        ("grouped_mm", "gemm/grouped", "no grouped product"),
    ],
)
def test_what_a_pytorch_lacks_is_told(missing: str, key: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    if missing == "grouped_mm":
        torch.nn = SimpleNamespace(functional=SimpleNamespace())
    else:
        monkeypatch.delattr(Torch, missing)
    rig = rig_of(torch)
    with pytest.raises(NotSupportedError, match=words):
        task(rig, key).run(rig)


def test_a_product_that_cannot_add_into_fp32_is_told() -> None:
    class Older(Torch):
        def addmm(self, *_arrays: Any, **_options: Any) -> None:
            raise TypeError("addmm() got an unexpected keyword argument 'out_dtype'")

    rig = rig_of(Older())
    with pytest.raises(NotSupportedError, match="fp32 buffer"):
        task(rig, "gemm/accumulating").run(rig)


def test_inputs_rotate_through_three_caches() -> None:
    """(1024, 1024) three times in 16 bits are 6.3 MB: 150 MB hold 23, and 16 sets are the most. (8192, 8192) thrice fill 400 MB."""
    torch = Torch()
    rig = rig_of(torch)
    task(rig, "gemm/squares").run(rig)
    drawn = {size: sum(array.shape == (size, size) for array in torch.random) for size in (1024, 2048, 4096, 8192)}
    # Passes over short products are not repeated, those of 0.4 ms and longer are: here all, four times.
    sets = {size: min(16, int(150e6 / (6 * size**2)) + 1) for size in drawn}
    assert sets == {1024: 16, 2048: 6, 4096: 2, 8192: 1}
    assert drawn == {size: 4 * 2 * count for size, count in sets.items()}


def test_a_device_is_warmed_up_for_two_seconds_by_the_largest_square() -> None:
    """Calls of 2 ms: a thousand, after five to time one."""
    torch = Torch()
    gemm.heat(rig_of(torch))
    assert set(torch.made) == {Product(1, 8192, 8192, 8192, "bf16", "matmul", (False, True))}
    assert len(torch.made) == 5 + 1000


def test_a_processor_is_not_warmed_up() -> None:
    torch = Torch()
    rig = rig_of(torch)
    rig.scale = SimpleNamespace(heat_s=0.0, effort=GPU.effort)  # type: ignore[assignment]
    gemm.heat(rig)
    assert torch.made == []


def test_common_micro_batches_come_first_and_rare_precisions_last() -> None:
    """The rows of common micro-batches below 40, what refines them below 120, what few plans need behind that."""
    values = {each.key: each.value for each in gemm.tasks(rig_of(Torch()))}
    common = [values[f"gemm/forward/{rows}/0"] for rows in (8192, 4096)]
    assert common[0] < values["gemm/squares"] < common[1] < 40
    others = [values[f"gemm/forward/{rows}/0"] for rows in (2048, 1024, 16384, 512)]
    assert min(others) >= 60
    assert others == sorted(set(others))
    assert max(others) <= values["gemm/forward-more/8192/0"] == values["gemm/forward-more/4096/0"] < 70
    later = ["gemm/gradients/8192", "gemm/gradients/2048", "gemm/fp8", "gemm/batched"]
    assert values[later[0]] >= 70
    assert [values[key] for key in later] == sorted({values[key] for key in later})
    rare = [f"gemm/forward-more/{rows}/0" for rows in (2048, 1024, 16384, 512)]
    rare += ["gemm/fp16", "gemm/fp32", "gemm/accumulating", "gemm/tf32", "gemm/grouped"]
    assert values[rare[0]] >= 120
    assert [values[key] for key in rare] == sorted({values[key] for key in rare})
    assert values["gemm/grouped"] < 140  # compiling, which takes longest, is last of all


def test_a_task_expects_its_shapes_and_further_passes_over_long_ones() -> None:
    """A measurement of 125 ms and a third of it to make the inputs, and 10 ms; seven in ten products of many rows are measured
    in four passes.
    """
    expected = {each.key: each.expected_s for each in gemm.tasks(rig_of(Torch()))}
    each_s = 1.3 * 0.125 + 0.01
    assert expected["gemm/forward/2048/0"] == pytest.approx(8 * each_s)
    assert expected["gemm/forward/2048/8"] == pytest.approx(6 * each_s)
    assert expected["gemm/forward/4096/0"] == pytest.approx(8 * each_s * (1 + 0.7 * 3))
    assert expected["gemm/squares"] == pytest.approx(4 * each_s)
    assert expected["gemm/gradients/8192"] == pytest.approx(2 * len(GPU.weights) * each_s)
    assert expected["gemm/accumulating"] == pytest.approx(6 * each_s)
    assert expected["gemm/batched"] == pytest.approx(24 * each_s)
    assert expected["gemm/grouped"] == pytest.approx(4 * each_s)
    assert math.isclose(expected["gemm/fp8"], 5 * each_s)
