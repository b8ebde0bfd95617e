"""The machine under measurement as benchmarks see it: torch, this rank's device, and the processes that measure together.

Agreements between ranks travel in a control group of their own (gloo, on the hosts), so that they never disturb what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from cost_models.errors import MeasurementError
from profiler.ranks import Ranks
from profiler.scale import Scale
from profiler.timing import LONG_S, Call, Effort, Stopwatch, Timing, pooled

DeviceKind = Literal["cuda", "cpu"]
INSTALL = "pip install 'meshwright[profiler]' installs it; for another CUDA version see pytorch.org."
# The first collective of a group builds its communicator, which can take NCCL many seconds across nodes. torch's own default of ten
# minutes would outlast most budgets.
TIMEOUT = timedelta(seconds=120)
# PyTorch does not state a processor's last-level cache; common servers have 1 to 2 MB per core.
_CPU_CACHE_BYTES = 32e6
# In data/measured_h100 the median spread is 0.3 %, and nine in ten are below 3 %. Beyond 4 % something else was running.
_RESTLESS = 0.04
"""Spread (half of the interquartile range over the median) above which a measurement is repeated once."""
# Shorter calls are launches more than work, and their spread is that of the host.
_MIN_RETRIED_S = 50e-6


def load_torch() -> Any:
    """The torch module.

    Raises:
        MeasurementError: PyTorch is not installed or cannot be loaded.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MeasurementError("measuring needs PyTorch, which is not installed", hint=INSTALL) from error
    except (ImportError, OSError) as error:
        raise MeasurementError(f"PyTorch is installed but cannot be loaded: {error}", hint=INSTALL) from error
    return torch


