"""Every parallel form of trials on this machine's GPUs against one GPU, without pytest: python -m benchmarks.trial_forms_on_gpu OUT.json

    NCCL_NVLS_ENABLE=0 PYTHONPATH=.:$PYTHONPATH python -m benchmarks.trial_forms_on_gpu "$OUT/trial_forms_on_gpu.json" --budget 400

Forms of as many processes as there are GPUs run for five steps: in fp32, where only the order of sums tells two plans apart, and in bf16,
which other kernels compute. Two forms are broken on purpose, and must show. Then come the checks of `trial_forms/ends.py`. The file is
rewritten after each part, so that what is stopped leaves what it had; keep it as benchmarks/results/trial_forms_on_gpu.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.record import commit, machine_description
from benchmarks.trial_forms.ends import checks, outcome
from benchmarks.trial_forms.forms import FAULTS, broken_on_gpus, forms_on_gpus
from benchmarks.trial_forms.processes import run_together
from benchmarks.trial_forms.table import failures, table

LIMITS = {"fp32": (2e-5, 1e-4), "bf16": (6e-3, 4e-2)}
"""How far losses of 5.5, and norms by their fraction, may be off: bf16 keeps three digits, and fp32 seven, over hundreds of sums."""


def main() -> None:
    """Runs everything that fits into the budget, and says what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=400.0, help="seconds of everything together")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--without-compiled", action="store_true", help="leave out the forms that take half a minute each"
    )
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.budget

    import torch

    gpus = torch.cuda.device_count()
    parts: dict[str, Any] = {}
    for precision in LIMITS:
        jobs = [
            *forms_on_gpus(gpus, precision=precision, compiled=not arguments.without_compiled, steps=arguments.steps)
        ]
        jobs += broken_on_gpus(gpus, precision=precision, steps=arguments.steps)
        parts[precision] = _forms(precision, jobs, end_at - time.monotonic())
        _write(arguments.out, gpus, parts)
    parts["checks"] = {}
    for name, check in checks(gpus).items():
        if end_at - time.monotonic() > 0:
            parts["checks"][name] = outcome(check)
            print(name, parts["checks"][name], flush=True)
            _write(arguments.out, gpus, parts)


def _forms(precision: str, jobs: Sequence[dict[str, Any]], left_s: float) -> dict[str, Any]:
    begun_at = time.monotonic()
    lines = table(jobs, run_together(jobs, device="cuda", timeout_s=left_s))
    loss, norm = LIMITS[precision]
    wrong = failures([line for line in lines if line["form"] not in FAULTS], loss=loss, norm=norm)
    seen = failures([line for line in lines if line["form"] in FAULTS], loss=5 * loss, norm=5 * norm)
    took_s = round(time.monotonic() - begun_at, 1)
    print(f"{precision}: {len(lines) - len(wrong)} of {len(lines)} in {took_s} s; broken ones that show: {list(seen)}")
    for name, why in wrong.items():
        print(f"  {name}: {why}", flush=True)
    return {
        "limits": {"loss": loss, "norm": norm},
        "took_s": took_s,
        "failed": wrong,
        "broken_that_show": seen,
        "forms": lines,
    }


def _write(out: Path, gpus: int, parts: dict[str, Any]) -> None:
    import torch

    forms = [line for precision in LIMITS for line in parts.get(precision, {}).get("forms", ())]
    failed = [name for precision in LIMITS for name in parts.get(precision, {}).get("failed", ())]
    failed += [name for name, found in parts.get("checks", {}).items() if not found["held"]]
    gpu = {
        "gpu": torch.cuda.get_device_name(), "gpus": gpus, "torch": version("torch"), "nccl": list(torch.cuda.nccl.version()),
    }  # fmt: skip
    entry = {
        "value": len(forms) + len(parts.get("checks", {})) - len(failed),
        "unit": "forms and checks that hold",
        "goal": "all",
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {**machine_description(), **gpu},
        "details": {"failed": failed, **parts},
    }
    out.write_text(json.dumps([entry], indent=1) + "\n")


if __name__ == "__main__":
    main()
