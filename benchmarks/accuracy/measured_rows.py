"""Measured rows joined with their evaluations, as arrays over rows: what every score of the accuracy report is made of.

A row is {id, source, group, model, cluster, training, strategy, measured, complete}; its measurement never reaches the
planner. Numbers are NaN where a row or its evaluation has none. Arrays have shape (N,) over rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.active_share import total_and_active
from benchmarks.record import ROOT
from cost_models.units import GIB
from planner.rows import evaluate_rows

Json = Mapping[str, Any]
Floats = NDArray[np.float64]
MEASURED_ROWS = ROOT / "data" / "measured"
MEMORY_KINDS = ("allocated", "reserved", "device", "unspecified")


def read_rows(folder: Path = MEASURED_ROWS) -> dict[str, list[Json]]:
    """Rows by source, from every *.jsonl below the folder."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.jsonl"))}
    return {source: [json.loads(line) for line in text.splitlines() if line.strip()] for source, text in files.items()}


def scored_part(rows: Sequence[Json]) -> list[Json]:
    """The complete rows, or all rows of a source that has no complete one."""
    return [row for row in rows if row.get("complete") is True] or list(rows)


def evaluations(rows: Iterable[Json], *, calibration: str | None = None) -> list[Json]:
    """One evaluation per row, in order; what was measured is withheld."""
    # Only these keys: a measurement that reached the planner could not serve to judge it.
    asked = [{key: row.get(key) for key in ("id", "model", "cluster", "training", "strategy")} for row in rows]
    return list(evaluate_rows(asked, calibration=calibration))


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with what was measured and what was predicted."""

    rows: NDArray[np.object_]
    answers: NDArray[np.object_]
    source: NDArray[np.str_]
    ranking_group: NDArray[np.str_]
    """Source and group; empty for rows of no group."""
    verdict: NDArray[np.str_]
    """The predicted verdict; `missing` without an evaluation."""
    answered: NDArray[np.bool_]
    out_of_memory: NDArray[np.bool_]
    """Rows that were measured to run out of memory."""
    ran: NDArray[np.bool_]
    measured_s: Floats
    predicted_s: Floats
    low_s: Floats
    high_s: Floats
    null_s: Floats
    """6 N tokens / (GPUs x rate): rate is the median over the source's other rows of that GPU and precision."""
    one_factor_s: Floats
    """The prediction times the median measured / predicted of the source's other rows."""
    memory_kind: NDArray[np.str_]
    memory_error: Floats
    """Error of the kind of memory that was measured; of device memory for `unspecified`."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """These rows. Their baselines stay those of the whole table."""
        return type(self)(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @property
    def error(self) -> Floats:
        """Predicted / measured time - 1."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Rows with a measured and a predicted time."""
        return ~np.isnan(self.error)


def joined(scored: Sequence[Scored]) -> Scored:
    """All rows of several tables."""
    return Scored(**{f.name: np.concatenate([getattr(each, f.name) for each in scored]) for f in fields(Scored)})


def score_rows(rows: Sequence[Json], answers: Sequence[Json]) -> Scored:
    """The table of one source or of several; baselines are computed among these rows."""
    parsed = [_parsed(row, answer) for row, answer in zip(rows, answers, strict=True)]
    columns = {name: [each[name] for each in parsed] for name in parsed[0]}
    measured_s, predicted_s = np.array(columns["measured_s"]), np.array(columns["predicted_s"])
    work = np.array(columns.pop("flops_per_gpu"))
    rate = _others_median(work / measured_s, columns.pop("null_peers"))
    factor = _others_median(measured_s / predicted_s, columns["source"])
    kept: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    return Scored(
        rows=_objects(rows),
        answers=_objects(answers),
        null_s=work / rate,
        one_factor_s=predicted_s * factor,
        **kept,
    )


def _objects(values: Sequence[Json]) -> NDArray[np.object_]:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def _others_median(values: Floats, peers: Sequence[object]) -> Floats:
    """For each row the median over the other rows with the same peers; NaN if there are none."""
    medians = np.full(len(values), np.nan)
    places: dict[object, list[int]] = {}
    for place, key in enumerate(peers):
        places.setdefault(key, []).append(place)
    for group in places.values():
        for place in group:
            # Without the row itself, or the baseline would know the answer; a source with one row has no baseline.
            others = values[[other for other in group if other != place]]
            others = others[~np.isnan(others)]
            medians[place] = np.median(others) if others.size else np.nan
    return medians


def positive(value: object) -> float:
    """The value if it is a finite number above zero, otherwise NaN."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if good else math.nan  # type: ignore[arg-type]


def _parsed(row: Json, answer: Json) -> dict[str, Any]:
    cluster, training, strategy = row["cluster"], row["training"], row["strategy"]
    measured, source = row["measured"], str(row.get("source") or "?")
    verdict = answer.get("verdict") or "missing"
    answered = verdict not in ("missing", "invalid")
    # A row may name a preset instead of its nodes; the strategy then says how many GPUs it takes.
    gpus = positive(cluster.get("num_nodes")) * positive(cluster.get("gpus_per_node"))
    if math.isnan(gpus):
        degrees = (1.0 if math.isnan(value := positive(strategy.get(name))) else value for name in ("tp", "pp", "cp"))
        gpus = positive(strategy.get("dp")) * math.prod(degrees)
    tokens = positive(training.get("seq_length")) * positive(training.get("global_batch_size"))
    out_of_memory = measured.get("verdict") == "oom"
    measured_s = positive(measured.get("step_time_s"))
    # Papers give either the seconds of a step or the tokens per second and GPU; the second follows from the first and the batch.
    if math.isnan(measured_s):
        measured_s = tokens / (positive(measured.get("tokens_per_s_per_gpu")) * gpus)
    low, high = (answer.get("step_time_range_s") or (None, None)) if answered else (None, None)
    kind = measured.get("memory_kind")
    kind = kind if kind in MEMORY_KINDS else "unspecified"
    gpu = cluster.get("gpu")
    return {
        "source": source,
        "ranking_group": f"{source}/{row['group']}" if row.get("group") else "",
        "verdict": verdict,
        "answered": answered,
        "out_of_memory": out_of_memory,
        "ran": not out_of_memory and (measured.get("verdict") == "fits" or measured_s > 0),
        "measured_s": math.nan if out_of_memory else measured_s,
        "predicted_s": positive(answer.get("step_time_s")),
        "low_s": positive(low),
        "high_s": positive(high),
        "memory_kind": kind,
        "memory_error": _predicted_bytes(answer, kind) / (positive(measured.get("peak_memory_gib")) * GIB) - 1.0,
        "flops_per_gpu": 6.0 * _active_parameters(row["model"], answer) * tokens / gpus,
        "null_peers": (
            source,
            str((gpu.get("name") if isinstance(gpu, Mapping) else gpu) or cluster.get("preset") or "?"),
            str(training.get("precision")),
        ),
    }


def _predicted_bytes(answer: Json, kind: str) -> float:
    """Predicted peak of a memory kind; device for `unspecified`."""
    memory = answer.get("memory") or {}
    return positive(memory.get("peak_device_bytes" if kind == "unspecified" else f"peak_{kind}_bytes"))


def _active_parameters(model: Json, answer: Json) -> float:
    """N of the null model: the evaluation's parameters times the active share, or else a count from the model's fields."""
    total, active = total_and_active(model)
    predicted = positive(answer.get("num_parameters"))
    if math.isnan(predicted):
        return active
    return predicted * (1.0 if math.isnan(total) else active / total)
