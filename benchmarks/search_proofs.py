"""Seconds and memory of whole searches with their proof: jobs between 1,024 and 100,000 GPUs, each in a process of its own.

It also measures how late the largest one notices a request to stop, and by how much it exceeds its time limit.
Run: python -m benchmarks.search_proofs [NAME...].
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial
from typing import Any

from benchmarks.record import ROOT, record

# About what a user waits for without turning to something else. Clusters of 100,000 GPUs are planned rarely and may take twice as long.
GOAL = "<= 10"
LARGEST_GOAL = "<= 20"


def request(model: Any, cluster: str, nodes: int, seq_length: int, batch: int, **training: Any) -> dict[str, Any]:
    """A plan request for the best split of all; `model` is a preset's name or a specification."""
    return {
        "include": ["open_splits"],
        "model": {"preset": model} if isinstance(model, str) else model,
        "cluster": {"preset": cluster, "num_nodes": nodes},
        "training": {
            "seq_length": seq_length, "global_batch_size": batch, "precision": "bf16", "framework": "megatron", **training
        },
    }  # fmt: skip


def dense(num_layers: int, vocab_size: int = 128_256) -> dict[str, Any]:
    """A model as wide as a 70B one, with this many layers."""
    return {
        "num_layers": num_layers, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 28_672, "vocab_size": vocab_size,
    }  # fmt: skip


JOBS: dict[str, dict[str, Any]] = {
    "gpt3_175b_4096_a100": request("gpt3-175b", "dgx-a100-80gb", 512, 2048, 1536),
    "deepseek_v3_2048_h800": request("deepseek-v3", "hgx-h800", 256, 4096, 15_360),
    "llama_405b_16384_h100": request("llama-3.1-405b", "dgx-h100", 2048, 8192, 2048),
    "layers_78_over_12_stages": request(dense(78), "dgx-h100", 96, 8192, 1536) | {"constraints": {"fixed": {"pp": 12}}},
    "layers_126": request(dense(126), "dgx-h100", 128, 8192, 1024),
    "deepseek_v3_100000_h800": request("deepseek-v3", "hgx-h800", 12_500, 4096, 15_360),
    "deepseek_v3_100000_h800_batch_55440": request("deepseek-v3", "hgx-h800", 12_500, 4096, 55_440),
    "two_pools_a100_h100": request("llama-3.1-70b", "dgx-h100", 64, 8192, 1024)
    | {
        "cluster": {
            "pools": [
                {"name": "old", "preset": "dgx-a100-80gb", "num_nodes": 64},
                {"name": "new", "preset": "dgx-h100", "num_nodes": 64},
            ]
        }
    },
    "llama_405b_100000_h100": request("llama-3.1-405b", "dgx-h100", 12_500, 8192, 4000),
}


STOPPED = "deepseek_v3_100000_h800"
# Into every phase of the search: building the space, its first chunks, and deep inside.
STOPS_S = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)
LATE_GOAL = "<= 0.5"


def latest_s() -> dict[str, Any]:
    """The longest time between a stop and the answer, over stops at different times: asked for, and by time limit."""
    from planner.plan import plan

    late: dict[str, float] = {"cancelled": 0.0, "time": 0.0}
    for stop_s in STOPS_S:
        started = time.perf_counter()
        answer = plan(JOBS[STOPPED], should_stop=partial(_is_past, started + stop_s))
        assert answer["status"] == "cancelled"
        late["cancelled"] = max(late["cancelled"], time.perf_counter() - started - stop_s)
        started = time.perf_counter()
        answer = plan(JOBS[STOPPED] | {"time_limit_s": stop_s})
        assert any("time_limit_s" in warning for warning in answer["warnings"])
        late["time"] = max(late["time"], time.perf_counter() - started - stop_s)
    return late


def _is_past(end_s: float) -> bool:
    return time.perf_counter() > end_s


def measured(name: str) -> dict[str, Any]:
    """Time and memory that this process needs to plan one job, and what it found."""
    from planner.plan import plan

    started = time.perf_counter()
    cpu = time.process_time()
    answer = plan(JOBS[name])
    report = answer["search"]
    best = answer["plans"][0] if answer["plans"] else None
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "proof": report["proof"],
        "methods": report["methods"],
        "evaluated": report["evaluated"],
        "step_time_s": best and best["evaluation"]["step_time_s"],
        "strategy": best and {name: best["strategy"][name] for name in ("tp", "pp", "cp", "dp", "ep", "vpp", "zero")},
        "layers_per_stage": best and best["strategy"]["layers_per_stage"],
        "pool_per_stage": best and best["strategy"].get("pool_per_stage"),
        "inexpressible_gain": answer["inexpressible_best"] and answer["inexpressible_best"]["gain_fraction"],
    }


def measure(names: list[str]) -> None:
    """Measures and records every job."""
    for name in names:
        # A process of its own, because the peak of memory is that of a whole process and never falls.
        command = [sys.executable, "-m", "benchmarks.search_proofs", "--one", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        goal = LARGEST_GOAL if "100000" in name else GOAL
        record(f"search_{name}", value=found.pop("wall_s"), unit="s", goal=goal, **found)
        print(json.dumps(found))
    if STOPPED in names:
        late = latest_s()
        record("search_stop", value=max(late.values()), unit="s late", goal=LATE_GOAL, stops_s=STOPS_S, **late)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2])))
    else:
        measure(sys.argv[1:] or list(JOBS))
