"""Adapters: our own runs of peft beside their predictions, and the jobs that users ask for most.

The runs are data/measured_h200/lora_runs.jsonl; they are priced with the profile of the machine on which they ran. The jobs are
planned as a user would ask for them; where nothing fits, the nearest candidate is shown with what it lacks.
Run: python -m benchmarks.adapters.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.accuracy.measured_rows import evaluations, score_rows
from benchmarks.record import ROOT, record
from cost_models.units import GIB
from meshwright import plan

RUNS = ROOT / "data" / "measured_h200" / "lora_runs.jsonl"
PROFILE = "h200x2-nvls-off-2026-11-28"
WITHIN_TIME, WITHIN_MEMORY = 0.10, 0.04
"""Relative errors up to which a run's time and its allocated memory count as predicted."""
QLORA = {"rank": 16, "quantized_base": "nf4"}
LORA = {"rank": 16}
JOBS: tuple[tuple[str, str, str, int, str, dict[str, Any], dict[str, Any]], ...] = (
    # name, model, GPU, GPUs, framework, adapter, fixed fields of the strategy
    ("8B QLoRA on one 24 GB card", "llama-3.1-8b", "RTX4090-24GB", 1, "fsdp", QLORA, {}),
    ("70B QLoRA on two 48 GB cards", "llama-3.1-70b", "L40S-48GB", 2, "fsdp", QLORA, {}),
    ("32B LoRA on eight A100", "qwen3-32b", "A100-SXM-80GB", 8, "fsdp", LORA, {}),
    ("8B LoRA on two RTX 4090", "llama-3.1-8b", "RTX4090-24GB", 2, "fsdp", LORA, {}),
    ("70B LoRA with ZeRO-3 on eight H100", "llama-3.1-70b", "H100-SXM-80GB", 8, "deepspeed", LORA, {"zero": 3}),
)
SEQ_LENGTH, BATCH = 2048, 16


def runs_beside_predictions() -> dict[str, float]:
    """Errors of time and allocated bytes over all runs, as fractions and counts."""
    rows = [json.loads(line) for line in RUNS.read_text().splitlines()]
    answers = evaluations(rows, calibration=PROFILE)
    scored = score_rows(rows, answers)
    time, memory = np.abs(scored.error), np.abs(scored.memory_error)
    inside = (scored.low_s <= scored.measured_s) & (scored.measured_s <= scored.high_s)
    return {
        "runs": len(rows),
        "time_mean": float(time.mean()),
        "time_median": float(np.median(time)),
        "time_within": int((time <= WITHIN_TIME).sum()),
        "inside_range": int(inside.sum()),
        "memory_mean": float(memory.mean()),
        "memory_within": int((memory <= WITHIN_MEMORY).sum()),
    }


def answer_of(job: tuple[str, str, str, int, str, dict[str, Any], dict[str, Any]]) -> str:
    """One line on the first plan of a job, or on the nearest candidate and what it lacks."""
    name, model, gpu, gpus, framework, adapter, fixed = job
    response = plan(
        {
            "model": {"preset": model},
            "cluster": {"gpu": gpu, "num_nodes": 1, "gpus_per_node": gpus},
            "training": {
                "seq_length": SEQ_LENGTH,
                "global_batch_size": BATCH,
                "precision": "bf16",
                "framework": framework,
                "adapter": adapter,
            },
            "constraints": {"fixed": fixed},
            "top_k": 1,
        }
    )
    if not response["plans"]:
        return f"{name}: no plan fits; {json.dumps(response['nearest_infeasible'])[:300]}"
    [best] = response["plans"]
    evaluation, strategy = best["evaluation"], best["strategy"]
    memory = evaluation["memory"]
    return (
        f"{name}: {evaluation['step_time_s']:.3g} s, {memory['peak_device_bytes'] / GIB:.1f} of "
        f"{memory['capacity_bytes'] / GIB:.1f} GiB, dp {strategy['dp']} zero {strategy['zero']} "
        f"micro-batch {strategy['micro_batch_size']} recompute {strategy['recompute']}"
    )


def main() -> None:
    """Prints both tables and records the share of runs whose time is within the bound."""
    found = runs_beside_predictions()
    for name, value in found.items():
        print(f"{name}: {value:.3g}")
    jobs = [answer_of(job) for job in JOBS]
    print(*jobs, sep="\n")
    record(
        "adapter_runs_within_10_percent",
        value=found["time_within"] / found["runs"],
        unit="share of runs",
        goal=">= 0.75 inside the range, time <= 0.10, memory <= 0.04",
        **found,
        jobs=jobs,
    )


if __name__ == "__main__":
    main()
