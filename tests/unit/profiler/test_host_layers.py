"""Layers by class: which are timed, in which order, and how a layer's time follows from steps of two depths."""

from __future__ import annotations

import sys
import time
from itertools import cycle
from types import SimpleNamespace

import pytest

from profiler.bench.host_layers import LayerClass, Steps, classes_of, layer_times, tasks
from profiler.ranks import Ranks
from profiler.rig import Rig
from profiler.scale import cpu_scale, gpu_scale
from profiler.tasks import NotSupportedError
from profiler.timing import Stopwatch

CPU = SimpleNamespace(type="cpu")


def rig_of(world: int = 1) -> Rig:
    place = Ranks(0, world, 0, world, "none" if world == 1 else "torchrun")
    return Rig(None, CPU, place, cpu_scale(), Stopwatch(None, CPU))


class Clock:
    """A clock that only the steps move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.steps = 0.0, list[int]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def steps_of(
        self, num_layers: int, *, forward_s: float, backward_s: float, slow=(1.0,), ends_s: float = 1.0
    ) -> Steps:
        """A model whose every layer takes so long, times a factor that changes from step to step, with ends of one second."""
        factors = cycle(slow)

        def forward() -> float:
            self.steps.append(num_layers)
            factor = next(factors)
            self.now_s += 1.0 + num_layers * forward_s * factor
            return factor

        def backward(factor: float) -> None:
            self.now_s += 1.0 + num_layers * backward_s * factor

        def finish() -> None:
            self.now_s += 100.0

        return Steps(forward, backward, finish)


def test_a_layer_is_the_difference_of_eight_layers_and_the_ends_drop_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    few, many = (clock.steps_of(count, forward_s=0.25, backward_s=0.5) for count in (4, 12))
    assert layer_times(rig_of(), few, many) == {"forward_s": 0.25, "backward_s": 0.5, "spread": 0.0}


def test_depths_take_turns_after_three_steps_of_each_and_a_slow_host_gets_five_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step takes minutes, so that no round beyond the fewest is begun."""
    clock = Clock(monkeypatch)
    layer_times(rig_of(), *(clock.steps_of(count, forward_s=1.0, backward_s=2.0) for count in (4, 12)))
    assert clock.steps == [4] * 3 + [12] * 3 + 5 * [4, 4, 12, 12]


def test_the_spread_is_that_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the warm-up every round of the deep model is slow by 0, 10, 20, 30 or 40 %; the shallow one is as usual.

    A layer takes (12 x factor - 4) / 8 of its usual time: 1, 1.15, 1.3, 1.45, 1.6. Deciles of five values are 1.06 and 1.54.
    """
    clock = Clock(monkeypatch)
    slow = [1.0] * 3 + [factor for factor in (1.0, 1.1, 1.2, 1.3, 1.4) for _ in range(2)]
    few = clock.steps_of(4, forward_s=1.0, backward_s=3.0)
    sample = layer_times(rig_of(), few, clock.steps_of(12, forward_s=1.0, backward_s=3.0, slow=slow))
    assert (sample["forward_s"], sample["backward_s"]) == pytest.approx((1.3, 3.9))
    assert sample["spread"] == pytest.approx(0.5 * (1.54 - 1.06) / 1.3, rel=1e-2)


def test_twelve_layers_that_take_no_longer_than_four_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    few, many = clock.steps_of(4, forward_s=3.0, backward_s=3.0), clock.steps_of(12, forward_s=1.0, backward_s=1.0)
    with pytest.raises(NotSupportedError, match="too restless"):
        layer_times(rig_of(), few, many)


def test_the_planned_frameworks_layers_come_before_most_curves_and_alone() -> None:
    rig = Rig(None, CPU, Ranks(0, 2, 0, 2, "torchrun"), gpu_scale(budget_s=180.0), Stopwatch(None, CPU))
    found = [(task.value, task.key) for task in tasks(rig, "deepspeed")]
    assert found[:3] == [
        (29, "host/transformers-zero3"), (29, "host/transformers-zero2"), (49, "host/transformers-zero1"),
    ]  # fmt: skip
    assert not any("fsdp2" in key for _, key in found)
    assert tasks(rig, "megatron") == []


def test_without_a_framework_all_classes_come_last() -> None:
    found = tasks(rig_of(2))
    assert {task.value for task in found} == {145}
    assert len({task.key for task in found}) == len(found)
    assert {"host/transformers-fsdp2", "host/transformers-zero3-recompute", "host/liger-ddp"} <= {t.key for t in found}


def test_one_rank_has_nothing_to_shard_with() -> None:
    assert [task.key for task in tasks(rig_of(), "fsdp")] == [
        "host/transformers-autocast", "host/transformers-autocast-recompute",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "packages"),
    [
        (LayerClass("transformers", "fsdp2"), ("transformers",)),
        (LayerClass("liger", "ddp"), ("transformers", "liger_kernel")),
        (LayerClass("transformers", "zero2", recompute=True, engine="deepspeed"), ("transformers", "deepspeed")),
    ],
)
def test_a_class_needs_its_packages(kind: LayerClass, packages: tuple[str, ...]) -> None:
    assert kind.packages == packages
    assert kind in classes_of("deepspeed" if "deepspeed" in packages else "fsdp")


def test_a_missing_package_is_said_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "deepspeed"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotSupportedError, match="transformers and deepspeed is not installed"):
        next(task for task in tasks(rig_of(2), "deepspeed") if task.key == "host/transformers-zero1").run(rig_of(2))


@pytest.mark.parametrize("name", ["transformers-autocast", "transformers-autocast-recompute"])
def test_a_layer_of_transformers_is_timed_on_a_processor(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    device = torch.device("cpu")
    rig = Rig(torch, device, Ranks(0, 1, 0, 1, "none"), cpu_scale(), Stopwatch(torch, device))
    (task,) = [each for each in tasks(rig, "fsdp") if each.key == f"host/{name}"]
    ((sample,),) = task.run(rig).values()
    assert sample["layer_class"] == name
    assert sample["backward_s"] > 0 < sample["forward_s"]
