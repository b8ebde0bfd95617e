"""What a search over all splits gains over the listed ones, and what it costs.

The listed splits are the even one if the layers divide, otherwise a nearly even one with small ends. Both searches are exact. The
jobs are models with 126 and 61 layers, with a vocabulary of 250k, and common ones.
Run: python -m benchmarks.uneven_gain.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.record import record
from benchmarks.search_proofs import dense, request
from cost_models.step.total import step_time
from planner.plan import plan
from planner.request.job import resolve_job
from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.objective import build_goal
from planner.strategies.axes import build_space

JOBS: dict[str, dict[str, Any]] = {
    "126_layers": request("llama-3.1-405b", "dgx-h100", 256, 8192, 1024),
    "126_layers_pp_16": request("llama-3.1-405b", "dgx-h100", 256, 8192, 1024) | {"constraints": {"fixed": {"pp": 16}}},
    "61_layers": request("deepseek-v3", "hgx-h800", 256, 4096, 15_360),
    "vocabulary_250k": request(dense(80, vocab_size=250_000), "dgx-h100", 64, 4096, 1024),
    "vocabulary_250k_pp_8": request(dense(80, vocab_size=250_000), "dgx-h100", 64, 4096, 1024)
    | {"constraints": {"fixed": {"pp": 8}}},
    "llama_8b": request("llama-3.1-8b", "dgx-h100", 2, 8192, 128),
    "llama_70b": request("llama-3.1-70b", "dgx-h100", 16, 8192, 512),
    "llama_70b_1024_gpus": request("llama-3.1-70b", "dgx-h100", 128, 8192, 2048),
    "qwen_72b": request("qwen2.5-72b", "dgx-h100", 64, 4096, 1024),
    "qwen3_235b": request("qwen3-235b-a22b", "dgx-h100", 32, 4096, 1024),
    "gemma_27b": request("gemma-3-27b", "dgx-h100", 16, 8192, 512),
}


def listed_step_s(document: dict[str, Any]) -> float:
    """The best step time among the listed splits."""
    asked = PlanRequest.model_validate(document)
    job = resolve_job(document)
    found = Exhaustive(
        build_space(job, asked.constraints),
        goal=build_goal(job, asked.objective, asked.targets),
        top_k=1,
        headroom_fraction=asked.constraints.memory_headroom_fraction,
        allow_at_risk=False,
    ).run()
    assert found.best is not None
    return float(step_time(job, found.best).total_s[0])


def measure() -> None:
    """Measures and records every job."""
    for name, document in JOBS.items():
        # Processor time, since both searches run on one core and other programs must not count.
        started = time.process_time()
        listed_s = listed_step_s(document)
        between = time.process_time()
        answer = plan(document | {"top_k": 1})
        ended = time.process_time()
        best = answer["plans"][0]
        other = answer["inexpressible_best"]
        record(
            f"uneven_gain_{name}",
            value=1.0 - best["evaluation"]["step_time_s"] / listed_s,
            unit="share of the step",
            goal="report",
            listed_cpu_s=round(between - started, 3),
            open_cpu_s=round(ended - between, 3),
            listed_step_s=listed_s,
            step_s=best["evaluation"]["step_time_s"],
            layers_per_stage=best["strategy"]["layers_per_stage"],
            recompute=best["strategy"]["recompute"],
            per_stage_recompute_gain=other and other["gain_fraction"],
        )


if __name__ == "__main__":
    measure()
