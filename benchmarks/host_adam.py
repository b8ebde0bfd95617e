"""How fast the processors of a node update Adam's state, by the number of processes that do so at once and their threads.

    python -m benchmarks.host_adam [--out FILE]

Prints one JSON line per setting: the node's bytes per second, and the share of one process. A parameter counts 28 bytes, since the fp32
parameter and two moments are read and written and the gradient is read. Needs torch, but no GPU. A rate that no longer grows with
the number of processes is that of the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PARAMETERS = 2**26
"""Parameters of each process, with 1 GiB of state and gradients: far more than any cache holds."""
BYTES = 28
STEPS = 4


def _updates(threads: int, barrier: Any, seconds: Any) -> None:
    import torch

    torch.set_num_threads(threads)
    parameter = torch.nn.Parameter(torch.zeros(PARAMETERS))
    parameter.grad = torch.ones(PARAMETERS)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    # The first step allocates the moments, which costs page faults and no bandwidth worth measuring.
    optimizer.step()
    for _ in range(STEPS):
        barrier.wait()
        started = time.perf_counter()
        optimizer.step()
        seconds.put(time.perf_counter() - started)


def measured(ranks: int, threads: int) -> dict[str, Any]:
    """The rate of the median step with this many processes and threads."""
    from torch import multiprocessing

    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(ranks), context.Queue()
    workers = [context.Process(target=_updates, args=(threads, barrier, seconds)) for _ in range(ranks)]
    for worker in workers:
        worker.start()
    found = sorted(seconds.get() for _ in range(ranks * STEPS))
    for worker in workers:
        worker.join()
    step_s = found[len(found) // 2]
    rate = ranks * PARAMETERS * BYTES / step_s
    return {
        "ranks": ranks,
        "threads_each": threads,
        "step_s": round(step_s, 4),
        "node_gb_per_s": round(rate / 1e9, 2),
        "rank_gb_per_s": round(rate / ranks / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    settings = [(1, 1), (1, cores), *((ranks, max(cores // ranks, 1)) for ranks in (2, 4, 8) if ranks <= cores), (8, 1)]
    lines = [json.dumps(measured(ranks, threads)) for ranks, threads in settings if ranks <= cores]
    text = "\n".join([json.dumps({"cores": cores}), *lines]) + "\n"
    sys.stdout.write(text)
    if asked.out is not None:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
