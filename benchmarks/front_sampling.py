"""What sampling a Pareto front by NSGA-II is worth, beside the exact front and beside as many strategies drawn at random.

Every method starts from the ranked plans, as `meshwright plan --include pareto` does. A point counts as found where a front has
one that is at most CLOSE worse in time, memory, GPUs and cost at once. Run: python -m benchmarks.front_sampling [JOB...].
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks.ablation import listed
from benchmarks.record import record
from planner.request.checked_request import CheckedRequest, check_request
from planner.search.objective import build_goal
from planner.search.pareto import Front, pareto_front
from planner.search_on_one_kind import search
from planner.strategies.axes import build_space

JOBS = {
    "llama_70b_128_h100": listed("llama-3.1-70b", "dgx-h100", 16, 8192, 512),
    "llama_405b_16384_h100": listed("llama-3.1-405b", "dgx-h100", 2048, 8192, 2048),
    "deepseek_v3_2048_h800": listed("deepseek-v3", "hgx-h800", 256, 4096, 15_360),
}
CLOSE = 0.05
EXACT_LIMIT_S = 120.0
METHODS: dict[str, tuple[Literal["exhaustive", "nsga-ii"], bool]] = {
    "exact": ("exhaustive", False), "nsga-ii": ("nsga-ii", False), "at random": ("nsga-ii", True),
}  # fmt: skip


def fronts(checked: CheckedRequest) -> tuple[dict[str, Front], dict[str, float]]:
    """The front and the CPU seconds of each method."""
    job, asked = checked.job.jobs[0], checked.asked
    space, goal = build_space(job, asked.constraints), build_goal(job, asked.objective, asked.targets)
    known = search(space, goal=goal, asked=asked).best
    found, cpu_s = {}, {}
    for name, (method, at_random) in METHODS.items():
        began = time.process_time()
        found[name] = pareto_front(
            space, goal=goal, headroom_fraction=asked.constraints.memory_headroom_fraction, seed=0, method=method, known=known,
            at_random=at_random, should_stop=partial(_is_past, began + EXACT_LIMIT_S),
        )  # fmt: skip
        cpu_s[name] = time.process_time() - began
    return found, cpu_s


def _is_past(end_s: float) -> bool:
    return time.process_time() > end_s


def share_found(front: Front, of: Front) -> float:
    """Share of the points of one front to which another one comes close."""
    near_MN = np.all(front.objectives_ND[None] <= of.objectives_ND[:, None] * (1.0 + CLOSE), axis=2)
    return float(np.mean(np.any(near_MN, axis=1)))


def measure(name: str) -> None:
    """Measures and records one job."""
    found, cpu_s = fronts(check_request(JOBS[name]))
    exact = found["exact"]
    whole: dict[str, Any] = {
        method: {
            "points": len(front.objectives_ND),
            "cpu_s": round(cpu_s[method], 2),
            "stopped": front.stopped,
            "share_of_exact": None if exact.stopped else round(share_found(front, exact), 3),
            "least_gib": round(float(np.min(front.objectives_ND[:, 1])) / 2**30, 2),
        }
        for method, front in found.items()
    }
    record(
        f"front_{name}", value=whole["nsga-ii"]["points"], unit="points by NSGA-II", goal="report",
        close=CLOSE, methods=whole,
    )  # fmt: skip
    for method, figures in whole.items():
        print(f"  {method}: {figures}")


if __name__ == "__main__":
    for each in sys.argv[1:] or JOBS:
        measure(each)
