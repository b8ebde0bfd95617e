"""Where a step's time goes on the GPU: torchrun --nproc-per-node 2 -m benchmarks.wider_runs.traced NAME OUT.json

Profiles three steps of the case of that name and sums, for the stream that computes: its kernels, its gaps, and the same kernels beside a
collective and without one. A kernel's slowing by NCCL is read from kernels of one name and one grid that met both.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.wider_runs.cases import CASES
from benchmarks.wider_runs.child import WARM_UP, Run

_STEPS = 3
Span = tuple[float, float]


def main() -> None:
    """Writes rank 0's sums in microseconds of the profiled steps."""
    case = next(each for each in CASES if each["name"] == sys.argv[1])
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    if case["form"] == "fsdp2":
        dist.init_process_group("nccl", rank=rank, world_size=world, device_id=device)
    run = Run(case, device)
    step_s = [run.timed(run.whole) for _ in range(2 * WARM_UP)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        profiled_s = [run.timed(run.whole) for _ in range(_STEPS)]
    if rank == 0:
        trace = Path(sys.argv[2]).with_suffix(".trace")
        found.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        trace.unlink()
        with gzip.open(Path(sys.argv[2]).with_suffix(".kernels.gz"), "wt") as listed:
            json.dump(kernels_listed(events), listed)
        Path(sys.argv[2]).write_text(
            json.dumps({"case": case["name"], "step_s": step_s, "profiled_s": profiled_s, **summed(events)}, indent=1)
        )
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def summed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of a Chrome trace's kernels.

    Args:
        events: the trace's events; times in microseconds.
    """
    kernels = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    collectives = [each for each in kernels if each["name"].startswith("nccl")]
    by_stream: dict[int, float] = defaultdict(float)
    for each in kernels:
        by_stream[each["args"]["stream"]] += each["dur"]
    # The barriers between steps run on the stream that computes, so that which it is shows by its sum alone.
    computing = max(by_stream, key=lambda stream: by_stream[stream])
    main = sorted((each for each in kernels if each["args"]["stream"] == computing), key=lambda each: each["ts"])
    collectives = [each for each in collectives if each["args"]["stream"] != computing]
    busy = _union([(each["ts"], each["ts"] + each["dur"]) for each in collectives])
    alike: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: {"alone": [], "beside": []})
    for each in main:
        shared = _covered((each["ts"], each["ts"] + each["dur"]), busy) / max(each["dur"], 1e-9)
        if shared < 0.02 or shared > 0.98:
            key = (each["name"][:90], str(each["args"].get("grid")))
            alike[key]["alone" if shared < 0.02 else "beside"].append(each["dur"])
    ends = _union([(each["ts"], each["ts"] + each["dur"]) for each in main])
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(ends)]
    both = {
        " ".join(key): {
            kind: {"count": len(v), "mean_us": round(sum(v) / len(v), 2)} if v else None for kind, v in each.items()
        }
        for key, each in sorted(alike.items(), key=lambda item: -sum(map(sum, item[1].values())))[:60]
    }
    return {
        "kernel_us": round(sum(each["dur"] for each in main), 1),
        "gap_us": round(sum(gaps), 1),
        "gaps_over_50_us": sorted((round(gap, 1) for gap in gaps if gap > 50), reverse=True)[:40],
        "beside_collective_us": round(sum(_covered(span, busy) for span in ends), 1),
        "streams_us": {str(stream): round(value, 1) for stream, value in sorted(by_stream.items())},
        "collectives": _collectives(collectives),
        "kernels": both,
    }


def kernels_listed(events: list[dict[str, Any]]) -> list[list[Any]]:
    """Every kernel as stream, begin, microseconds, launch by the host (or None) and name, in order of begin."""
    launched = {
        each["args"]["correlation"]: each["ts"] for each in events
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each.get("args", {})
    }  # fmt: skip
    return sorted(
        [
            each["args"]["stream"],
            each["ts"],
            each["dur"],
            launched.get(each["args"].get("correlation")),
            each["name"][:100],
        ]
        for each in events
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )


def _collectives(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for each in found:
        by_name[f"{each['name'][:60]} {each['args'].get('In msg nelems', '')}"].append(each["dur"])
    return {name: {"count": len(v), "sum_us": round(sum(v), 1)} for name, v in by_name.items()}


def _union(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _covered(span: Span, spans: list[Span]) -> float:
    return sum(max(0.0, min(span[1], end) - max(span[0], begin)) for begin, end in spans)


if __name__ == "__main__":
    main()
