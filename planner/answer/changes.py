"""Changes to a strategy that needs too much memory, the mildest first: single ones, then several together.

A single change sets one field of the strategy, or the kind of optimizer. Combinations take each field at its strongest value,
those with the fewest changes first. Whether a change is legal and makes the strategy fit is judged in
`planner.answer.explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

from cost_models.job import Job
from cost_models.layers.linears import ALL_LINEAR, preset_modules
from cost_models.specs.adapter import Adapter, QuantizedBase
from cost_models.specs.training import Training
from planner.rules.rule import divisors

Strategy = dict[str, Any]
Apply = Callable[[Strategy], Strategy]


@dataclass(frozen=True, slots=True)
class Change:
    """One change: its name in words, and the strategy that it makes."""

    name: str
    strategy: Strategy
    edit: str = ""
    """What changes in `training`, not in the strategy: one of `EDITS`; nothing where it is empty."""

    def job(self, job: Job) -> Job:
        """The job after this change."""
        if not self.edit:
            return job
        return replace(job, training=EDITS[self.edit](job))


EIGHT_BIT = "training.optimizer adam-8bit"
_ADAPTER_RANK = 16
ADAPTER = f"training.adapter {{rank: {_ADAPTER_RANK}}}"
QUANTIZED = f"training.adapter {{rank: {_ADAPTER_RANK}, quantized_base: nf4}}"


def _adapted(job: Job, base: QuantizedBase) -> Training:
    adapter = Adapter(_ADAPTER_RANK, preset_modules(job.model, ALL_LINEAR), base)
    return replace(job.training, adapter=adapter)


EDITS: Mapping[str, Callable[[Job], Training]] = {
    EIGHT_BIT: lambda job: replace(job.training, optimizer="adam-8bit"),
    ADAPTER: lambda job: _adapted(job, "none"),
    QUANTIZED: lambda job: _adapted(job, "nf4"),
}
"""The training job after each change of it."""


def adapter_changes(job: Job, strategy: Strategy) -> Iterator[Change]:
    """Training adapters instead of every weight, which no change of the strategy makes needless; alone and with what is strongest."""
    training, choices = job.training, job.framework.choices
    if (
        training.adapter is not None
        or training.frozen
        or not choices.adapters
        or not preset_modules(job.model, ALL_LINEAR)
    ):
        return
    lean = [("", strategy), (" and recompute full", _recomputing(strategy, "full"))]
    for name, apply in _shardings(job, strategy)[-1:]:
        lean.append((f", recompute full and {name}", apply(_recomputing(strategy, "full"))))
    if strategy["micro_batch_size"] > 1:
        lean.append(
            (f"{lean[-1][0].replace(' and ', ', ')} and micro_batch_size 1", {**lean[-1][1], "micro_batch_size": 1})
        )
    edits = [ADAPTER, *([QUANTIZED] if "nf4" in choices.quantized_bases else [])]
    for more, changed in lean:
        yield from (Change(edit + more, changed, edit) for edit in edits)


def changes(job: Job, strategy: Strategy) -> Iterator[Change]:
    """Every change that is tried, the mildest first; some of them are illegal."""
    yield from single_changes(job, strategy)
    yield from combined_changes(job, strategy)
    yield from adapter_changes(job, strategy)


def single_changes(job: Job, strategy: Strategy) -> Iterator[Change]:
    """The changes of one thing, the mildest first."""
    # Mild means cheap for the user: what keeps the data on the GPU comes before an optimizer with other mathematics, and
    # offload, which costs time on the host link, comes last.
    yield from (Change(name, changed) for name, changed in _single_fields(job, strategy))
    if job.training.optimizer == "adam":
        yield Change(EIGHT_BIT, strategy, EIGHT_BIT)
    yield from (Change(name, apply(strategy)) for name, apply in _offloads(strategy))


def _single_fields(job: Job, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """The changes of a single field that keep everything on the GPU, as names and strategies."""
    # In the order of what they cost: a smaller micro-batch, sharding, recomputation, and last another split of the GPUs.
    for size in sorted(divisors(strategy["micro_batch_size"]), reverse=True)[1:]:
        yield f"micro_batch_size {size}", {**strategy, "micro_batch_size": size}
    if strategy["tp"] > 1 and not strategy["sequence_parallel"]:
        yield "sequence_parallel true", {**strategy, "sequence_parallel": True}
    yield from ((name, apply(strategy)) for name, apply in _shardings(job, strategy))
    for mode in ("selective", "full"):
        if mode != strategy["recompute"] and strategy["recompute"] != "full":
            yield f"recompute {mode}", _recomputing(strategy, mode)
    if strategy["recompute_method"] == "block":
        yield "recompute full, every layer", _recomputing(strategy, "full")
    if strategy["vpp"] > 1:
        yield "vpp 1", {**_without(strategy, "layers_per_stage", "schedule"), "vpp": 1}
    for name in ("pp", "tp", "cp"):
        yield from _larger_degree(strategy, name)


def _larger_degree(strategy: Strategy, name: str) -> Iterator[tuple[str, Strategy]]:
    """The next three multiples of a degree, whose ranks are taken from the data-parallel ones so that the GPUs stay the same."""
    for factor in divisors(strategy["dp"])[1:4]:
        degree, replicas = strategy[name] * factor, strategy["dp"] // factor
        plain = _without(strategy, "layers_per_stage", "zero_shard_size", "zero_param_shard_size", "schedule")
        changed = {**plain, name: degree, "dp": replicas, "vpp": 1}
        yield f"{name} {degree} (dp {replicas})", {**changed, "sequence_parallel": changed["tp"] > 1}


def _offloads(strategy: Strategy) -> list[tuple[str, Apply]]:
    """What can move to the host, the least first. The rules decide later which framework can do which."""
    had = strategy["offload"]
    tried: list[dict[str, Any]] = []
    layers = max(strategy["layers_per_stage"]) - 1
    if layers > had["activation_layers"]:
        tried.append({"activation_layers": layers})
    tried += [{"optimizer_fraction": part} for part in (0.5, 1) if part > had["optimizer_fraction"]]
    if not had["parameters"]:
        tried.append({"optimizer_fraction": 1, "parameters": True})
    return [(_named(each), _offloading(each)) for each in tried]


def _named(offload: dict[str, Any]) -> str:
    """The name of an offload, such as "offload {optimizer_fraction: 1, parameters: true}"."""
    spelled = {True: "true", False: "false"}
    inside = ", ".join(
        f"{name}: {spelled[value] if isinstance(value, bool) else value}" for name, value in offload.items()
    )
    return f"offload {{{inside}}}"


def _offloading(offload: dict[str, Any]) -> Apply:
    return lambda strategy: {**strategy, "offload": {**strategy["offload"], **offload}}


def combined_changes(job: Job, strategy: Strategy) -> Iterator[Change]:
    """Combinations of two or more changes, the fewest changes first."""
    offloads = _offloads(strategy)
    parts: list[tuple[str, Apply]] = []
    if strategy["micro_batch_size"] > 1:
        parts.append(("micro_batch_size 1", lambda s: {**s, "micro_batch_size": 1}))
    if strategy["tp"] > 1 and not strategy["sequence_parallel"]:
        parts.append(("sequence_parallel true", lambda s: {**s, "sequence_parallel": True}))
    parts += _shardings(job, strategy)[-1:]
    if strategy["recompute"] != "full" or strategy["recompute_method"] == "block":
        parts.append(("recompute full", lambda s: _recomputing(s, "full")))
    if job.training.optimizer == "adam":
        parts.append((EIGHT_BIT, dict))
    parts += offloads
    # Half or all of the optimizer on the host, or its state in 8 bits: two of these at once make no sense.
    alternatives = {name for name, _ in offloads if "optimizer_fraction" in name} | {EIGHT_BIT}
    for count in range(2, len(parts) + 1):
        for chosen in combinations(parts, count):
            names = [name for name, _ in chosen]
            if len(alternatives.intersection(names)) > 1:  # the optimizer state can be held in only one of these ways
                continue
            changed = dict(strategy)
            for _, apply in chosen:
                changed = apply(changed)
            yield Change(" and ".join(names), changed, EIGHT_BIT if EIGHT_BIT in names else "")


def _shardings(job: Job, strategy: Strategy) -> list[tuple[str, Apply]]:
    """What leaves less of the model states on a rank, the strongest last: reducing gradients at once, higher ZeRO stages."""
    found: list[tuple[str, Apply]] = []
    if strategy["zero"] >= 2 and strategy["grad_sync"] == "last":
        found.append(("grad_sync each", lambda changed: {**changed, "grad_sync": "each"}))
    higher = [stage for stage in job.framework.choices.zero if stage > strategy["zero"]]
    return found + [(f"zero {stage}", partial(_with_zero, stage=stage)) for stage in higher]


def _with_zero(strategy: Strategy, stage: int) -> Strategy:
    return {**strategy, "zero": stage, "grad_sync": "each" if stage >= 2 else "last"}


def _recomputing(strategy: Strategy, mode: str) -> Strategy:
    plain = _without(strategy, "recompute_method", "recompute_num_layers", "recompute_modules", "recompute_per_stage")
    return {**plain, "recompute": mode}


def _without(strategy: Strategy, *names: str) -> Strategy:
    return {key: value for key, value in strategy.items() if key not in names}
