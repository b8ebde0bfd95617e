"""How much longer kernels take beside NCCL's: torchrun --nproc-per-node 2 -m benchmarks.products_beside_nccl_on_gpu OUT.json COMMIT

Times products of bf16 matrices, an elementwise kernel and attention alone and while a collective runs on another stream from their begin to
their end, and how long the collective takes alone and beside them. NCCL_MAX_CTAS, which the caller sets, says how many multiprocessors it holds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.record import machine_description

_PRODUCTS = [
    (8192, 2048, 2048),
    (8192, 6144, 2048),
    (8192, 2048, 6144),
    (8192, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
]
"""Rows, columns and summed dimension."""
_BYTES = 512 << 20
"""What a rank holds after an all-gather: it outlasts every kernel timed."""
_REPEATS = 7

Work = Callable[[], object]


def main() -> None:
    """Writes rank 0's medians in microseconds."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world, other = dist.get_world_size(), torch.cuda.Stream()
    whole = torch.empty(_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    part = torch.empty(whole.numel() // world, dtype=torch.bfloat16, device="cuda")
    sums = torch.zeros(_BYTES // 4, dtype=torch.float32, device="cuda")
    shard = torch.empty(sums.numel() // world, dtype=torch.float32, device="cuda")
    collectives: dict[str, Work] = {
        "all_gather bf16": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter fp32": lambda: dist.reduce_scatter_tensor(shard, sums),
    }
    found = []
    for name, work in _kernels().items():
        alone_us = _timed(work)
        for kind, collective in collectives.items():
            beside_us, within = _beside(work, collective, other)
            found.append(
                {
                    "kernel": name,
                    "beside": kind,
                    "alone_us": alone_us,
                    "beside_us": beside_us,
                    "inside_the_collective": within,
                }
            )
    if dist.get_rank() == 0:
        alone = {kind: _timed(collective, count=1) for kind, collective in collectives.items()}
        entry = {
            "commit": sys.argv[2], "date": datetime.now(UTC).strftime("%Y-%m-%d"), "gpu": torch.cuda.get_device_name(), "ranks": world,
            "machine": machine_description(), "max_ctas": os.environ.get("NCCL_MAX_CTAS"), "bytes": _BYTES, "measured": found,
        }  # fmt: skip
        Path(sys.argv[1]).write_text(json.dumps({**entry, "collectives_alone_us": alone}, indent=1) + "\n")
    else:
        for collective in collectives.values():
            _timed(collective, count=1)
    dist.barrier()
    dist.destroy_process_group()


def _kernels() -> dict[str, Work]:
    def product(m: int, n: int, k: int) -> Work:
        a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
        return lambda: a @ b.T

    kernels = {f"product {m} x {n} x {k}": product(m, n, k) for m, n, k in _PRODUCTS}
    large = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(2, 16, 4096, 128, device="cuda", dtype=torch.bfloat16)
    kernels["sum of 64 Mi elements"] = lambda: torch.add(large, large)
    kernels["causal attention, 2 x 16 heads, 4,096 tokens"] = lambda: scaled_dot_product_attention(
        q, q, q, is_causal=True
    )
    return kernels


def _timed(work: Work, count: int = 4) -> float:
    """Median microseconds of one call in a row of some."""
    spans: list[float] = []
    for _ in range(_REPEATS):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000)  # noqa: SLF001 - a millisecond in which the host runs ahead
        begun.record()
        for _ in range(count):
            work()
        ended.record()
        torch.cuda.synchronize()
        spans.append(float(begun.elapsed_time(ended)) * 1e3 / count)
    return round(median(spans), 2)


def _beside(work: Work, collective: Work, other: torch.cuda.Stream) -> tuple[float, bool]:
    """Median microseconds of a call beside the collective, and whether all calls ended before it did."""
    spans: list[float] = []
    within = True
    for _ in range(_REPEATS):
        begun, ended, over = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        dist.barrier()
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            for _ in range(4):
                collective()
            over.record()
        # Two milliseconds after the first collective began.
        torch.cuda._sleep(4_000_000)  # noqa: SLF001
        begun.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        spans.append(float(begun.elapsed_time(ended)) * 1e3)
        within = within and ended.elapsed_time(over) > 0
    return round(median(spans), 2), within


if __name__ == "__main__":
    main()
