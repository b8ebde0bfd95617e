"""Leave-one-source-out accuracy: free constants are refitted on all sources but one, and that one is scored. Takes minutes.

python -m benchmarks.accuracy_refit

Prints which constants moved and what the figures of each source are then, and stores them in
benchmarks/results/accuracy_left_out.json. The accuracy report shows them beside the present ones, and benchmarks/range_widths.py makes
the widths of ranges with these constants. No constant of the program is changed.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.accuracy.bars import bars
from benchmarks.accuracy.figures import mape
from benchmarks.accuracy.left_out import RESULT, free_constants, leave_each_out
from benchmarks.accuracy.named_constants import named_constants
from benchmarks.accuracy.state import evaluate_state
from benchmarks.accuracy.tables import percent, table
from benchmarks.record import record


def main() -> None:
    """Runs the command."""
    state = evaluate_state()
    found = leave_each_out(state)
    now, then = state.timed(), found.state.timed()
    lines = []
    for source, scored in now.items():
        changes = ", ".join(f"{name} {value:.3g}" for name, value in found.chosen[source].items())
        lines.append([source, percent(mape(scored.error)), percent(mape(then[source].error)), changes or "nothing"])
    print(
        table(["left out", "error now, %", "error refitted without it, %", "other values than the present ones"], lines)
    )
    # The mean over sources and not over rows: a source with a thousand rows says no more about the model than one with ten.
    mean = float(np.mean([mape(scored.error) for scored in then.values()]))
    named = named_constants()
    record(
        RESULT,
        value=mean,
        unit="mean time error over sources, each left out",
        goal="see docs/ACCURACY_LOG.md",
        now=float(np.mean([mape(scored.error) for scored in now.values()])),
        free={name: [named[name].low, named[name].value, named[name].high] for name in free_constants()},
        chosen=found.chosen,
        bars=[
            {
                "rows": bar.rows,
                "figure": bar.figure,
                "value": None if math.isnan(bar.value) else float(f"{bar.value:.5g}"),
            }
            for bar in bars(found.state)
        ],
    )


if __name__ == "__main__":
    main()
