"""Show 3 of trials, on this machine's processors: every parallel form of 2, 4 and 8 processes has one process's losses over five steps.

    python -m benchmarks.trial_forms_on_processors              # a quarter of an hour on two cores
    python -m benchmarks.trial_forms_on_processors --worlds 8

In single precision only the order of sums tells two splits apart. Two forms are broken on purpose, and must show.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.record import record
from benchmarks.trial_forms.forms import FAULTS, broken, forms_of
from benchmarks.trial_forms.processes import run_together
from benchmarks.trial_forms.table import failures, table

LAYERS, STEPS = 4, 5
LOSS, NORM = 5e-6, 2e-5
"""How far losses, and norms by their fraction, may be off: the bounds of tests/e2e/test_trial_forms.py."""


def main() -> None:
    """Runs the forms of each world, and writes the table of losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of one world")
    arguments = parser.parse_args()
    size = {"layers": LAYERS, "steps": STEPS}
    lines: list[dict[str, Any]] = []
    for world in arguments.worlds:
        begun_at = time.monotonic()
        jobs = [*forms_of(world, **size), *broken(**size)]
        lines += table(jobs, run_together(jobs, timeout_s=arguments.timeout, job_s=600.0))
        print(f"{world} processes: {len(jobs)} forms in {time.monotonic() - begun_at:.0f} s", flush=True)
    held = [line for line in lines if line["form"] not in FAULTS]
    failed = failures(held, loss=LOSS, norm=NORM)
    shown = failures([line for line in lines if line["form"] in FAULTS], loss=50 * LOSS, norm=50 * NORM)
    for name, why in failed.items():
        print(f"{name}: {why}")
    record(
        f"trial_forms_{'_'.join(str(world) for world in arguments.worlds)}_processes",
        value=len(held) - len(failed),
        unit="forms with one process's losses",
        goal=f"{len(held)}",
        loss=LOSS,
        norm=NORM,
        failed=failed,
        broken_that_show=shown,
        forms=lines,
    )


if __name__ == "__main__":
    main()
