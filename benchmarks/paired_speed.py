"""How much faster this checkout is than another one, in CPU seconds and paired: `python benchmarks/paired_speed.py OTHER_CHECKOUT`.

Both checkouts are measured in turn, each time in a process of its own, so that whatever else the machine does hits both alike. A
figure's ratio is the median over these pairs, and each absolute figure is the median of its checkout. CPU seconds count user and
system time, since page faults are part of the price. Both need the same dependencies, those of the interpreter that runs this.
Options: `--pairs N` (5) and `--figures NAME,NAME` (all).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASE = (
    {"preset": "llama-3.1-70b"},
    {"preset": "dgx-h100", "num_nodes": 128},
    {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"},
)


def _evaluate_rate(batch: int, rows: int, repeats: int) -> float:
    """Strategies per CPU second through the full evaluation in batches of this many, best of the repeats."""
    import numpy as np

    from benchmarks.evaluate_rate import job, legal_strategies
    from cost_models.evaluate import evaluate

    priced = job()
    drawn = legal_strategies(priced, num_strategies=rows)
    batches = [drawn.take(np.arange(start, start + batch)) for start in range(0, rows, batch)]
    for each in batches[:2]:  # tables that depend on the job alone are built once
        evaluate(priced, each)
    return rows / min(_cpu_s(lambda: [evaluate(priced, each) for each in batches]) for _ in range(repeats))


def _plan_s() -> float:
    """CPU seconds of one plan of 70B on 1,024 GPUs, within a process that has planned before."""
    from planner.plan import plan

    request = dict(zip(("model", "cluster", "training"), CASE, strict=True))
    return statistics.median([_cpu_s(lambda: plan(dict(request))) for _ in range(10)][2:])


def _mixed_rows() -> float:
    """JSON lines of several jobs per CPU second, text in and text out, best of two."""
    from benchmarks.rows_rate import rows
    from planner.rows import evaluate_rows

    lines = rows(num_rows=1000)
    return len(lines) / min(_cpu_s(lambda: [json.dumps(found) for found in evaluate_rows(lines)]) for _ in range(2))


def _whole_process_s() -> float:
    """CPU seconds of `meshwright plan` with README's example, interpreter and imports included."""
    command = [sys.executable, "-m", "meshwright", "plan", "examples/requests/llama-3.1-70b.json"]

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(3):
        before = spent()
        subprocess.run(command, cwd=os.environ["PYTHONPATH"], check=True, capture_output=True)
        times.append(spent() - before)
    return statistics.median(times)


FIGURES: dict[str, tuple[Callable[[], float], str, str]] = {
    "evaluate": (lambda: _evaluate_rate(200_000, 200_000, 4), "strategies/CPU s", ">= 1000000"),
    "evaluate_in_batches_of_1000": (lambda: _evaluate_rate(1000, 20_000, 4), "strategies/CPU s", ">= 500000"),
    "plan_70b_on_1024_gpus": (_plan_s, "CPU s", "<= 0.06"),
    "mixed_rows": (_mixed_rows, "rows/CPU s", ">= 2000"),
    "plan_as_a_process": (_whole_process_s, "CPU s", "<= 0.6"),
}


def _cpu_s(act: Callable[[], object]) -> float:
    begin = time.process_time()
    act()
    return time.process_time() - begin


def _measured(figure: str, checkout: Path) -> float:
    command = [sys.executable, str(Path(__file__).resolve()), "--one", figure]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measures every figure in pairs, prints them and writes them to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--keep", action="store_true", help="write the figures to benchmarks/results")
    parser.add_argument("--one", choices=FIGURES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(FIGURES[asked.one][0]())
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks.record import commit, record

    for figure in asked.figures.split(","):
        _, unit, goal = FIGURES[figure]
        before, after = [], []
        for _ in range(asked.pairs):
            before.append(_measured(figure, asked.other.resolve()))
            after.append(_measured(figure, ROOT))
        faster = [a / b if "/" in unit else b / a for b, a in zip(before, after, strict=True)]
        was, now, ratio = (statistics.median(values) for values in (before, after, faster))
        spread = f"{min(faster):.2f}-{max(faster):.2f}"
        print(f"{figure}: {was:,.4g} -> {now:,.4g} {unit}, {ratio:.2f} times as fast ({spread})", flush=True)
        if asked.keep:
            other = commit(asked.other.resolve())
            record(
                f"paired_{figure}", value=now, unit=unit, goal=goal, before=float(f"{was:.4g}"), before_commit=other,
                times_as_fast=round(ratio, 2), pairs=asked.pairs,
            )  # fmt: skip


if __name__ == "__main__":
    main()
