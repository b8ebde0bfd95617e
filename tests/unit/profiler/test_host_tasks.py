"""What the host is timed at, on a made-up torch that only notes what is built and run; every call of it takes 0.2 s."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from profiler.bench import host
from profiler.ranks import Ranks
from profiler.rig import DeviceKind, Rig
from profiler.scale import cpu_scale, gpu_scale
from profiler.tasks import Findings
from profiler.timing import Timing

CALL_S = 0.2


class Tensor:
    """A tensor that is only a shape; whatever is done with it gives a tensor again."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def sum(self) -> Tensor:
        return self

    float = sum  # noqa: A003 - torch's name

    def mul_(self, factor: float) -> Tensor:
        assert factor == 0.0  # sums in place stay finite only if they begin with zeros
        return self

    def backward(self) -> None:
        return None


class Module:
    """A module of which the parts count: sizes of linear layers, of norms, and of an encoder."""

    def __init__(self, *sizes: int, **_how: Any) -> None:
        self.sizes, self.seen = sizes, list[tuple[int, ...]]()

    def to(self, **_where: Any) -> Module:
        return self

    float = to

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x.shape)
        return x


class Torch:
    """As much of torch as the tasks of the host use."""

    bfloat16, float32 = "bf16", "fp32"

    def __init__(self) -> None:
        self.stacks: list[Module] = []
        self.encoders: list[Module] = []
        self.added = self.reduced = 0
        self.distributed = SimpleNamespace(all_reduce=self.all_reduce)
        self.nn = SimpleNamespace(
            Module=Module, Linear=Module, RMSNorm=Module, Sequential=self.stack, functional=None, Parameter=Tensor,
            TransformerEncoderLayer=self.encoder,
        )  # fmt: skip
        self.optim = SimpleNamespace(AdamW=lambda _parameters, *, fused: SimpleNamespace(step=lambda: None))
        self.zeros = self.ones = Tensor
        self.get_num_threads = lambda: 6

    def stack(self, *layers: Module) -> Module:
        self.stacks.append(Module(len(layers)))
        self.stacks[-1].layers = layers  # type: ignore[attr-defined]
        return self.stacks[-1]

    def encoder(self, *sizes: int, **_how: Any) -> Module:
        self.encoders.append(Module(*sizes))
        return self.encoders[-1]

    def randn(self, *shape: int, **_how: Any) -> Tensor:
        return Tensor(*shape)

    def all_reduce(self, x: Tensor) -> None:
        (self.reduced,) = x.shape

    def empty_like(self, like: Tensor) -> Tensor:
        return Tensor(*like.shape)

    def add(self, first: Tensor, second: Tensor, *, out: Tensor) -> None:
        self.added = first.shape[0]
        assert first.shape == second.shape == out.shape


class Watch:
    """Runs a call once and says that each took CALL_S; notes how many were asked for."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def host_seconds(self, call: Any, *, calls: int, blocks: int = 5) -> Timing:
        call(0)
        self.calls.append(calls)
        return Timing(CALL_S, 0.0, calls, (CALL_S,) * blocks)


def ran(key: str, kind: DeviceKind = "cuda", *, world: int = 1) -> tuple[dict[str, Any], Torch, list[int]]:
    """The only sample of a task, its torch, and the numbers of calls that were timed."""
    torch, watch = Torch(), Watch()
    scale = gpu_scale(budget_s=300.0) if kind == "cuda" else cpu_scale()
    place = Ranks(0, world, 0, world, "none")
    rig = Rig(torch, SimpleNamespace(type=kind), place, scale, watch)  # type: ignore[arg-type]
    (task,) = [each for each in host.tasks(rig) if each.key == key]
    found: Findings = task.run(rig)
    ((sample,),) = found.values()
    return sample, torch, watch.calls


@pytest.mark.parametrize(("kind", "calls"), [("cuda", 500), ("cpu", 50)])
def test_a_bare_operation_is_so_small_that_only_its_launch_counts(kind: DeviceKind, calls: int) -> None:
    sample, torch, counted = ran("host/ops", kind)
    assert sample == {"raw_op_s": CALL_S}
    assert torch.added == 1024
    assert counted == [calls]


@pytest.mark.parametrize(("kind", "width", "calls"), [("cuda", 512, 8), ("cpu", 128, 2)])
def test_a_stack_is_run_on_64_tokens_of_heads_of_64(kind: DeviceKind, width: int, calls: int) -> None:
    """PyTorch's encoder layer, and four Llama layers in a row: four square projections, and an MLP of four times the width."""
    sample, torch, counted = ran("host/layer", kind)
    (encoder,), (stack,) = torch.encoders, torch.stacks
    assert encoder.sizes == (width, width / 64, 4 * width)
    assert encoder.seen == stack.seen == [(1, 64, width)]
    assert stack.sizes == (4,)
    for layer in stack.layers:  # type: ignore[attr-defined]
        projections = (layer.attention.wq, layer.attention.wk, layer.attention.wv, layer.attention.wo)
        assert [each.sizes for each in projections] == [(width, width)] * 4
        mlp = layer.feed_forward
        assert (mlp.w1.sizes, mlp.w3.sizes, mlp.w2.sizes) == (*[(width, 4 * width)] * 2, (4 * width, width))
        assert (layer.attention_norm.sizes, layer.ffn_norm.sizes) == ((width,), (width,))
    assert counted == [calls, calls]
    # One call runs four layers; a layer is 45 launches forward and 67.5 backward (EQUATIONS.md, F-4).
    assert sample["eager_layer_s"] == CALL_S
    assert sample["plain_layer_s"] == CALL_S / 4
    assert sample["eager_op_s"] == pytest.approx(CALL_S / 4 / 112.5, rel=1e-3)


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2**26), ("cpu", 2**18)])
def test_adam_moves_28_bytes_of_every_parameter_of_every_rank(kind: DeviceKind, count: int) -> None:
    """fp32 parameter, gradient and two moments are read, all but the gradient written: 7 x 4 bytes."""
    sample, _, counted = ran("host/adam", kind, world=4)
    assert (sample["ranks"], sample["parameters"], sample["threads"]) == (4, count, 6)
    assert sample["bytes_per_s"] == pytest.approx(4 * count * 28 / CALL_S, rel=1e-5)
    assert counted == [1]


@pytest.mark.parametrize(("kind", "calls"), [("cuda", 200), ("cpu", 20)])
def test_a_collective_is_so_small_that_only_its_call_counts(kind: DeviceKind, calls: int) -> None:
    """1,024 elements among all ranks; how often it is called decides how sure the time is."""
    sample, torch, counted = ran("host/collective", kind, world=2)
    assert sample == {"collective_call_s": CALL_S}
    assert torch.reduced == 1024
    assert counted == [calls]
