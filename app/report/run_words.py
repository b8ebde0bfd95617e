"""What is said of a whole run and of what could hide communication, on the terminal and on pages alike."""

from __future__ import annotations

from collections.abc import Iterator

from app.plan_cells import parameter_count, seconds
from app.report.report import Json
from cost_models.units import DAY_S, GB, HOUR_S

COMMUNICATION = {
    "dp": "gradients between replicas",
    "zero3": "parameters gathered for a layer",
    "tp": "activations between tensor-parallel ranks",
    "pp": "activations to the next stage",
}
"""What each condition is about."""
CONDITION_COLUMNS = ("communication", "ranks", "GB/s", "takes", "verdict", "hidden from")
VARIANT_COLUMNS = ("saved every", "spare nodes", "goodput", "days", "GPU-hours", "cost")
CONDITIONS_NOTE = (
    "Takes: its time over that of the computation beside it, were that at the GPU's dense peak; up to 1 it can be hidden. "
    "What a framework does hide is in the times of the step."
)
_MINUTE_S = 60.0


def duration(time_s: float) -> str:
    """Seconds as people say them, such as "60 s", "19.3 min", "5.20 hours" or "32.1 days"."""
    if time_s < 2 * _MINUTE_S:
        return f"{seconds(time_s)} s"
    if time_s < 2 * HOUR_S:
        return f"{seconds(time_s / _MINUTE_S)} min"
    # Short jobs in hours: "0.04 days" says little.
    return f"{seconds(time_s / HOUR_S)} hours" if time_s < 2 * DAY_S else f"{seconds(time_s / DAY_S)} days"


def run_facts(run: Json) -> Iterator[tuple[str, str]]:
    """What is known of a run, with a name for each fact."""
    low, high = run["days_range"]
    span = f"{duration(low * DAY_S)} to {duration(high * DAY_S)}"
    yield (
        "Time",
        f"{duration(run['days'] * DAY_S)} (80 % range {span}) for {parameter_count(round(run['total_tokens']))} tokens",
    )
    cost = "" if run["cost"] is None else f", which cost {run['cost']:,.0f}"
    yield "GPU-hours", f"{run['gpu_hours']:,.0f}{cost}"
    if run["energy_kwh"] is not None:
        carbon = "" if run["co2_kg"] is None else f", {run['co2_kg']:,.0f} kg of carbon dioxide"
        yield "Energy", f"{run['energy_kwh']:,.0f} kWh{carbon}"
    if run["stops"] is None:
        yield (
            "Goodput",
            "not known without cluster.reliability and training.checkpoint; the time is that of a run that nothing stops",
        )
        return
    yield "Goodput", f"{run['goodput']:.1%} of the time trains what no failure undoes"
    yield from _stops(run["stops"])


def _stops(stops: Json) -> Iterator[tuple[str, str]]:
    every, recovery = duration(stops["mean_time_between_s"]), duration(stops["recovery_s"])
    yield (
        "Failures",
        f"one in {every} on average, {stops['num_stops']:,.0f} in all; the run trains again after {recovery}",
    )
    if stops["waiting_fraction"] is not None:
        yield "Repairs", f"the run waits for one for {stops['waiting_fraction']:.1%} of its time"
    size, pause = stops["checkpoint_bytes"] / GB, duration(stops["save_s"])
    behind = f", and storage holds it {duration(stops['unsafe_s'])} later" if stops["unsafe_s"] else ""
    yield "Checkpoints", f"{size:,.0f} GB; saving one stops training for {pause}{behind}"
    young, best = duration(stops["interval_s"]), duration(stops["optimal_interval_s"])
    yield "Save every", f"{young} by Young's formula; {best} make the run available the longest"


def variant_rows(run: Json) -> list[tuple[str, ...]]:
    """The what-if of a run, a row for each variant in the order of VARIANT_COLUMNS; empty where failures are not known."""
    if run["stops"] is None:
        return []
    rows = [
        (
            duration(each["interval_s"]),
            "-" if each["spares"] is None else f"{each['spares']:,}",
            f"{each['goodput']:.1%}",
            seconds(each["days"]) if each["days"] < 1000.0 else f"{each['days']:,.0f}",
            f"{each['gpu_hours']:,.0f}",
            "-" if each["cost"] is None else f"{each['cost']:,.0f}",
        )
        for each in run["stops"]["what_if"]
    ]
    # Young's interval and the optimal one are often the same to all digits that are shown.
    return list(dict.fromkeys(rows))


def condition_rows(evaluation: Json) -> list[tuple[str, ...]]:
    """The conditions of overlapping, a row for each in the order of CONDITION_COLUMNS; empty where nothing communicates."""
    return [
        (
            COMMUNICATION[name],
            f"{its['num_ranks']:,}",
            f"{its['bandwidth_bytes_per_s'] / GB:,.0f}",
            seconds(its["ratio"]),
            its["verdict"],
            f"{its['hidden_by']} {its['hidden_from']:,}",
        )
        for name, its in (evaluation.get("overlap_conditions") or {}).items()
    ]
