"""A judgement for people: the two predictions, what each change gains, and the diff."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from cost_models.units import GIB

_DEGREES = ("tp", "pp", "cp", "dp", "ep", "vpp")


def print_judgement(answer: Mapping[str, Any]) -> None:
    """Prints it on stdout."""
    current, best = answer["current"], answer["best"]
    lines = [f"Yours: {_prediction(current, answer['import']['row']['strategy'])}"]
    if current["verdict"] == "invalid":
        lines += [f"  {each['message']}" for each in current["reasons"]]
    if best is None:
        lines.append("Best: no plan for this job fits that these files could say.")
    else:
        lines.append(f"Best: {_prediction(best['evaluation'], best['strategy'])}")
        lines.append(_verdict(answer))
    if answer["changes"]:
        lines += [
            "",
            f"  {'time saved':>10}  {'memory saved':>12}  change",
            *(_change(each) for each in answer["changes"]),
        ]
        if answer["interaction_s"] is not None:
            lines.append(f"  {_seconds(answer['interaction_s']):>10}  {'':>12}  what the changes gain only together")
    sys.stdout.write("\n".join(lines) + "\n")
    if answer["diff"]:
        sys.stdout.write("\n" + answer["diff"])


def _prediction(evaluation: Mapping[str, Any], strategy: Mapping[str, Any]) -> str:
    degrees = ", ".join(f"{name} {strategy[name]}" for name in _DEGREES if (strategy.get(name) or 1) > 1)
    named = f"{degrees or 'one GPU'}, zero {strategy.get('zero', 0)}, micro-batch {strategy.get('micro_batch_size')}"
    if evaluation["step_time_s"] is None:
        return f"{named}: the framework would not run it"
    memory = evaluation["memory"]["peak_device_bytes"] / GIB
    return f"{evaluation['step_time_s']:.4g} s a step, {memory:.1f} GiB, {evaluation['verdict']} ({named})"


def _verdict(answer: Mapping[str, Any]) -> str:
    gain = answer["gain_fraction"]
    if gain is None:
        return "There is nothing to compare with."
    low, high = answer["gain_range"]
    if not answer["changes"] and answer["current"]["verdict"] == "fits":
        return "Nothing that these files could say is faster."
    told = (
        f"The best plan takes {abs(gain):.1%} {'less' if gain >= 0 else 'more'} time a step ({low:.1%} to {high:.1%})."
    )
    if answer["tie"]:
        return f"{told} That is too close to call: only a measurement would tell."
    return told


def _change(change: Mapping[str, Any]) -> str:
    elsewhere = "your environment" if change["field"].startswith("$") else "not in your files"
    where = f"{change['file']}:{change['line']}" if change["file"] else elsewhere
    said = " -> ".join(each for each in (change["old"], change["new"]) if each)
    verb = "" if change["old"] and change["new"] else "without " if change["old"] else "with "
    time, memory = change["time_gain_s"], change["memory_gain_bytes"]
    gains = f"{_seconds(time):>10}  {_gib(memory):>12}"
    reason = f" ({change['reason']})" if change["reason"] else ""
    counted = " (counted with the change above)" if time is None and change["together_with"] else ""
    return f"  {gains}  {where}: {verb}{said}{reason}{counted}"


def _gib(size_bytes: float | None) -> str:
    # A rounded zero has no sign.
    return "" if size_bytes is None else f"{round(size_bytes / GIB, 1) + 0.0:+.1f} GiB"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:+.3g} s"
