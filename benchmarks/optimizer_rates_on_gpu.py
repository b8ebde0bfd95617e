"""Seconds of optimizers that go over tensors one by one, from tensors alike: python -m benchmarks.optimizer_rates_on_gpu OUT.json

Steps each optimizer over many equal bf16 matrices, of several sizes and counts, so that what a tensor costs and what an element costs come
apart: t = tensors x (a + elements x b). The host's queue is held up before each step is timed on the device too, so that device and wall
seconds can be told apart.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.record import machine_description
from benchmarks.wider_runs.optimizers import _SINGLE

_CASES = [(512, 2048, 64), (2048, 2048, 64), (2048, 6144, 64), (8192, 3072, 32), (2048, 6144, 128)]
"""Rows, columns and number of the tensors."""


def main() -> None:
    """Writes every measurement, wall and device seconds."""
    found: list[dict[str, Any]] = []
    for name in ("adamw", "adam-8bit-bitsandbytes", "lion", "adam-8bit-torchao", "adam-4bit-torchao"):
        for dtype in (torch.bfloat16, torch.float32):
            for rows, columns, count in _CASES:
                try:
                    found.append(_measured(name, dtype, rows, columns, count))
                except (RuntimeError, ValueError, TypeError) as error:
                    found.append({"optimizer": name, "dtype": str(dtype), "error": str(error)[:300]})
                print(json.dumps(found[-1]), flush=True)
                entry = {"commit": sys.argv[2], "date": datetime.now(UTC).strftime("%Y-%m-%d"), "gpu": torch.cuda.get_device_name(),
                         "machine": machine_description(), "measured": found}  # fmt: skip
                Path(sys.argv[1]).write_text(json.dumps(entry, indent=1) + "\n")


def _measured(name: str, dtype: torch.dtype, rows: int, columns: int, count: int) -> dict[str, Any]:
    tensors = [torch.randn(rows, columns, device="cuda", dtype=dtype, requires_grad=True) for _ in range(count)]
    for each in tensors:
        each.grad = torch.randn_like(each)
    optimizer = _SINGLE[name](tensors)
    for _ in range(3):
        optimizer.step()
    wall, device = [], []
    for _ in range(7):
        torch.cuda.synchronize()
        begun_at = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        wall.append(time.perf_counter() - begun_at)
    for _ in range(5):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # A quarter of a second in which the host runs ahead, so that the device's own pace shows where nothing waits for it.
        torch.cuda._sleep(400_000_000)  # noqa: SLF001 - what PyTorch's own tests wait with
        begun.record()
        optimizer.step()
        ended.record()
        torch.cuda.synchronize()
        device.append(begun.elapsed_time(ended) / 1e3)
    return {
        "optimizer": name, "dtype": str(dtype), "rows": rows, "columns": columns, "tensors": count,
        "wall_s": median(wall), "device_s": median(device),
    }  # fmt: skip


if __name__ == "__main__":
    main()
