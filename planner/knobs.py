"""Knobs that no formula prices, by framework: which a plan has, what they default to, and how the framework spells them.

A knob belongs here where changing it changes neither the split nor the numerics, only how communication is cut up, how far
ahead parameters are fetched, or how much optimizer state waits on the host. Measured steps decide; see `planner.search.bayes`.
torchtitan and FSDP2 have none in their configuration: FSDP2 prefetches one module ahead unless code says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.errors import NotExpressibleError
from planner.search.bayes import Knob

Strategy = Mapping[str, Any]
DECADE = 10.0
"""How far to either side of its default a knob is searched: of sizes it is the order of magnitude that matters."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One knob of one framework."""

    name: str
    """As the framework spells it: an argument, or a key with dots reaching inside."""
    meaning: str
    unit: Literal["parameters", "MB", "fraction"]
    default: Callable[[Strategy], float]
    exists: Callable[[Strategy], bool]
    """Whether the setting does anything under this strategy."""
    source: str
    most: float = DECADE
    """Largest value tried, as a multiple of the default."""


def _always(value: float) -> Callable[[Strategy], float]:
    return lambda _: value


def _shards(*stages: int) -> Callable[[Strategy], bool]:
    return lambda strategy: strategy["zero"] in stages and _replicas(strategy) > 1


def _replicas(strategy: Strategy) -> int:
    return int(strategy["dp"] * strategy["cp"])


def _reduces_in_buckets(strategy: Strategy) -> bool:
    return strategy["zero"] < 2 and _replicas(strategy) > 1 and bool(strategy["overlap"]["grad_reduce"])


def _offloads(strategy: Strategy) -> bool:
    return bool(strategy["offload"]["optimizer_fraction"] > 0)


_ZERO = "deepspeed/runtime/zero/config.py (DeepSpeedZeroConfig)"
_GATHER_BYTES = (
    "5e8 takes some 9 GB beside the model (Hugging Face's DeepSpeed guide), so no more than twice that is tried"
)
_DEEPSPEED = (
    Flag(
        "zero_optimization.reduce_bucket_size", "gradients reduced at a time", "parameters",
        _always(5e8), _shards(1, 2, 3), f"{_ZERO}; {_GATHER_BYTES}", most=2.0,
    ),
    Flag(
        "zero_optimization.allgather_bucket_size", "updated parameters gathered at a time", "parameters",
        _always(5e8), _shards(1, 2), f"{_ZERO}; {_GATHER_BYTES}", most=2.0,
    ),
    Flag(
        "zero_optimization.stage3_prefetch_bucket_size", "parameters fetched ahead of use", "parameters",
        _always(5e7), _shards(3), _ZERO,
    ),
    Flag(
        "zero_optimization.stage3_param_persistence_threshold", "parameters below this size are not sharded",
        "parameters", _always(1e5), _shards(3), _ZERO,
    ),
    Flag(
        "zero_optimization.stage3_max_live_parameters", "gathered parameters kept before they are freed",
        "parameters", _always(1e9), _shards(3), _ZERO, most=2.0,
    ),
    Flag(
        "zero_optimization.offload_optimizer.ratio", "share of the optimizer state on the host", "fraction",
        lambda strategy: float(strategy["offload"]["optimizer_fraction"]),
        lambda strategy: strategy["zero"] == 3 and _offloads(strategy),
        "deepspeed/runtime/zero/offload_config.py (ratio, stage 3 alone)",
    ),
)  # fmt: skip
FLAGS: Mapping[str, tuple[Flag, ...]] = {
    "megatron": (
        Flag(
            "--ddp-bucket-size", "size of a gradient bucket", "parameters",
            lambda strategy: max(40e6, 1e6 * _replicas(strategy)), _reduces_in_buckets,
            "megatron/core/distributed/distributed_data_parallel_config.py (bucket_size); without overlap there is one bucket",
        ),
        Flag(
            "--optimizer-offload-fraction", "share of the optimizer state on the host", "fraction",
            lambda strategy: float(strategy["offload"]["optimizer_fraction"]), _offloads,
            "megatron/training/arguments.py, with --optimizer-cpu-offload (core 0.12)",
        ),
    ),
    "deepspeed": _DEEPSPEED,
    "megatron-deepspeed": _DEEPSPEED,
    "nanotron": (
        Flag(
            "model.ddp_bucket_cap_mb", "size of a gradient bucket", "MB", _always(25.0),
            lambda strategy: strategy["zero"] == 0 and strategy["dp"] > 1,
            "nanotron/trainer.py (init_model; with ZeRO-1 and fp32 accumulation it wraps nothing in buckets)",
        ),
    ),
}  # fmt: skip
"""What can be set, by framework; a range is the search's, within what the framework accepts."""


def knobs_of(framework: str, strategy: Strategy) -> dict[str, Knob]:
    """Ranges of the knobs that do something under a strategy, by the framework's name of each.

    Raises:
        NotExpressibleError: there is none.
    """
    found = {flag.name: _range(flag, strategy) for flag in FLAGS.get(framework, ()) if flag.exists(strategy)}
    if not found:
        message = f"{framework} has no knob to tune under this plan"
        known = ", ".join(flag.name for flag in FLAGS.get(framework, ())) or "none in its configuration"
        raise NotExpressibleError(message, hint=f"Known for {framework}: {known}. Choose another plan of the response.")
    return found


def default_values(framework: str, strategy: Strategy) -> dict[str, float | int]:
    """What the framework takes where nothing is set: the first values to measure."""
    return {
        flag.name: flag.default(strategy) if flag.unit == "fraction" else round(flag.default(strategy))
        for flag in FLAGS[framework]
        if flag.exists(strategy)
    }


def meanings(framework: str) -> dict[str, str]:
    """What each knob of a framework is, with its unit."""
    return {flag.name: f"{flag.meaning} ({flag.unit})" for flag in FLAGS.get(framework, ())}


def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the framework reads them: a list of `arguments`, or a nested `config`."""
    arguments: list[str] = []
    config: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("--"):
            arguments += [name, str(value)]
            continue
        target = config
        *parents, last = name.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return {"arguments": arguments} if arguments else {"config": config}


def _range(flag: Flag, strategy: Strategy) -> Knob:
    if flag.unit == "fraction":
        return Knob(low=0.0, high=1.0, is_whole=False)
    default = flag.default(strategy)
    return Knob(low=max(1.0, default // DECADE), high=default * flag.most, is_log=True)
