"""Host time of one decoder layer by class: whose code the layer is, and which runtime stands around it.

Whole training steps of 4 and of 12 layers on 64 tokens, which the host decides, in turns. The difference over eight layers is a
layer's time; embedding, head, loss and what a step pays once drop out. Loops of single operations do not show it: a layer under
ZeRO-3 takes its host five times as long as a plain one.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any

from cost_models.frameworks import FRAMEWORKS
from profiler.rig import Rig
from profiler.tasks import Findings, NotSupportedError, Task, rounded
from profiler.timing import now_s

_LENGTH, _HEAD_WIDTH, _VOCABULARY = 64, 64, 1024
"""So few tokens that every kernel ends before the host has launched the next one."""
_FEW, _MANY = 4, 12
_WARM_STEPS, _STEPS = 3, 2
_ROUNDS, _FEWEST_ROUNDS, _ROUNDS_S = 10, 5, 5.0
"""Rounds of `_STEPS` steps of either depth; after so many seconds no round begins, but for the fewest whose deciles mean something."""


_ALONE = ("plain", "autocast")
"""Runtimes of a single rank."""


@dataclass(frozen=True, slots=True)
class LayerClass:
    """A class of layers: transformers' own modules or with Liger's kernels, what is around them, and whether they are recomputed."""

    code: str
    runtime: str
    recompute: bool = False
    engine: str = ""
    """Package of the runtime, where it is none of PyTorch's."""

    @property
    def name(self) -> str:
        """Its key in the document, such as `transformers-fsdp2-recompute`."""
        return f"{self.code}-{self.runtime}" + ("-recompute" if self.recompute else "")

    @property
    def packages(self) -> tuple[str, ...]:
        """What must be installed to run it."""
        own = ("transformers", "liger_kernel") if self.code == "liger" else ("transformers",)
        return (*own, self.engine) if self.engine else own

    @property
    def needs_ranks(self) -> bool:
        """Whether the runtime does nothing with a single rank."""
        return self.runtime not in _ALONE


@dataclass(frozen=True, slots=True)
class Steps:
    """A model whose training step can be timed in parts."""

    forward: Callable[[], Any]
    backward: Callable[[Any], Any]
    finish: Callable[[], Any]
    """What ends the step and is not timed."""
    close: Callable[[], Any] = lambda: None


_EXPECTED_S = {"zero3": 12.0, "fsdp2": 7.0}
_LIGER_S = 4.0
"""Seconds to compile Liger's kernels."""
_FIRST, _THEN, _LAST = 29, 49, 145
"""Places in the order of value: of the planned framework's first two classes, of its others, and of all where none is planned."""


def tasks(rig: Rig, framework: str | None = None) -> list[Task]:
    """The planned framework's classes, the first two before most of the machine's curves; without one, all classes, and last."""
    if framework is None:
        wanted = tuple(dict.fromkeys(each for name in FRAMEWORKS for each in classes_of(name)))
        places = [_LAST] * len(wanted)
    else:
        wanted = classes_of(framework)
        places = [_FIRST if index < 2 else _THEN for index in range(len(wanted))]
    return [
        Task(
            f"host/{each.name}",
            place,
            _EXPECTED_S.get(each.runtime, 5.0) + _LIGER_S * (each.code == "liger"),
            partial(_task, kind=each),
            f"host cost of a layer, {each.name.replace('-', ' ')}",
        )
        for place, each in zip(places, wanted, strict=True)
        if rig.place.world > 1 or not each.needs_ranks
    ]


def classes_of(framework: str) -> tuple[LayerClass, ...]:
    """The classes of a framework's layers, those that decide most of its plans first."""
    named = FRAMEWORKS[framework].layer_runtimes
    around = (*named.sharded, *named.hooked)
    runtimes = [(each, False) for each in (*around, *named.nothing)]
    runtimes += [(each, True) for each in (*around, *named.nothing[:1])]
    chosen = [("transformers", *each) for each in runtimes] + [("liger", each, False) for each in around]
    return tuple(LayerClass(*each, engine="" if each[1] in _ALONE else named.package) for each in chosen)


def _task(rig: Rig, *, kind: LayerClass) -> Findings:
    missing = [package for package in kind.packages if find_spec(package) is None]
    # Where one rank lacks a package the others must not begin, or they would wait for it in a collective.
    if rig.largest(float(bool(missing))):
        raise NotSupportedError(f"{' and '.join(missing) or 'a package of another rank'} is not installed")
    # These packages greet on standard output, which belongs to the user's data.
    try:
        with redirect_stdout(sys.stderr), _patched(kind):
            few, many = (build(rig, kind, num_layers) for num_layers in (_FEW, _MANY))
            sample = layer_times(rig, few, many)
            for steps in (many, few):
                steps.close()
    # They check versions, compilers and arguments in every way that Python has.
    except (ImportError, AttributeError, TypeError, ValueError, AssertionError, LookupError, OSError) as error:
        raise NotSupportedError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}") from error
    return {"host_layers": [{"layer_class": kind.name, **sample}]}


# --- timing -----------------------------------------------------------------------------------------------------------


