"""How much faster this checkout is than another one, in CPU seconds and paired. Run: python benchmarks/paired_speed.py OTHER_CHECKOUT.

Both checkouts are measured in turn, each time in a process of its own, so that whatever else the machine does hits both alike. A
figure's ratio is the median over these pairs, and each absolute figure is the median of its checkout. CPU seconds count user and
system time, since page faults are part of the price. Compiled modules are kept, as those of an installed package are. Both need
the dependencies of the interpreter that runs this. `--figures` names some of the figures, `--pairs` says how often each is measured,
and `--keep` writes them to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
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


def _plan_s(*, another_job: bool) -> float:
    """CPU seconds of one plan of 70B on 1,024 GPUs, within a process that has planned before: the same job, or others like it."""
    from planner.plan import plan

    model, cluster, training = CASE
    times = []
    for number in range(10):
        own = {**training, "seq_length": 8192 + 128 * number * another_job}
        request = {"model": model, "cluster": cluster, "training": own}
        times.append(_cpu_s(partial(plan, request)))
    return statistics.median(times[2:])


def _rows_rate(lines: list[str]) -> float:
    """JSON lines per CPU second, text in and text out, best of two."""
    from planner.rows import evaluate_rows

    return len(lines) / min(_cpu_s(lambda: [json.dumps(found) for found in evaluate_rows(lines)]) for _ in range(2))


def _rows_of_few_jobs() -> float:
    from benchmarks.rows_rate import rows

    return _rows_rate(rows(num_rows=1000))


def _rows_of_many_jobs() -> float:
    """Of the measured runs, some 1,300 rows of some 350 jobs. Both checkouts are given the same ones."""
    files = sorted((ROOT / "data" / "measured").rglob("*.jsonl"))
    return _rows_rate([line for file in files for line in file.read_text().splitlines() if line.strip()])


def _whole_process_s() -> float:
    """CPU seconds of `meshwright plan` with README's example, interpreter and imports included."""
    command = [sys.executable, "-m", "meshwright", "plan", "examples/requests/llama-3.1-70b.json"]

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(4):
        before = spent()
        subprocess.run(command, cwd=os.environ["PYTHONPATH"], check=True, capture_output=True)
        times.append(spent() - before)
    return statistics.median(times[1:])  # the first compiles the modules


FIGURES: dict[str, tuple[Callable[[], float], str, str]] = {
    "evaluate": (lambda: _evaluate_rate(200_000, 200_000, 4), "strategies/CPU s", ">= 1000000"),
    "evaluate_in_batches_of_1000": (lambda: _evaluate_rate(1000, 20_000, 4), "strategies/CPU s", ">= 500000"),
    "plan_70b_on_1024_gpus": (lambda: _plan_s(another_job=False), "CPU s", "<= 0.06"),
    "plan_70b_on_1024_gpus_another_job": (lambda: _plan_s(another_job=True), "CPU s", "<= 0.06"),
    "rows_of_few_jobs": (_rows_of_few_jobs, "rows/CPU s", ">= 2000"),
    "rows_of_many_jobs": (_rows_of_many_jobs, "rows/CPU s", ">= 2000"),
    "plan_as_a_process": (_whole_process_s, "CPU s", "<= 0.6"),
}


def _cpu_s(act: Callable[[], object]) -> float:
    begin = time.process_time()
    act()
    return time.process_time() - begin


def _measured(figure: str, checkout: Path, compiled: str) -> float:
    command = [sys.executable, str(Path(__file__).resolve()), "--one", figure]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measures every figure in pairs, prints them and writes them to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", choices=FIGURES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(FIGURES[asked.one][0]())
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks.record import commit, record

    folder = tempfile.TemporaryDirectory()
    for figure in asked.figures.split(","):
        _, unit, goal = FIGURES[figure]
        before, after = [], []
        for _ in range(asked.pairs):
            before.append(_measured(figure, asked.other.resolve(), folder.name))
            after.append(_measured(figure, ROOT, folder.name))
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
