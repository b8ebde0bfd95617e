"""How right answers are by what a user runs: framework, whose model code, dense or experts, and GPU. The tables of docs/ACCURACY.md.

Only runs that state what matters are counted, or all of a source that has none that do; own machines are priced with their
profile, as a user would price his. Memory is compared by what was read: allocated, reserved or device bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import numpy as np

from benchmarks.accuracy.figures import mape
from benchmarks.accuracy.measured_rows import Floats, Scored
from benchmarks.accuracy.own_runs import own_headlines
from benchmarks.accuracy.state import State
from benchmarks.accuracy.tables import percent, table
from cost_models import presets
from cost_models.frameworks import FRAMEWORKS
from cost_models.specs.training import ModelImpl
from planner.request.job import resolve_job

Stack = tuple[str, str, str]
"""Framework, model code, and "dense" or "experts"."""
NOT_MEASURED = "not measured"
GPU_KINDS: Mapping[str, tuple[str, ...]] = {
    "A100, A800": ("A100", "A800"),
    "H100": ("H100",),
    "H200": ("H200",),
    "B200 to GB300": ("B200", "GB200", "B300", "GB300"),
    "V100": ("V100",),
    "H800, H20, GH200": ("H800", "H20", "GH200"),
    "AMD MI": ("MI",),
    "PCIe cards": ("L40S", "RTX", "A10", "A6000", "A100-PCIe", "H100-PCIe"),
}
"""Kinds of GPU by the beginning of their names; where several begin a name, the longest counts."""


def gpu_kind(name: str) -> str:
    """The kind that a GPU belongs to; "other" for custom ones of no known name."""
    found = [(len(start), kind) for kind, starts in GPU_KINDS.items() for start in starts if name.startswith(start)]
    return max(found)[1] if found else "other"


def stacks() -> list[Stack]:
    """Every stack that can be asked for. Only frameworks that run other people's modules by default have them as a choice."""
    found = []
    for name, facts in FRAMEWORKS.items():
        codes = [code for code in get_args(ModelImpl) if code == "native" or facts.model_impl != "native"]
        found += [(name, code, kind) for code in codes for kind in ("dense", "experts")]
    return found


def by_stack(state: State) -> dict[tuple[Stack, str], list[tuple[Scored, int]]]:
    """The rows of each stack and kind of GPU, as tables with positions in them."""
    found: dict[tuple[Stack, str], list[tuple[Scored, int]]] = defaultdict(list)
    for source in state.sources.values():
        scored = source.priced
        for index, row in enumerate(scored.rows):
            # A row that is refused has no numbers to be right or wrong.
            if not scored.answered[index]:
                continue
            job = resolve_job(row)
            kind = "dense" if job.model.moe is None else "experts"
            stack = (job.training.framework, job.training.model_impl, kind)
            found[stack, gpu_kind(job.cluster.gpu.name)].append((scored, index))
    return found


def time_matrix(state: State) -> str:
    """For each stack and kind of GPU, how many runs were timed, the mean error, and how many lie in their range."""
    rows = by_stack(state)
    kinds = [kind for kind in GPU_KINDS if any(gpu == kind for _, gpu in rows)]
    lines = [[*_stack_cells(stack), *(_time_cell(rows.get((stack, kind), ())) for kind in kinds)] for stack in stacks()]
    return table(["framework", "model code", "layers", *kinds], lines)


# The front page has room for what most people run. The names are those that its readers use.
HEADLINES: Mapping[str, tuple[str, str]] = {
    "Megatron, dense": ("megatron", "dense"),
    "Megatron, experts": ("megatron", "experts"),
    "DeepSpeed, dense": ("deepspeed", "dense"),
    "torchtitan, dense": ("torchtitan", "dense"),
    "FSDP, dense": ("fsdp", "dense"),
}


def headline_table(state: State) -> str:
    """One line for each of a few stacks, whatever their model code, over all GPUs on which runs of them were timed.

    The last lines are own runs of what the recipes export, which are in no source and so in none of the lines before.
    """
    rows = by_stack(state)
    lines = []
    for name, (framework, layers) in HEADLINES.items():
        # Several model codes have runs on one kind of GPU, and every one of them counts.
        found = [(gpu, rows[stack, gpu]) for stack, gpu in rows if (stack[0], stack[2]) == (framework, layers)]
        timed = [(gpu, members) for gpu, members in found if _errors(members, "error").size]
        members = [member for _, each in timed for member in each]
        errors = _errors(members, "error")
        share = f"{100 * _inside(members):.0f} %"
        gpus = ", ".join(sorted({gpu for gpu, _ in timed}))
        lines.append([name, f"{100 * mape(errors):.0f} %", share, str(errors.size), gpus])
    lines += own_headlines()
    return table(["stack", "mean error of a step", "inside the 80 % range", "measured runs", "GPUs"], lines)


def detail_table(state: State) -> str:
    """One line for each stack and kind of GPU that was measured: time, range, memory, and where the runs are from."""
    header = [
        "framework", "model code", "layers", "GPU", "timed runs", "error, %", "worst, %", "inside range, %",
        "memory runs", "memory error, %", "sources",
    ]  # fmt: skip
    lines = []
    for (stack, kind), members in sorted(by_stack(state).items()):
        time, memory = _errors(members, "error"), _errors(members, "memory_error")
        if not time.size + memory.size:
            continue
        inside = _inside(members)
        sources = dict.fromkeys(str(scored.source[index]) for scored, index in members)
        cells = [str(time.size), percent(mape(time)), percent(_worst(time)), percent(inside)]
        cells += [str(memory.size), percent(mape(memory)), ", ".join(sources)]
        lines.append([*_stack_cells(stack), kind, *cells])
    return table(header, lines)


def unmeasured_gpus(state: State) -> str:
    """The GPUs of the presets of which no run was measured, as a sentence's list."""
    measured = {resolve_job(row).cluster.gpu.name for s in state.sources.values() for row in _answered(s.scored)}
    return ", ".join(name for name in presets.names("gpus") if name not in measured)


def _answered(scored: Scored) -> Iterator[Mapping[str, object]]:
    return (row for row, answered in zip(scored.rows, scored.answered, strict=True) if answered)


def _stack_cells(stack: Stack) -> list[str]:
    return list(stack)


def _time_cell(members: Sequence[tuple[Scored, int]]) -> str:
    errors = _errors(members, "error")
    if not errors.size:
        return NOT_MEASURED
    runs = "1 run" if errors.size == 1 else f"{errors.size} runs"
    return f"{100 * mape(errors):.0f} % ({runs}, {100 * _inside(members):.0f} % inside)"


def _errors(members: Sequence[tuple[Scored, int]], name: str) -> Floats:
    found = np.array([getattr(scored, name)[index] for scored, index in members], np.float64)
    return found[~np.isnan(found)]


def _worst(errors: Floats) -> float:
    return float(np.abs(errors).max()) if errors.size else math.nan


def _inside(members: Sequence[tuple[Scored, int]]) -> float:
    held = [
        scored.low_s[index] <= scored.measured_s[index] <= scored.high_s[index]
        for scored, index in members
        if not math.isnan(scored.measured_s[index] + scored.low_s[index])
    ]
    return float(np.mean(held)) if held else math.nan
