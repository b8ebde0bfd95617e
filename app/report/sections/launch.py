"""For whoever launches the plan: the files with their hashes, what to expect of the first steps, and when to stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from app.plan_cells import seconds
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import gib
from cost_models.errors import MeshwrightError
from planner.export.export import export_row
from planner.export.targets import TARGETS

STEPS = 20
"""Steps after which a run is judged: enough for a median that a few slow steps do not move, and minutes rather than hours."""
WARM_UP = 5
"""First steps that are left out, in which kernels are compiled, buffers grow and connections are made."""
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Band:
    """What a run of the plan as it was priced shows, and from where on it is another one."""

    step_s: tuple[float, float]
    """80 % range of the median step."""
    tokens_per_s: tuple[float, float]
    device_bytes: tuple[float, float]
    """80 % range of the fullest GPU's memory as the driver sees it."""
    stop_above_s: float
    """Upper end of the steps' range."""
    stop_above_bytes: float
    """Upper end of the memory's range, or what the card offers where that is less."""


def expected_band(evaluation: Json, *, tokens_per_step: float) -> Band:
    """What the first steps of a run should show."""
    low, high = evaluation["step_time_range_s"]
    memory = evaluation["memory"]
    return Band(
        step_s=(low, high),
        # The slowest step moves the fewest tokens.
        tokens_per_s=(tokens_per_step / high, tokens_per_step / low),
        device_bytes=tuple(memory["peak_device_range_bytes"]),
        stop_above_s=high,
        stop_above_bytes=min(memory["peak_device_range_bytes"][1], memory["capacity_bytes"]),
    )


def launch(report: Report, plan: PlanView) -> Section:
    training, evaluation = report.request["training"], plan.evaluation
    band = expected_band(evaluation, tokens_per_step=float(training["seq_length"]) * training["global_batch_size"])
    targets = [
        _target(report, plan, name) for name, target in TARGETS.items() if training["framework"] in target.frameworks
    ]
    judged_s = STEPS * evaluation["step_time_s"]
    memory = evaluation["memory"]
    return section(
        "launch",
        "To launch it",
        rank=plan.rank,
        targets=targets,
        framework=training["framework"],
        step=f"{seconds(band.step_s[0])} to {seconds(band.step_s[1])} s",
        tokens=f"{band.tokens_per_s[0]:,.0f} to {band.tokens_per_s[1]:,.0f}",
        device=f"{gib(band.device_bytes[0])} to {gib(band.device_bytes[1])} GiB",
        allocated=f"{gib(memory['peak_allocated_bytes'])} GiB",
        reserved=f"{gib(memory['peak_reserved_bytes'])} GiB",
        stop_s=seconds(band.stop_above_s),
        stop_value=f"{band.stop_above_s:.6g}",
        stop_gib=gib(band.stop_above_bytes),
        stop_bytes=f"{band.stop_above_bytes:.0f}",
        fast_s=seconds(band.step_s[0]),
        is_card=band.stop_above_bytes < memory["peak_device_range_bytes"][1],
        steps=STEPS,
        warm_up=WARM_UP,
        judged=_duration(judged_s),
        gpu_hours=f"{judged_s * evaluation['num_gpus_used'] / _HOUR_S:,.3g}",
        addresses=_addresses(report, plan),
    )


def _target(report: Report, plan: PlanView, name: str) -> dict[str, Any]:
    """The files that a target's writer makes of the plan, or why it cannot say it."""
    try:
        files = export_row(
            plan.row, name, predicted=plan.evaluation, extra=report.calibrations, allow_files=report.allow_files
        )
    except MeshwrightError as refusal:
        return {"name": name, "files": [], "refusal": refusal.message, "hint": refusal.hint}
    listed = [
        {
            "path": file.path,
            "bytes": len(file.content.encode()),
            "sha256": sha256(file.content.encode()).hexdigest(),
        }
        for file in files
    ]
    return {"name": name, "files": listed, "refusal": "", "hint": ""}


def _addresses(report: Report, plan: PlanView) -> dict[str, str]:
    """Where a service hands the files out, by target; empty in a file, which has the command instead."""
    if report.address is None:
        return {}
    # As archives, from an address of the pages: a link of the API would need a header to give one, and a key that pages do not have.
    return {name: f"{report.link(plan.rank)}/exports/{name}" for name in TARGETS}


def _duration(duration_s: float) -> str:
    units: Iterator[tuple[str, float]] = iter((("hours", _HOUR_S), ("minutes", 60.0)))
    return next(
        (f"{duration_s / unit_s:.2g} {name}" for name, unit_s in units if duration_s >= 2 * unit_s),
        f"{duration_s:.0f} seconds",
    )
