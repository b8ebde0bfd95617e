"""Benchmarks on a made-up device: streams, events and copies of known speed stand in for torch, so what they find is known too.

The device runs what is issued on its streams one after the other; a product and a collective that run at once slow each other
down by fixed fractions. No clock is read: every time is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.bench import elementwise, memory, overlap
from profiler.bench.collectives import collective_call
from profiler.machine import topology
from profiler.ranks import Ranks
from profiler.rig import Rig
from profiler.scale import cpu_scale, gpu_scale
from profiler.tasks import Findings, rounded
from profiler.timing import Stopwatch, Timing

DEVICE = SimpleNamespace(type="cuda")


@dataclass(eq=False)
class Stream:
    """Work in the order of its issue: pieces of work, events to be stamped, and waits for what another stream holds."""

    queue: list[Any] = field(default_factory=list)
    issued: int = 0
    done: int = 0

    def put(self, item: Any) -> None:
        self.queue.append(item)
        self.issued += 1

    def wait_stream(self, other: Stream) -> None:
        self.put((other, other.issued))


@dataclass(eq=False)
class Work:
    kind: str
    left_s: float


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.time_s = device, math.nan

    def record(self) -> None:
        self.device.streams[-1].put(self)

    def synchronize(self) -> None:
        self.device.run()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.time_s - self.time_s)


@dataclass(eq=False)
class Array:
    device: Device
    place: str
    size_bytes: float

    def __mul__(self, _factor: float) -> Array:
        return self

    mul_ = __mul__

    def copy_(self, source: Array, *, non_blocking: bool = False) -> None:
        assert non_blocking or source.place == self.place
        assert source is not self
        passes = 2.0 if source.place == self.place else 1.0  # the same memory is read and written
        self.device.issue("copy", passes * source.size_bytes / self.device.copies[source.place, self.place])


class Device:
    """As much of torch as the benchmarks use, on one simulated GPU."""

    bfloat16, float32, uint8 = 2, 4, 1
    """Types are their sizes."""

    def __init__(self, **seconds: float) -> None:
        """`seconds` of each kind of work alone."""
        self.seconds, self.clock_s = seconds, 0.0
        self.slowdown: dict[str, float] = {}
        self.peers: dict[str, int] = {}
        self.copies: dict[tuple[str, str], float] = {}
        self.streams = [Stream()]
        self.known = list(self.streams)
        self.distributed = SimpleNamespace(
            group=SimpleNamespace(WORLD="world"),
            all_reduce=lambda _sent, *, group: self.issue("communication"),
            all_gather_into_tensor=lambda _received, _sent, *, group: self.issue("communication"),
            reduce_scatter_tensor=lambda _received, _sent, *, group: self.issue("communication"),
            all_to_all_single=lambda _received, _sent, *, group: self.issue("communication"),
            P2POp=lambda *what, group: what,
            isend="send",
            irecv="receive",
            batch_isend_irecv=self.exchange,
        )
        self.cuda = SimpleNamespace(
            Event=lambda *, enable_timing: Event(self), Stream=self.stream, stream=self.on, synchronize=self.run,
            current_stream=lambda: self.streams[-1], _sleep=lambda _cycles: None,
            get_device_properties=lambda _device: SimpleNamespace(L2_cache_size=50e6),
            mem_get_info=lambda _device: (60e9, 80e9), memory_reserved=lambda _device: 0.0,
            memory_allocated=lambda _device: 0.0, empty_cache=lambda: None,
        )  # fmt: skip
        self.nn = SimpleNamespace(Parameter=lambda values: values)
        self.optim = SimpleNamespace(AdamW=self.adam)

    def stream(self) -> Stream:
        self.known.append(Stream())
        return self.known[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.streams.append(stream)
        yield
        self.streams.pop()

    def issue(self, kind: str, seconds: float | None = None) -> None:
        self.streams[-1].put(Work(kind, self.seconds[kind] if seconds is None else seconds))

    def exchange(self, parts: list[Any]) -> list[Any]:
        self.peers = {kind: rank for kind, _, rank in parts}
        self.issue("communication")
        return []

    def empty(self, *shape: int, dtype: int, device: Any = None, pin_memory: bool = False) -> Array:
        assert pin_memory == (device is None)
        return Array(self, "host" if device is None else "device", float(dtype * math.prod(shape)))

    def randn(self, *shape: int, device: Any, dtype: int) -> Array:
        return self.empty(*shape, device=device, dtype=dtype)

    def randn_like(self, other: Array) -> Array:
        return Array(self, other.place, other.size_bytes)

    def adam(self, parameters: list[Array], *, lr: float, fused: bool) -> Any:
        assert fused
        assert lr > 0
        traffic = 7.0 * sum(each.size_bytes for each in parameters)
        return SimpleNamespace(step=lambda: self.issue("adam", traffic / self.copies["device", "device"]))

    def matmul(self, _left: Array, _right: Array, *, out: Array) -> None:
        assert out.place == "device"
        self.issue("product")

    def add(self, first: Array, second: Array, *, out: Array) -> None:
        self.issue("stream", (first.size_bytes + second.size_bytes + out.size_bytes) / self.copies["device", "device"])

    def run(self) -> None:
        """Works until every stream is empty."""
        while any(stream.queue for stream in self.known):
            for stream in self.known:
                while stream.queue and self._is_instant(stream.queue[0]):
                    self._drop(stream)
            busy = [stream for stream in self.known if stream.queue and isinstance(stream.queue[0], Work)]
            if not busy:
                continue
            kinds = {stream.queue[0].kind for stream in busy}
            rates = [1.0 / (1.0 + self.slowdown.get(stream.queue[0].kind, 0.0) * (len(kinds) > 1)) for stream in busy]
            step_s = min(stream.queue[0].left_s / rate for stream, rate in zip(busy, rates, strict=True))
            self.clock_s += step_s
            for stream, rate in zip(busy, rates, strict=True):
                stream.queue[0].left_s -= step_s * rate
                if stream.queue[0].left_s <= 1e-15:
                    self._drop(stream)

    def _is_instant(self, item: Any) -> bool:
        if isinstance(item, Event):
            item.time_s = self.clock_s
            return True
        return not isinstance(item, Work) and item[0].done >= item[1]

    def _drop(self, stream: Stream) -> None:
        stream.queue.pop(0)
        stream.done += 1


def rig_on(device: Device, *, world: int = 1) -> Rig:
    """The device as rank 0 of a node sees it."""
    place = Ranks(0, world, 0, world, "none" if world == 1 else "torchrun")
    return Rig(device, DEVICE, place, gpu_scale(budget_s=60.0), Stopwatch(device, DEVICE))


def found(device: Device, module: Any, key: str, *, world: int = 1) -> Findings:
    """What the task of this name finds."""
    rig = rig_on(device, world=world)
    (task,) = [task for task in module.tasks(rig) if task.key == key]
    return task.run(rig)


@pytest.mark.parametrize(("module", "world"), [(elementwise, 1), (memory, 1), (overlap, 2)])
def test_a_task_takes_about_as_long_as_it_says(module: Any, world: int) -> None:
    """What is measured within a budget is chosen by it: no task takes longer than it says, or a twentieth of that."""
    device = Device(product=2e-3, communication=1e-3)
    device.copies = {("device", "device"): 2e12, ("host", "device"): 5e10, ("device", "host"): 5e10}
    rig = rig_on(device, world=world)
    tried = [task for task in module.tasks(rig) if task.key.partition("/")[2] not in ("facts", "allocator")]
    assert tried
    for task in tried:
        before_s = device.clock_s
        task.run(rig)
        assert 0.05 * task.expected_s <= device.clock_s - before_s <= task.expected_s, task.key


def test_copies_to_and_from_the_host_are_told_apart() -> None:
    """50 GB/s down and 26 GB/s up."""
    device = Device()
    device.copies = {("host", "device"): 50e9, ("device", "host"): 26e9}
    rates = {s["kind"]: s["bytes_per_s"] for s in found(device, memory, "memory/host-link")["memory_bandwidth"]}
    both = 2 / (1 / 26e9)  # both begin together, and the slower one ends last
    expected = {"host_to_device": 50e9, "device_to_host": 26e9, "host_both_ways": both}
    assert rates == {kind: pytest.approx(rate, rel=1e-5) for kind, rate in expected.items()}


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "send_recv"])
@pytest.mark.parametrize(("product_s", "communication_s"), [(4e-3, 1e-3), (1e-3, 4e-3), (2e-3, 2e-3), (9e-3, 3e-4)])
def test_each_is_slowed_down_over_its_whole_length(op: str, product_s: float, communication_s: float) -> None:
    """A product takes 30 % longer beside a collective, which takes 50 % longer beside a product, whichever is the longer one:
    what runs beside outlasts what is timed.
    """
    device = Device(product=product_s, communication=communication_s)
    device.slowdown = {"product": 0.3, "communication": 0.5}
    (sample,) = found(device, overlap, f"overlap/{op}", world=2)["overlap"]
    assert sample["compute_slowdown_fraction"] == pytest.approx(0.3, abs=1e-3)
    assert sample["communication_slowdown_fraction"] == pytest.approx(0.5, abs=1e-3)
    assert (sample["op"], sample["ranks"], sample["size_bytes"]) == (op, 2, 64 * 2**20)


def test_streams_count_what_is_read_and_what_is_written() -> None:
    """Memory of 2.5 TB/s, whatever uses it: two arrays added into a third, one copied, and AdamW, which reads a parameter, its
    gradient and two moments and writes all but the gradient: 7 x 4 bytes.
    """
    device = Device()
    device.copies = {("device", "device"): 2.5e12}
    samples = found(device, elementwise, "elementwise")["memory_bandwidth"]
    assert {sample["kind"] for sample in samples} == {"elementwise", "copy", "optimizer"}
    assert [sample["bytes_per_s"] for sample in samples] == [pytest.approx(2.5e12)] * len(samples)
    assert [sample["spread_fraction"] for sample in samples] == [pytest.approx(0.0, abs=1e-9)] * len(samples)
    assert max(sample["size_bytes"] for sample in samples) == 28 * 2**27


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (1, 3), (0, 2, 3)])
def test_every_rank_of_a_ring_sends_to_the_next_and_receives_from_the_one_before(ranks: tuple[int, ...]) -> None:
    device = Device(communication=1e-3)
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for rank in ranks:
        place = Ranks(rank, 4, rank, 4, "torchrun")
        rig = Rig(device, DEVICE, place, gpu_scale(budget_s=60.0), Stopwatch(device, DEVICE))
        collective_call(rig, "send_recv", 1024, ranks=ranks, group="group")(0)
        sent[rank], received[rank] = device.peers["send"], device.peers["receive"]
    following = dict(zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    assert sent == following
    assert received == {after: before for before, after in following.items()}


# --- what collectives are given ---------------------------------------------------------------------------------------


class Recorder(Device):
    """Notes the numbers that arrays are made of and scaled by, and which collective is called with arrays of which length."""

    def __init__(self) -> None:
        super().__init__(communication=1e-3)
        self.made: list[int] = []
        self.scaled: list[float] = []
        self.called: list[tuple[Any, ...]] = []
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
            setattr(self.distributed, name, self.noting(name))

    def noting(self, name: str) -> Any:
        return lambda *arrays, group: self.called.append((name, *(array.length for array in arrays), group))

    def exchange(self, parts: list[Any]) -> list[Any]:
        self.called.append(("batch", *(array.length for _, array, _ in parts), "group"))
        return []

    def empty(self, *shape: int, dtype: int, device: Any = None, pin_memory: bool = False) -> Any:
        self.made.append(math.prod(shape))
        return SimpleNamespace(length=math.prod(shape), mul_=lambda by: self.scaled.append(by) or self.last())

    def last(self) -> Any:
        return SimpleNamespace(length=self.made[-1])


@pytest.mark.parametrize(
    ("op", "called", "lengths"),
    [
        ("all_reduce", "all_reduce", (12,)),
        ("all_gather", "all_gather_into_tensor", (12, 3)),  # received, sent
        ("reduce_scatter", "reduce_scatter_tensor", (3, 12)),
        ("all_to_all", "all_to_all_single", (12, 12)),
        ("send_recv", "batch", (12, 12)),
    ],
)
def test_sizes_of_a_collective_are_those_of_the_whole_array(op: Any, called: str, lengths: tuple[int, ...]) -> None:
    """12 elements among four ranks: a shard has three. Sets of buffers are used in turn, sixteen at most."""
    device = Recorder()
    call = collective_call(rig_on(device, world=4), op, 12, ranks=(0, 1, 2, 3), group="group")
    call(0)
    call(17)
    assert device.called == [(called, *lengths, "group")] * 2
    assert len(device.made) == 16 * len(lengths)


def test_sums_in_place_begin_so_small_that_they_stay_finite_and_not_so_small_that_they_vanish() -> None:
    """bf16 reaches down to 2^-126 and up to 2^127: among four ranks a hundred sums multiply a buffer by 2^200."""
    device = Recorder()
    collective_call(rig_on(device, world=4), "all_reduce", 12, ranks=(0, 1, 2, 3), group="group")
    assert set(device.scaled) == {2.0**-100}
    others = Recorder()
    collective_call(rig_on(others, world=4), "all_to_all", 12, ranks=(0, 1, 2, 3), group="group")
    assert others.scaled == []


@pytest.mark.parametrize(("kind", "elements", "sets"), [("cuda", 10_000_000, 4), ("cpu", 2_000_000, 7)])
def test_buffers_of_a_collective_rotate_through_three_caches(kind: str, elements: int, sets: int) -> None:
    """What is sent and received takes 2 x 20 MB of 3 x 50 MB: three sets and one more; 2 x 8 MB of 3 x 32 MB: six and one more."""
    device = Recorder()
    rig = rig_on(device, world=2)
    rig.device = SimpleNamespace(type=kind)
    rig.scale = gpu_scale(budget_s=60.0) if kind == "cuda" else cpu_scale()
    collective_call(rig, "all_to_all", elements, ranks=(0, 1), group="group")
    assert len(device.made) == 2 * sets


# --- the order and the length of tasks --------------------------------------------------------------------------------


def test_facts_come_first_and_what_few_plans_need_comes_last() -> None:
    """Below 40: without it a plan is priced from the data sheet. Below 60: common plans. From 120: few plans (`profiler.bench`)."""
    rig = rig_on(Device(), world=2)
    tasks = sorted(
        (task for module in (overlap, elementwise, memory) for task in module.tasks(rig)), key=lambda t: t.value
    )
    assert [task.key for task in tasks] == [
        "memory/facts", "elementwise", "memory/host-link", "overlap/all_reduce", "overlap/all_gather",
        "overlap/reduce_scatter", "overlap/send_recv", "memory/allocator",
    ]  # fmt: skip
    values = {task.key: task.value for task in tasks}
    assert values["memory/facts"] == 0  # before any other task has made a communicator
    assert values["elementwise"] < 40 <= values["memory/host-link"]
    assert values["overlap/send_recv"] < 60 <= values["memory/allocator"] < 120


def test_tasks_expect_the_seconds_of_their_measurements() -> None:
    """60 ms a measurement: nine of streams, eight of an overlap, and half a second for each to make its arrays. Communicators
    take seconds to build.
    """
    rig = rig_on(Device(), world=2)
    expected = {task.key: task.expected_s for module in (overlap, elementwise, memory) for task in module.tasks(rig)}
    assert expected["elementwise"] == pytest.approx(9 * 0.06 + 0.5)
    assert expected["overlap/all_gather"] == pytest.approx(8 * 0.06 + 0.5)
    assert [expected[f"memory/{name}"] for name in ("facts", "host-link", "allocator")] == [8.0, 2.0, 2.0]
    (alone,) = [task for task in memory.tasks(rig_on(Device())) if task.key == "memory/facts"]
    assert alone.expected_s == 1.0
    assert overlap.tasks(rig_on(Device())) == []


def test_pairs_beyond_64_are_those_of_the_first_node_and_of_its_rails() -> None:
    """11 ranks have 55 pairs. 12 ranks of three nodes have 66, of which 6 are inside a node and 8 along a rail. Each takes a
    measurement of 60 ms and 150 ms to set up.
    """
    for world, local_world, pairs in ((11, 11, 55), (12, 4, 14), (2, 2, 1)):
        rig = rig_on(Device(), world=world)
        rig.place = Ranks(0, world, 0, local_world, "torchrun")
        (task,) = topology.tasks(rig, {})
        assert task.expected_s == pytest.approx(pairs * 0.21)
    assert topology.tasks(rig_on(Device()), {}) == []


def test_arrays_of_streams_are_no_more_than_exceed_the_cache() -> None:
    """Three arrays of the smallest size are 192 MiB, more than three caches of 50 MB: one set of each of three sizes."""
    device = Device()
    device.copies = {("device", "device"): 2e12}
    made: list[int] = []
    device.randn = lambda *shape, device, dtype: made.append(math.prod(shape)) or Array(owner, "device", 2.0 * made[-1])  # type: ignore[method-assign, func-returns-value]
    owner = device
    found(device, elementwise, "elementwise")
    halves = [size for size in made if size in (2**25, 2**27, 2**29)]
    assert halves == [2**25] * 3 + [2**27] * 3 + [2**29] * 3
    assert made[9:] == [2**24] * 8  # AdamW's eight tensors


def test_a_bandwidth_has_as_many_digits_as_it_is_worth() -> None:
    sample = elementwise.bandwidth("copy", 1e9, Timing(0.3, 0.1234567, 10))
    assert (sample["bytes_per_s"], sample["spread_fraction"]) == (3.33333e9, 0.123)
    assert rounded(1.23456789) == 1.23457


def test_slowdowns_have_three_digits() -> None:
    device = Device(product=2e-3, communication=2e-3)
    device.slowdown = {"product": 0.12345, "communication": 0.54321}
    (sample,) = found(device, overlap, "overlap/all_gather", world=2)["overlap"]
    assert (sample["compute_slowdown_fraction"], sample["communication_slowdown_fraction"]) == (0.123, 0.543)


def test_copies_over_the_host_link_take_a_quarter_of_a_gibibyte() -> None:
    device = Device()
    device.copies = {("host", "device"): 50e9, ("device", "host"): 26e9}
    sizes = [s["size_bytes"] for s in found(device, memory, "memory/host-link")["memory_bandwidth"]]
    assert sizes == [2**28, 2**28, 2**29]  # the last one is a quarter each way
