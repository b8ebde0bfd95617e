"""What CP-SAT is worth: jobs whose layers per stage are open, planned in a process with OR-Tools and in one where it cannot be loaded.

Without it the best split that thresholds find stands, with the bound that they prove. Run: python -m benchmarks.without_cp_sat [JOB...].
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.record import ROOT, record
from benchmarks.search_proofs import request


def on_pools(model: str, old: str, new: str, nodes: int, seq_length: int, batch: int) -> dict[str, Any]:
    """A request for equally many nodes of two kinds."""
    pools = [{"name": "old", "preset": old, "num_nodes": nodes}, {"name": "new", "preset": new, "num_nodes": nodes}]
    return {**request(model, new, nodes, seq_length, batch), "cluster": {"pools": pools}}


JOBS: dict[str, dict[str, Any]] = {
    "llama_8b_a100_h100": on_pools("llama-3.1-8b", "dgx-a100-80gb", "dgx-h100", 1, 8192, 64),
    "llama_13b_a100_40_80": on_pools("llama-2-13b", "aws-p4d", "dgx-a100-80gb", 2, 4096, 128),
    "llama_70b_a100_h100": on_pools("llama-3.1-70b", "dgx-a100-80gb", "dgx-h100", 4, 8192, 128),
    "gpt_oss_120b_64_h100": request("gpt-oss-120b", "dgx-h100", 8, 8192, 512),
}


def planned(name: str, *, with_solver: bool) -> dict[str, Any]:
    """What this process finds; without the solver, importing OR-Tools fails in it as where it is not installed."""
    from planner.plan import plan

    if not with_solver:
        sys.modules["ortools"] = None  # type: ignore[assignment]
    cpu = time.process_time()
    answer = plan({**JOBS[name], "top_k": 1})
    cpu = time.process_time() - cpu
    best, proof = answer["plans"][0], answer["search"]["proof"]
    return {
        "cpu_s": round(cpu, 2), "step_time_s": best["evaluation"]["step_time_s"], "optimal": proof["optimal"], "gap": proof["gap"],
        "layers_per_stage": best["strategy"]["layers_per_stage"], "methods": answer["search"]["methods"],
    }  # fmt: skip


def measure(name: str) -> None:
    """Measures and records one job."""
    found = {}
    for how in ("with", "without"):
        command = [sys.executable, "-m", "benchmarks.without_cp_sat", "--one", name, how]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found[how] = json.loads(done.stdout.splitlines()[-1])
        print(f"  {how}: {found[how]}")
    record(f"cp_sat_{name}", value=found["with"]["gap"], unit="gap", goal="report", **found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(planned(sys.argv[2], with_solver=sys.argv[3] == "with")))
    else:
        for each in sys.argv[1:] or JOBS:
            measure(each)
