"""What benchmarks are told about the machine: memory that they may take, buffers to rotate, the slowest rank, and when a
measurement is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cost_models.errors import MeasurementError
from profiler.ranks import Ranks
from profiler.rig import Rig, require_device
from profiler.scale import cpu_scale, gpu_scale
from profiler.timing import Stopwatch, Timing, summary

MIB, GIB = 2**20, 2**30
SEVERAL = object()
"""Stands for the group of all ranks on the hosts."""


class Torch:
    """As much of torch as a rig asks: a GPU of 80 GiB with 50 MiB of cache, and the values of the other ranks."""

    bfloat16, float32, float64, int64 = "bf16", "fp32", "fp64", "i64"

    def __init__(self, *, free: float = 40 * GIB, reserved: float = 0.0, allocated: float = 0.0) -> None:
        self.others: list[Any] = []
        self.cuda = SimpleNamespace(
            mem_get_info=lambda _device: (free, 80 * GIB), memory_reserved=lambda _device: reserved,
            memory_allocated=lambda _device: allocated, is_available=lambda: True, device_count=lambda: 4,
            get_device_properties=lambda _device: SimpleNamespace(L2_cache_size=50 * MIB),
            set_device=self.others.append,
        )  # fmt: skip
        self.version = SimpleNamespace(cuda="12.8", hip=None)
        self.distributed = SimpleNamespace(
            ReduceOp=SimpleNamespace(MAX="max"), all_reduce=self.all_reduce, all_gather_object=self.gather,
            broadcast=self.broadcast,
        )  # fmt: skip
        self.device = lambda kind, index=None: (kind, index)

    def tensor(self, values: list[float], *, dtype: str) -> list[float]:
        assert dtype in ("fp64", "i64")
        return values

    def all_reduce(self, tensor: list[float], *, op: str, group: object) -> None:
        assert (op, group) == ("max", SEVERAL)
        tensor[0] = max([*tensor, *self.others])

    def broadcast(self, tensor: list[float], *, src: int, group: object) -> None:
        assert group is SEVERAL
        tensor[0] = self.others[src]

    def gather(self, values: list[Any], own: Any, *, group: object) -> None:
        assert group is SEVERAL
        values[:] = [own, *self.others]


def rig_of(torch: Torch, *, kind: str = "cuda", world: int = 1, passes: int = 3) -> Rig:
    scale = gpu_scale(budget_s=300.0) if kind == "cuda" else cpu_scale()
    scale = replace(scale, effort=replace(scale.effort, passes=passes))
    device = SimpleNamespace(type=kind)
    place = Ranks(0, world, 0, world, "none" if world == 1 else "torchrun")
    return Rig(torch, device, place, scale, Stopwatch(torch, device), control=None if world == 1 else SEVERAL)


class Watch(Stopwatch):
    """A stopwatch that reads off prepared timings, the next one at each measurement."""

    def __init__(self, timings: list[Timing]) -> None:
        self.timings, self.calls = timings, list[Any]()

    def measure(self, call: Any, **_how: Any) -> Timing:
        self.calls.append(call)
        return self.timings.pop(0)


def timing(time_s: float, spread_fraction: float = 0.0) -> Timing:
    return Timing(time_s, spread_fraction, 10, (time_s, time_s))


def test_a_tenth_of_what_is_free_stays_free_and_what_the_allocator_holds_counts_as_free() -> None:
    """40 GiB are free, and 6 of the 10 GiB that the allocator holds are in no use: 0.9 x 46 GiB."""
    assert rig_of(Torch(reserved=10 * GIB, allocated=4 * GIB)).free_bytes == pytest.approx(0.9 * 46 * GIB)
    assert rig_of(Torch(), kind="cpu").free_bytes == cpu_scale().host_bytes


@pytest.mark.parametrize(
    ("set_mib", "free_gib", "most", "count"),
    [
        (60, 40, 16, 3),  # 150 MiB of three caches hold two and a half
        (50, 40, 16, 4),  # exactly three: one more, so that the first has left
        (1, 40, 16, 16),  # 151 would do; never more than 16
        (1, 40, 4, 4),
        (1024, 40, 16, 1),
        (0, 40, 16, 16),
        (60, 0.3, 16, 2),  # half of 0.9 x 307 MiB holds two
        (600, 0.3, 16, 1),  # one set is always there
    ],
)
def test_buffers_rotate_through_three_caches_as_far_as_half_the_memory_holds_them(
    set_mib: float, free_gib: float, most: int, count: int
) -> None:
    rig = rig_of(Torch(free=free_gib * GIB))
    assert rig.rotation(set_mib * MIB, most=most) == count
    assert most != 16 or rig.rotation(set_mib * MIB) == count


def test_a_processor_is_taken_to_have_a_cache_of_32_megabytes() -> None:
    """Three of them hold 96 sets of one megabyte, one more is 97; half of 256 MiB holds 134."""
    assert rig_of(Torch(), kind="cpu").rotation(1e6, most=1000) == 97


def test_ranks_agree_on_the_largest_number_and_on_what_rank_0_decides() -> None:
    torch = Torch()
    rig = rig_of(torch, world=4)
    torch.others = [2.0, 7.0, 5.0]
    assert rig.largest(3.0) == 7.0
    assert rig.largest(9.0) == 9.0
    assert rig.gather("a") == ["a", 2.0, 7.0, 5.0]
    torch.others = [4, 8, 6]
    assert rig.decide(1) == 4
    alone = rig_of(torch)
    assert (alone.largest(3.0), alone.decide(1), alone.gather("a")) == (3.0, 1, ["a"])


@pytest.mark.parametrize(
    ("others", "middle"),
    [
        ([2.0, 3.0, 8.0], 2.0),  # of four ranks the second quickest, so that one slow rank of two is told
        ([2.0, 8.0], 2.0),
        ([1.5], 1.0),
    ],
)
def test_the_slowest_rank_counts_and_each_is_compared_with_the_middle_one(others: list[float], middle: float) -> None:
    torch = Torch()
    rig = rig_of(torch, world=1 + len(others))
    torch.others = [timing(each) for each in others]
    assert rig.slowest(timing(1.0)).time_s == max(others)
    assert rig.slow == {rank: [each / middle] for rank, each in enumerate([1.0, *others])}
    rig.slowest(timing(middle))
    assert [len(ratios) for ratios in rig.slow.values()] == [2] * (1 + len(others))


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (timing(1e-3, 0.04), None, 0.04),  # at the limit: nothing disturbed it
        (timing(1e-3, 0.041), timing(1.1e-3, 0.01), 0.01),
        (timing(1e-3, 0.05), timing(0.9e-3, 0.3), 0.05),  # the second is worse
        (timing(49e-6, 0.5), None, 0.5),  # a launch more than work
        (timing(50e-6, 0.5), timing(50e-6, 0.02), 0.02),
    ],
)
def test_a_restless_measurement_is_repeated_once_and_the_calmer_one_kept(
    first: Timing, second: Timing | None, kept: float
) -> None:
    watch = Watch([first] if second is None else [first, second])
    rig = rig_of(Torch())
    rig.stopwatch = watch
    assert rig.local(lambda _index: None).spread_fraction == kept
    assert watch.timings == []
    on_host = rig_of(Torch(), kind="cpu")
    on_host.stopwatch = Watch([first])
    assert on_host.local(lambda _index: None) == first


def test_a_joint_call_takes_as_long_as_its_slowest_member_and_others_only_stand_by() -> None:
    torch = Torch()
    rig = rig_of(torch, world=4)
    torch.others = [timing(2e-3), None, timing(3e-3)]
    rig.stopwatch = Watch([timing(9e-3), timing(1e-3)])
    assert rig.joint(None).time_s == 3e-3  # this rank is no member, and neither is the third
    assert rig.joint(lambda _index: None).time_s == 3e-3


def test_long_calls_are_measured_in_passes_with_others_in_between() -> None:
    """Of three calls the second is shorter than 0.4 ms and is measured once. The first takes 1, 2 and 6 ms: 2 ms is the middle."""
    watch = Watch([timing(s) for s in (1e-3, 3.9e-4, 4e-4, 2e-3, 5e-4, 6e-3, 5e-4)])
    rig = rig_of(Torch(), passes=3)
    rig.stopwatch = watch
    builders: list[Callable[[], Any]] = [lambda: "a", lambda: "b", lambda: "c"]
    found = rig.local_each(builders)
    assert watch.calls == ["a", "b", "c", "a", "c", "a", "c"]
    assert [each.time_s for each in found] == [2e-3, 3.9e-4, 5e-4]
    assert found[0] == summary([1e-3, 1e-3, 2e-3, 2e-3, 6e-3, 6e-3], calls=10)


@pytest.mark.parametrize(("scale", "factor"), [(1.0, None), (0.5, 0.5)])
def test_random_numbers_are_scaled_where_asked_to_and_sixteen_bits_wide(scale: float, factor: float | None) -> None:
    made: list[Any] = []

    class Array:
        def mul_(self, by: float) -> Array:
            made.append(by)
            return self

    torch: Any = Torch()
    torch.randn = lambda *shape, device, dtype: made.append((shape, dtype)) or Array()
    rig = rig_of(torch)
    rig.random(3, 5, scale=scale)
    rig.random(2, dtype=rig.wire)
    assert made == [((3, 5), "bf16"), *([] if factor is None else [factor]), ((2,), "bf16")]
    assert rig_of(torch, kind="cpu").wire == "fp32"


def test_a_group_is_made_once_and_all_ranks_are_the_world() -> None:
    torch: Any = Torch()
    torch.distributed.group = SimpleNamespace(WORLD="world")
    torch.distributed.new_group = lambda ranks, *, timeout: (tuple(ranks), timeout.total_seconds())
    rig = rig_of(torch, world=4)
    assert rig.group([0, 1, 2, 3]) == "world"
    first = rig.group((2, 0))
    assert first == ((2, 0), 120.0)  # building a communicator takes NCCL seconds, not minutes
    assert rig.group([2, 0]) is first


def test_a_process_gets_the_device_of_its_number() -> None:
    torch = Torch()
    assert require_device(torch, "cuda", 3) == ("cuda", 3)
    assert torch.others == [3]
    assert require_device(torch, "cpu", 9) == ("cpu", None)
    with pytest.raises(MeasurementError, match="process 4 of this node has no GPU: 4 are visible"):
        require_device(torch, "cuda", 4)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (SimpleNamespace(cuda=None, hip=None), "built without CUDA"),
        (SimpleNamespace(cuda="12.8", hip=None), "no GPU is visible"),
        (SimpleNamespace(cuda=None, hip="6.4"), "no GPU is visible"),
    ],
)
def test_without_a_device_it_is_said_whether_pytorch_or_the_machine_lacks_it(version: Any, why: str) -> None:
    torch = Torch()
    torch.version = version
    torch.cuda.is_available = lambda: False
    with pytest.raises(MeasurementError, match=why):
        require_device(torch, "cuda", 0)
