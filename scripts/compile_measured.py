"""Compiles data/measured_h100 and data/measured_h200 into named calibrations that ship inside the package.

Run it from the root of the repository. Runs of one machine are pooled by the median of each sample. A named calibration describes
one machine and is never a default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.frameworks.facts import TORCH_LAYER_KERNELS
from cost_models.hardware import read_document
from profiler.fit import fitted

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
TARGET = ROOT / "cost_models" / "reference" / "named"
EARLIER, LATER, LAST = "2026-11-27", "2026-11-28", "2026-11-30"
COMPILED = {
    f"h100x4-nvls-off-{LATER}": ("measured_h100", ("h100x4-full-run3", "h100x4-full-run4")),
    f"h100x2-nvls-off-{EARLIER}": ("measured_h100", ("h100x2",)),
    f"h100x1-{EARLIER}": ("measured_h100", ("h100x1",)),
    f"h200x2-nvls-off-{LATER}": ("measured_h200", ("h200x2",)),
    f"h200x2-nvls-off-{LAST}": ("measured_h200/whole_node_x2", ("profile_1", "profile_2")),
}
"""By the name that ships, the folder of the data and the runs in it."""
MEASURED = ("time_s", "bytes_per_s", "spread_fraction", "compute_slowdown_fraction", "communication_slowdown_fraction")
POOLED = ("gemm", "collectives", "attention", "math_attention", "memory_bandwidth", "host_adam", "overlap", "pairs")
LAYER_OPS = sum(TORCH_LAYER_KERNELS)
"""Operations of an eager layer in the step model. The host time of a plain layer is divided by them."""


def pooled(name: str, documents: Sequence[CalibrationDocument], *, folder: str) -> CalibrationDocument:
    """One document made of several runs, which are in this folder of data."""
    first = documents[0]
    assert all(document.fingerprint == first.fingerprint for document in documents), "runs of different machines"
    content = first.model_dump()
    for field in POOLED:
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for document in documents:
            for sample in getattr(document, field):
                groups[repr(sample.model_dump(exclude=set(MEASURED)))].append(sample.model_dump())
        content[field] = [middle(samples) for samples in groups.values()]
    for field in ("host", "memory"):
        content[field] = facts([getattr(document, field).model_dump(exclude_none=True) for document in documents])
    # Recomputed: the quotient of two medians need not be the median of quotients, and the two facts must agree.
    content["host"]["eager_op_s"] = rounded(content["host"]["plain_layer_s"] / LAYER_OPS)
    sources = ", ".join(f"{document.name} ({document.id[:12]})" for document in documents)
    content |= {"name": name, "licence": "Apache-2.0", "notes": (*first.notes, f"pooled from {sources}")}
    content["source"] = f"meshwright authors, data/{folder}"
    return fitted(CalibrationDocument.model_validate(content))


def facts(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of facts by name, also of those that lie in groups such as the classes of layers; the widest spread."""
    found: dict[str, list[Any]] = defaultdict(list)
    for document in each:
        for name, value in document.items():
            found[name].append(value)
    return {
        name: facts(values) if isinstance(values[0], Mapping)
        else rounded(max(values) if name.startswith("spread") else median(values))
        for name, values in found.items()
    }  # fmt: skip


def middle(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sample with the medians of what was measured, and the widest spread."""
    result = dict(samples[0])
    for field in MEASURED:
        if field in result:
            # The widest spread and not the median: pooling must not make a measurement look calmer than its worst run.
            values = [sample[field] for sample in samples]
            result[field] = rounded(max(values) if field == "spread_fraction" else median(values))
    return result


def rounded(value: float) -> float:
    return float(f"{value:.6g}")


def main() -> None:
    """Writes every named calibration and prints its size and id."""
    for name, (folder, sources) in COMPILED.items():
        runs = [read_document(DATA / folder / f"{source}.json") for source in sources]
        document = pooled(name, runs, folder=folder)
        path = TARGET / f"{name}.json"
        path.write_text(document.file_text(), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size} bytes  id {document.id[:12]}")


if __name__ == "__main__":
    main()