def require_device(torch: Any, kind: DeviceKind, local_rank: int) -> Any:
    """This rank's torch device.

    Raises:
        MeasurementError: this machine has no such device for this process.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "no GPU is visible" if built else "this PyTorch was built without CUDA"
        raise MeasurementError(
            f"there is nothing to measure: {why}",
            hint="Run `meshwright profile doctor` to learn more, or try the agent out on the processor with --device cpu.",
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise MeasurementError(
            f"process {local_rank} of this node has no GPU: {count} are visible",
            hint="Start as many processes per node as there are GPUs (torchrun --nproc-per-node).",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@dataclass(eq=False)
class Rig:
    """What a benchmark runs on."""

    torch: Any
    device: Any
    place: Ranks
    scale: Scale
    stopwatch: Stopwatch
    control: Any = None
    """Group of all ranks on the hosts; None for a single process."""
    timeout: timedelta = TIMEOUT
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)
    slow: dict[int, list[float]] = field(default_factory=dict)
    """By rank, its seconds over the median rank's, for everything that all ranks did alike."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    @property
    def half(self) -> Any:
        """The 16-bit type that everything is measured in."""
        return self.torch.bfloat16

    @property
    def wire(self) -> Any:
        """Type of what collectives carry: the 16-bit type, or on processors fp32, which gloo sums faster."""
        return self.half if self.on_gpu else self.torch.float32

    @property
    def cache_bytes(self) -> float:
        """Last-level cache that rotating buffers must exceed."""
        if not self.on_gpu:
            return _CPU_CACHE_BYTES
        return float(self.torch.cuda.get_device_properties(self.device).L2_cache_size)

    @property
    def free_bytes(self) -> float:
        """Memory that a benchmark may take."""
        if not self.on_gpu:
            return self.scale.host_bytes
        free, _ = self.torch.cuda.mem_get_info(self.device)
        cached = self.torch.cuda.memory_reserved(self.device) - self.torch.cuda.memory_allocated(self.device)
        # A tenth stays free for workspaces of the libraries and for what the allocator rounds up.
        return 0.9 * float(free + cached)

    def random(self, *shape: int, dtype: Any = None, scale: float = 1.0) -> Any:
        """Normal random numbers from the device's own generator.

        Random and not zero: multipliers that see constant bits draw less power, so the clock stays higher than in training.
        """
        values = self.torch.randn(*shape, device=self.device, dtype=dtype or self.half)
        return values if scale == 1.0 else values.mul_(scale)

    def rotation(self, bytes_per_set: float, *, most: int = 16) -> int:
        """Number of sets of buffers to rotate, so that none is still in the cache when its turn comes."""
        # Three times the cache, because its replacement is not strictly least recently used.
        wanted = int(3 * self.cache_bytes / max(bytes_per_set, 1.0)) + 1
        affordable = int(0.5 * self.free_bytes / max(bytes_per_set, 1.0))
        return max(1, min(wanted, most, affordable))

    # --- agreements -------------------------------------------------------------------------------------------------

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.place.world
        self.torch.distributed.all_gather_object(values, value, group=self.control)
        return values

    def largest(self, value: float) -> float:
        """The largest of all ranks' numbers."""
        if self.control is None:
            return value
        tensor = self.torch.tensor([value], dtype=self.torch.float64)
        self.torch.distributed.all_reduce(tensor, op=self.torch.distributed.ReduceOp.MAX, group=self.control)
        return float(tensor[0])

    def decide(self, value: int) -> int:
        """Rank 0's number, on every rank."""
        if self.control is None:
            return value
        tensor = self.torch.tensor([value], dtype=self.torch.int64)
        self.torch.distributed.broadcast(tensor, src=0, group=self.control)
        return int(tensor[0])

    def align(self) -> None:
        """Makes all ranks wait for each other."""
        if self.control is not None:
            self.torch.distributed.barrier(group=self.control)

    def group(self, ranks: Sequence[int]) -> Any:
        """Communication group of these ranks. Every rank must ask for it, members or not, in the same order."""
        key = tuple(ranks)
        if len(key) == self.place.world:
            return self.torch.distributed.group.WORLD
        if key not in self._groups:
            self._groups[key] = self.torch.distributed.new_group(list(key), timeout=self.timeout)
        return self._groups[key]

    def all_gather(self, received: Any, sent: Any, *, group: Any = None) -> None:
        """All-gather, by the name that this PyTorch has for it (2.13 renamed it)."""
        dist = self.torch.distributed
        (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(received, sent, group=group)

    def reduce_scatter(self, received: Any, sent: Any, *, group: Any = None) -> None:
        """Reduce-scatter, by the name that this PyTorch has for it."""
        dist = self.torch.distributed
        (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(received, sent, group=group)

    # --- measuring --------------------------------------------------------------------------------------------------

    def local(self, call: Call, *, effort: Effort | None = None) -> Timing:
        """Every rank times the same local work. The slowest rank counts, and the others are compared with it."""
        effort = effort or self.scale.effort
        return self._calmer(lambda: self.slowest(self.stopwatch.measure(call, effort=effort)))

    def local_each(self, builders: Sequence[Callable[[], Call]]) -> list[Timing]:
        """Times many local calls, and the long ones in several passes over all of them. The slowest rank of each counts."""
        effort, own = self.scale.effort, [list[Timing]() for _ in builders]
        for number in range(effort.passes):
            for build, timings in zip(builders, own, strict=True):
                # Every rank must skip the same calls, so the slowest rank's first pass decides.
                if number and self.largest(timings[0].time_s) < LONG_S:
                    continue
                timings.append(self.stopwatch.measure(build(), effort=effort))
        return [self.slowest(pooled(timings)) for timings in own]

    def slowest(self, own: Timing) -> Timing:
        """The slowest rank's timing. Also notes how far each rank is from the median one."""
        timings: list[Timing] = self.gather(own)
        middle = sorted(t.time_s for t in timings)[(len(timings) - 1) // 2]
        for rank, timing in enumerate(timings):
            self.slow.setdefault(rank, []).append(timing.time_s / middle)
        return max(timings, key=lambda timing: timing.time_s)

    def joint(self, call: Call | None, *, effort: Effort | None = None) -> Timing:
        """All ranks time a call that some of them make together, and the slowest of those counts. A rank without a call stands by."""
        chosen = effort or self.scale.effort

        def once() -> Timing:
            own = self.stopwatch.measure(
                call or (lambda _index: None), effort=chosen, together=self.largest, align=self.align
            )
            members: list[Timing] = [t for t in self.gather(None if call is None else own) if t is not None]
            return max(members, key=lambda timing: timing.time_s)

        return self._calmer(once)

    def release(self) -> None:
        """Returns unused memory to the device."""
        if self.on_gpu:
            self.torch.cuda.empty_cache()

    def _calmer(self, measure: Callable[[], Timing]) -> Timing:
        """One measurement, or the calmer of two if something disturbed the first. Every rank sees the same numbers, so all agree."""
        first = measure()
        if not self.on_gpu or first.spread_fraction <= _RESTLESS or first.time_s < _MIN_RETRIED_S:
            return first
        return min(first, measure(), key=lambda timing: timing.spread_fraction)