def layer_times(rig: Rig, few: Steps, many: Steps) -> dict[str, float]:
    """Host seconds of a layer's forward and backward on the slowest rank, and their spread.

    Returns:
        `forward_s` and `backward_s`, medians over rounds, and `spread`: half of what lies between a round's tenth and ninetieth
        percentile, over their sum.

    Raises:
        NotSupportedError: a step of twelve layers took no longer than one of four.
    """
    gc.collect()
    gc.freeze()
    gc.disable()  # as in all host tasks: a collection in the middle of a step is no part of a layer
    try:
        for steps in (few, many):
            for _ in range(_WARM_STEPS):
                _step(rig, steps)
        rounds = _rounds(rig, few, many)
    finally:
        gc.enable()
        gc.unfreeze()
    forward_s, backward_s = (median(each[side] for each in rounds) for side in (0, 1))
    total = [sum(each) for each in rounds]
    deciles = quantiles(total, n=10, method="inclusive")
    own = (forward_s + backward_s, forward_s, backward_s, 0.5 * (deciles[-1] - deciles[0]))
    whole, forward_s, backward_s, half = max(rig.gather(own))
    if min(forward_s, backward_s) <= 0:
        raise NotSupportedError("this host is too restless: twelve layers took no longer than four")
    return {
        "forward_s": rounded(forward_s, 4),
        "backward_s": rounded(backward_s, 4),
        "spread": rounded(half / whole, 3),
    }


def _rounds(rig: Rig, few: Steps, many: Steps) -> list[tuple[float, float]]:
    """Each round's seconds of a layer's forward and backward."""
    began, rounds = now_s(), list[tuple[float, float]]()
    for index in range(_ROUNDS):
        # Rank 0 decides, because all of them must make the same steps.
        if rig.decide(int(index >= _FEWEST_ROUNDS and now_s() - began > _ROUNDS_S)):
            break
        # In turns, so that a host that slows down slows down both depths.
        short, long = ([_step(rig, steps) for _ in range(_STEPS)] for steps in (few, many))
        both = [
            (median(step[side] for step in long) - median(step[side] for step in short)) / (_MANY - _FEW)
            for side in (0, 1)
        ]
        rounds.append((both[0], both[1]))
    return rounds


def _step(rig: Rig, steps: Steps) -> tuple[float, float]:
    """Host seconds of one step's forward and backward."""
    rig.stopwatch.synchronize()
    rig.align()
    begin = now_s()
    loss = steps.forward()
    middle = now_s()
    # Without a stop between them: the host that goes on from one into the other is what a training step has.
    steps.backward(loss)
    end = now_s()
    steps.finish()
    return middle - begin, end - middle


# --- models -----------------------------------------------------------------------------------------------------------


def build(rig: Rig, kind: LayerClass, num_layers: int) -> Steps:
    """A Llama of transformers with that many layers, with its runtime around it."""
    torch = rig.torch
    # FSDP2 and autocast start from fp32 parameters, all others hold bf16.
    masters = kind.runtime in ("fsdp2", "ddp", "autocast")
    model = _llama(rig, num_layers).to(dtype=torch.float32 if masters else rig.half)
    if kind.recompute:
        _recompute(model)
    model.train()
    tokens = torch.randint(0, _VOCABULARY, (1, _LENGTH), device=rig.device)
    if kind.engine:
        engine = _engine(rig, model, stage=int(kind.runtime[-1]))
        return Steps(lambda: engine(input_ids=tokens, labels=tokens).loss, engine.backward, engine.step, engine.destroy)
    if kind.runtime == "fsdp2":
        _shard(rig, model)
    runner = model
    if kind.runtime == "ddp":
        devices = [rig.device.index] if rig.on_gpu else None
        runner = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def cast() -> AbstractContextManager[Any]:
        if kind.runtime in ("ddp", "autocast"):
            return torch.autocast(rig.device.type, dtype=rig.half)  # type: ignore[no-any-return]
        return nullcontext()

    def forward() -> Any:
        with cast():
            return runner(input_ids=tokens, labels=tokens).loss

    return Steps(forward, lambda loss: loss.backward(), lambda: model.zero_grad(set_to_none=True))


def _llama(rig: Rig, num_layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    width = rig.scale.layer_width
    heads = width // _HEAD_WIDTH
    config = LlamaConfig(
        hidden_size=width, num_hidden_layers=num_layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        head_dim=_HEAD_WIDTH, intermediate_size=2 * width, vocab_size=_VOCABULARY, use_cache=False,
        tie_word_embeddings=False, attn_implementation="sdpa",
    )  # fmt: skip
    with rig.device:
        return LlamaForCausalLM(config)


def _recompute(model: Any) -> None:
    """Full recomputation of every layer, as transformers' Trainer asks for it."""
    how = {"use_reentrant": False}
    # transformers 5.17 has the older name alone, 5.24 warns of it.
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def _shard(rig: Rig, model: Any) -> None:
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise NotSupportedError("this PyTorch has no FSDP2 (fully_shard)") from error
    policy = MixedPrecisionPolicy(param_dtype=rig.half, reduce_dtype=rig.torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def _engine(rig: Rig, model: Any, *, stage: int) -> Any:
    """DeepSpeed's engine with PyTorch's AdamW, for which no extension is compiled."""
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.init_distributed("nccl" if rig.on_gpu else "gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


@contextmanager
def _patched(kind: LayerClass) -> Iterator[None]:
    """Liger's kernels in transformers' Llama, and its own modules again afterwards."""
    if kind.code != "liger":
        yield
        return
    from transformers.models.llama import modeling_llama

    name = modeling_llama.__name__
    classes = [each for each in vars(modeling_llama).values() if isinstance(each, type) and each.__module__ == name]
    before = [(owner, dict(vars(owner))) for owner in (modeling_llama, *classes)]
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
        yield
    finally:
        for owner, attributes in before:
            for attribute, value in attributes.items():
                if vars(owner).get(attribute) is not value:
                    setattr(owner, attribute, value)
