"""Makes the widths of step-time ranges from measured runs, and says what they hold of every source left out. Takes seconds.

python -m benchmarks.range_widths            print what the present widths and newly made ones hold
python -m benchmarks.range_widths --write    also write cost_models/step/range_widths.json and benchmarks/results/

Run `python -m benchmarks.accuracy_refit` first where predictions have moved much: it refits the free constants without each source,
and here every source is predicted with those. `benchmarks/accuracy/range_scores.py` says how widths follow from the errors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.left_out import stored_left_out
from benchmarks.accuracy.named_constants import moved
from benchmarks.accuracy.range_scores import (
    Covered,
    RangeRows,
    covered,
    fitted,
    half_widths,
    joined,
    plans_half_width,
    range_rows,
)
from benchmarks.accuracy.state import State, evaluate_source, evaluate_state
from benchmarks.accuracy.tables import percent, table
from benchmarks.record import record
from cost_models.step.range_widths import WIDTHS_FILE, RangeWidths, Regime, range_widths

RESULT = "range_coverage"
DIGITS = 3


@dataclass(frozen=True, eq=False)
class Sources:
    """Rows of every source that has times, priced with reference data and with the profile of their machine."""

    reference: Mapping[str, RangeRows]
    """Predicted with constants in which the source had no part."""
    profiled: Mapping[str, RangeRows]
    plans: float
    """What two plans of one machine err against each other."""

    def widths(self, *, without: str = "") -> RangeWidths:
        """The widths that all sources but one ask for."""
        reference, profiled = (
            joined([rows for name, rows in kind.items() if name != without]) for kind in (self.reference, self.profiled)
        )
        return fitted(reference, profiled, plans=self.plans)


def sources_of(state: State, chosen: Mapping[str, Mapping[str, float]]) -> Sources:
    """The rows of a state, each source predicted with constants in which it had no part (`chosen`, by source)."""
    timed = {name: source for name, source in state.sources.items() if source.scored.timed.any()}
    reference, profiled = {}, {}
    for name, source in timed.items():
        with moved(chosen.get(name, {})):
            left_out = evaluate_source(name, list(source.rows.rows))
            reference[name] = range_rows(left_out.scored)
            if source.profile:
                profiled[name] = range_rows(left_out.priced, calibration=source.profile)
    plans = plans_half_width({name: source.scored for name, source in timed.items()})
    return Sources(reference, profiled, plans)


def document_of(widths: RangeWidths) -> dict[str, object]:
    """The content of the file that is shipped."""
    return {
        "written_by": "python -m benchmarks.range_widths --write",
        "machine": {
            "reference": round(widths.machine_reference, DIGITS),
            "profiled": round(widths.machine_profiled, DIGITS),
        },
        "factors": {regime.label: round(float(widths.factor_R[regime]), DIGITS) for regime in Regime},
        "plans": round(widths.plans, DIGITS),
    }


@dataclass(frozen=True, eq=False)
class LeftOutCoverage:
    """What ranges hold of each source where neither constants nor widths were chosen with it."""

    reference: Mapping[str, Covered]
    profiled: Mapping[str, Covered]
    all_rows: Covered
    """Every row of every source, priced with reference data."""


def coverage(sources: Sources) -> LeftOutCoverage:
    """Leaves each source out in turn."""
    widths = {name: sources.widths(without=name) for name in sources.reference}
    halves = {name: half_widths(rows, widths[name]) for name, rows in sources.reference.items()}
    low, high = (np.concatenate([halves[name][side] for name in halves]) for side in (0, 1))
    error = np.concatenate([sources.reference[name].error for name in halves])
    inside = (-low <= error) & (error <= high)
    return LeftOutCoverage(
        reference={name: covered(rows, widths[name]) for name, rows in sources.reference.items()},
        profiled={name: covered(rows, widths[name]) for name, rows in sources.profiled.items()},
        all_rows=Covered(len(error), float(inside.mean()), float(np.exp(np.median(low + high)))),
    )


def coverage_table(found: LeftOutCoverage, present: Mapping[str, Covered]) -> str:
    """One line for each source, left out and with the present widths."""
    lines = []
    for name, left_out in [*found.reference.items(), *((f"{n}, profiled", c) for n, c in found.profiled.items())]:
        now = present.get(name)
        cells = [percent(now.inside), f"{now.width:.2f}"] if now else ["-", "-"]
        lines.append([name, str(left_out.rows), *cells, percent(left_out.inside), f"{left_out.width:.2f}"])
    return table(["source", "rows", "inside now, %", "width now", "inside left out, %", "width left out"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    state = evaluate_state()
    sources, as_they_are = sources_of(state, stored_left_out().chosen), sources_of(state, {})
    present = {name: covered(rows, range_widths()) for name, rows in as_they_are.reference.items()}
    present |= {f"{name}, profiled": covered(rows, range_widths()) for name, rows in as_they_are.profiled.items()}
    found, widths = coverage(sources), sources.widths()
    print(coverage_table(found, present))
    mean = float(np.mean([each.inside for each in found.reference.values()]))
    print(
        f"mean over sources {percent(mean)} %; all rows {percent(found.all_rows.inside)} %, {found.all_rows.width:.2f}"
    )
    print(json.dumps(document_of(widths)))
    if options.write:
        WIDTHS_FILE.write_text(json.dumps(document_of(widths), indent=1) + "\n", encoding="utf-8")
        record(
            RESULT,
            value=found.all_rows.inside,
            unit="share of measured times inside the range, each source left out",
            goal="0.75 to 0.90, at a median high / low of at most 1.35",
            width=round(found.all_rows.width, DIGITS),
            mean_over_sources=round(mean, DIGITS),
            sources={
                name: {"rows": each.rows, "inside": round(each.inside, DIGITS), "width": round(each.width, DIGITS)}
                for name, each in [
                    *found.reference.items(),
                    *((f"{name}, profiled", each) for name, each in found.profiled.items()),
                ]
            },
        )


if __name__ == "__main__":
    main()
