"""How far the losses of each parallel form are from those of one process, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trial_forms.forms import kind


def off(found: Mapping[str, Any], alone: Mapping[str, Any]) -> tuple[float, float]:
    """By how much the losses of all steps differ at most, and by which fraction their gradient norms do."""
    losses = max(abs(a - b) for a, b in zip(found["losses"], alone["losses"], strict=True))
    norms = max(abs(a / b - 1.0) for a, b in zip(found["norms"], alone["norms"], strict=True))
    return losses, norms


def table(jobs: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each form: its strategy, losses and norms of all steps, and how far they are from one process's, or its error."""
    by_name = {job["name"]: answer for job, answer in zip(jobs, answers, strict=True)}
    return [_line(job, answer, by_name[kind(job["name"])]) for job, answer in zip(jobs, answers, strict=True)]


def _line(job: Mapping[str, Any], answer: Mapping[str, Any], alone: Mapping[str, Any]) -> dict[str, Any]:
    about = {"form": job["name"], "world": job["world"], "strategy": job["row"]["strategy"]}
    if "error" in answer or "error" in alone:
        return {**about, "error": answer.get("error", "there is nothing to compare it with")[-1500:]}
    losses, norms = off(answer, alone)
    return {
        **about,
        "loss_off": float(f"{losses:.3g}"),
        "norm_off": float(f"{norms:.3g}"),
        "losses": [float(f"{loss:.7g}") for loss in answer["losses"]],
        "norms": [float(f"{norm:.7g}") for norm in answer["norms"]],
        "cpu_s": round(answer["cpu_s"], 2),
    } | ({"peak_bytes": answer["peak_bytes"]} if answer["peak_bytes"] else {})


def failures(lines: Sequence[Mapping[str, Any]], *, loss: float, norm: float) -> dict[str, str]:
    """The forms that failed, or are farther off than is let pass: why, by name."""
    found = {}
    for line in lines:
        if "error" in line:
            found[line["form"]] = line["error"]
        elif not (line["loss_off"] < loss and line["norm_off"] < norm):
            found[line["form"]] = f"losses are {line['loss_off']:.2g} off, norms {line['norm_off']:.2g}"
    return found
