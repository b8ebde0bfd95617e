"""How far apart two calibrations of one kind of machine are, by products and collectives at the shapes that both measured.

    python benchmarks/profile_compare.py A.json B.json      (files, or names of shipped calibrations)

Prints by family the median of B over A minus 1 and of its absolute value, for collectives of 16 MiB and above.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from cost_models.calibration import CalibrationDocument
from cost_models.hardware import read_document, shipped_document

# Below these a measurement is mostly latency and launches, which differ between hosts and not between GPUs.
LARGE_BYTES = 16 * 2**20
LONG_S = 1e-3


def read(name: str) -> CalibrationDocument:
    return shipped_document(name) or read_document(Path(name))


def products(document: CalibrationDocument) -> dict[tuple[object, ...], float]:
    return {(s.layout, s.dtype, s.batch, s.output_dtype, s.m, s.n, s.k): s.time_s for s in document.gemm}


def collectives(document: CalibrationDocument) -> dict[tuple[object, ...], float]:
    return {
        (s.op, s.ranks, s.ranks_per_node, s.stride, s.concurrent_groups, s.size_bytes): s.time_s
        for s in document.collectives
    }


def show(title: str, ratios: list[float]) -> None:
    if not ratios:
        return
    off = [abs(ratio) for ratio in ratios]
    within = sum(ratio <= 0.03 for ratio in off) / len(off)
    print(
        f"{title:44} {len(ratios):4} pairs  median {100 * median(ratios):+6.1f} %  median |.| {100 * median(off):5.1f} %  "
        f"largest {100 * max(off):5.1f} %  within 3 %: {100 * within:3.0f} %"
    )


def main() -> None:
    """Compares the two documents that the command line names."""
    first, second = (read(name) for name in sys.argv[1:3])
    by_layout: dict[str, list[float]] = defaultdict(list)
    a, b = products(first), products(second)
    for key in a.keys() & b.keys():
        ratio = a[key] / b[key] - 1.0  # throughput of B over A
        label = f"products {key[0]} {key[1]}{'' if key[2] == 1 else ' batched'}"
        by_layout[label].append(ratio)
        if a[key] >= LONG_S and key[2] == 1:
            by_layout[f"{label}, 1 ms and longer"].append(ratio)
    for label, ratios in sorted(by_layout.items()):
        show(label, ratios)
    by_group: dict[str, list[float]] = defaultdict(list)
    c, d = collectives(first), collectives(second)
    for key in c.keys() & d.keys():
        op, ranks, per_node, stride, concurrent, size_bytes = key
        if isinstance(size_bytes, float) and size_bytes >= LARGE_BYTES:
            by_group[
                f"{op} {per_node}x{int(str(ranks)) // int(str(per_node))} stride {stride} at once {concurrent}"
            ].append(c[key] / d[key] - 1.0)
            by_group["collectives, all of 16 MiB and larger"].append(c[key] / d[key] - 1.0)
    for label, ratios in sorted(by_group.items()):
        show(label, ratios)


if __name__ == "__main__":
    main()
