"""How right answers are on our own runs that are no source of the scores: adapters, Hugging Face's modules, exported launches.

All ran on one or two H200. They are priced as a user would who has no profile, and as one who has that of this kind of machine.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.accuracy.figures import mape
from benchmarks.accuracy.measured_rows import Floats, Scored, evaluations, score_rows
from benchmarks.accuracy.tables import percent, table
from benchmarks.record import ROOT
from planner.request.job import resolve_job

FOLDER = ROOT / "data" / "measured_h200"
FILES = ("hugging_face_runs.jsonl", "lora_runs.jsonl", "exported_runs.jsonl")
PROFILE = "h200x2-nvls-off-2026-11-28"
Stack = tuple[str, str, str, str]
"""Framework, model code, what is trained, and "dense" or "experts"."""
_HEADER = [
    "framework", "model code", "trained", "layers", "runs", "error, %", "inside range, %", "with a profile: error, %",
    "inside range, %", "memory error, %",
]  # fmt: skip


def own_runs() -> list[dict[str, Any]]:
    """The rows of all files, in their order."""
    return [json.loads(line) for name in FILES for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def own_runs_table() -> str:
    """One line for each framework, model code, what is trained, and kind of layers."""
    rows = own_runs()
    plain, profiled = (score_rows(rows, evaluations(rows, calibration=each)) for each in (None, PROFILE))
    lines = []
    for stack, indices in sorted(_members(rows).items()):
        at = np.array(indices)
        cells = [percent(mape(plain.error[at])), percent(_inside(plain, at))]
        cells += [
            percent(mape(profiled.error[at])),
            percent(_inside(profiled, at)),
            percent(mape(_known(profiled.memory_error[at]))),
        ]
        lines.append([*stack, str(len(at)), *cells])
    return table(_HEADER, lines)


# The front page's recipes export these stacks, so a reader who follows one finds its error beside those of large public runs.
HEADLINES: Mapping[str, Stack] = {
    "DeepSpeed, Hugging Face's models, own runs": ("deepspeed", "transformers", "everything", "dense"),
    "FSDP, Hugging Face's models, own runs": ("fsdp", "transformers", "everything", "dense"),
    "FSDP, QLoRA, own runs": ("fsdp", "transformers", "adapters on nf4", "dense"),
}


def own_headlines() -> list[list[str]]:
    """Lines of the front page: name, mean error, share inside the range, runs and GPU, priced without a profile."""
    rows = own_runs()
    scored, members = score_rows(rows, evaluations(rows, calibration=None)), _members(rows)
    lines = []
    for name, stack in HEADLINES.items():
        at = np.array(members[stack])
        gpus = sorted({resolve_job(rows[index]).cluster.gpu.name.split("-")[0] for index in at})
        error, inside = (f"{100 * share:.0f} %" for share in (mape(scored.error[at]), _inside(scored, at)))
        lines.append([name, error, inside, str(len(at)), ", ".join(gpus)])
    return lines


def _members(rows: Sequence[dict[str, Any]]) -> dict[Stack, list[int]]:
    members: dict[Stack, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        members[_stack(row)].append(index)
    return members


def _stack(row: dict[str, Any]) -> Stack:
    job = resolve_job(row)
    adapter = job.training.adapter
    trained = "everything" if adapter is None else "adapters"
    if adapter is not None and adapter.quantized_base != "none":
        trained = f"adapters on {adapter.quantized_base}"
    return (job.training.framework, job.training.model_impl, trained, "dense" if job.model.moe is None else "experts")


def _inside(scored: Scored, at: Any) -> float:
    held = (scored.low_s <= scored.measured_s) & (scored.measured_s <= scored.high_s)
    return float(held[at].mean())


def _known(errors: Floats) -> Floats:
    return errors[~np.isnan(errors)]
