"""From findings to a calibration: samples with their fits, facts of the device, and notes. Merging refuses to mix machines.

Curves come from `cost_models.calibration`, so that what is stored is what the cost models read. What was not measured is absent:
the models keep their nominal values for it and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cost_models.calibration import (
    CalibrationDocument,
    CollectiveSample,
    Device,
    GemmSample,
    PairSample,
    fit_collectives,
    fit_gemms,
)
from cost_models.errors import CalibrationError
from profiler.machine.fingerprint import CPU_NAME, device_of
from profiler.machine.topology import interconnect_of, slow_pairs
from profiler.tasks import Findings

MAX_AGE = timedelta(days=90)
"""Older samples are not merged into a new calibration, because drivers, libraries and links change."""
_LISTS = (
    "gemm", "collectives", "attention", "math_attention", "memory_bandwidth", "host_adam", "overlap", "pairs",
    "devices",
)  # fmt: skip
_FACTS = ("host", "memory")
_LAYERS = "host_layers"
"""Findings of layers' host time, one entry a class."""
# Efficiencies are rates over a peak and must stay below one. Nobody states the peak of a processor for these operations, so it is
# put a quarter above the best rate that was seen.
_HEADROOM = 1.25
"""Assumed peak of a processor over the best rate that was measured."""


def build_document(
    findings: Iterable[Findings],
    *,
    name: str,
    fingerprint: Mapping[str, Any],
    created_at: str,
    notes: Sequence[str] = (),
) -> CalibrationDocument:
    """The calibration of one machine.

    Args:
        findings: what the finished tasks found, in any order.
        name: the document's name.
        fingerprint: fields of the fingerprint but for the kind of link, which follows from the pairs.
        created_at: RFC 3339 time of the measurement's start.
        notes: what a reader must know, such as what was left out, throttling, and slow ranks.
    """
    lists, facts, remarks = _collected(findings)
    on_gpu = fingerprint["gpu"] != CPU_NAME
    device = device_of(fingerprint["gpu"]) if on_gpu else _processor(lists)
    pairs = [PairSample.model_validate(pair) for pair in lists["pairs"]]
    link = interconnect_of(pairs, link_bytes_per_s=device.link_bytes_per_s, ranks_per_node=fingerprint["gpus_per_node"])
    # The data sheet of a GPU with NVLink states that bandwidth, but a server may have left the bridges out.
    if on_gpu and link == "pcie":
        device = device_of(fingerprint["gpu"], on_fast_link=False)
    # The lowest limit of all devices: a step waits for the slowest one.
    limits = [state["power_limit_w"] for state in lists["devices"] if state.get("power_limit_w")]
    if limits:
        device = device.model_copy(update={"power_limit_w": min(limits)})
    content = {
        "schema_version": 1, "name": name, "kind": "measured", "created_at": created_at, "load": "sustained",
        "source": "meshwright profile run", "fingerprint": {**fingerprint, "interconnect": link},
        "device": device.model_dump(), **lists, **facts,
        "notes": tuple(dict.fromkeys([*notes, *remarks, *slow_pairs(pairs)])),
    }  # fmt: skip
    return fitted(CalibrationDocument.model_validate(content))


def fitted(document: CalibrationDocument) -> CalibrationDocument:
    """The document with its fits recomputed from its samples."""
    precisions = sorted({s.dtype for s in document.gemm} & set(document.device.peak_flops_per_s))
    fits = [
        fit_gemms(document.gemm, peak_flops_per_s=document.device.peak_flops_per_s[precision], dtype=precision)
        for precision in precisions
    ]
    content = document.model_dump()
    content["collective_fits"] = [fit.model_dump() for fit in fit_collectives(document.collectives)]
    content["gemm_fits"] = [fit.model_dump() for fit in fits if fit is not None]
    return CalibrationDocument.model_validate(content)


def _collected(findings: Iterable[Findings]) -> tuple[dict[str, list[Any]], dict[str, dict[str, Any]], list[str]]:
    lists: dict[str, list[Any]] = {field: [] for field in _LISTS}
    facts: dict[str, dict[str, Any]] = {field: {} for field in _FACTS}
    remarks: list[str] = []
    for found in findings:
        for field, entries in found.items():
            if field in lists:
                lists[field] += entries
            elif field == _LAYERS:
                for entry in entries:
                    times = {key: value for key, value in entry.items() if key != "layer_class"}
                    facts["host"].setdefault("layers", {})[entry["layer_class"]] = times
            elif field in facts:
                for entry in entries:
                    facts[field] |= entry
            else:
                remarks += [entry["text"] for entry in entries]
    return lists, facts, remarks


def _processor(lists: Mapping[str, Sequence[Mapping[str, Any]]]) -> Device:
    """A stand-in for the data sheet of a processor: somewhat more than the best rates that were measured."""
    rates = [2.0 * s["m"] * s["n"] * s["k"] * s.get("batch", 1) / s["time_s"] for s in lists["gemm"]]
    streams = [s["bytes_per_s"] for s in lists["memory_bandwidth"]]
    links = [s["bytes_per_s"] for s in lists["pairs"]]
    peak = _HEADROOM * max(rates, default=1e10)
    return Device(
        generation="unknown",
        peak_flops_per_s={"bf16": peak, "fp16": peak},
        memory_bytes_per_s=_HEADROOM * max(streams, default=1e9),
        link_bytes_per_s=_HEADROOM * max(links, default=1e9),
        num_sms=1,
    )


# --- merging ----------------------------------------------------------------------------------------------------------


def merge(
    newer: CalibrationDocument, older: CalibrationDocument, *, now: datetime | None = None
) -> CalibrationDocument:
    """The newer document, completed by what only the older one measured.

    Raises:
        CalibrationError: the two come from different machines or software, or the older one is too old.
    """
    mine, theirs = newer.fingerprint.model_dump(), older.fingerprint.model_dump()
    differing = [field for field in mine if mine[field] != theirs[field]]
    if differing:
        shown = ", ".join(f"{field} {mine[field]!r} against {theirs[field]!r}" for field in differing[:3])
        raise CalibrationError(
            f"{older.name!r} was measured on another machine or with other software: {shown}",
            hint="Only calibrations of one machine and one software stack can be merged.",
        )
    age = (now or datetime.now(UTC)) - moment_of(older)
    if age > MAX_AGE:
        raise CalibrationError(
            f"{older.name!r} is {age.days} days old, and {MAX_AGE.days} days is the limit for merging",
            hint="Measure again, because drivers, libraries and links change.",
        )
    content = newer.model_dump()
    for field, key in _KEYS.items():
        have = {key(sample) for sample in getattr(newer, field)}
        content[field] = [s.model_dump() for s in getattr(newer, field)] + [
            s.model_dump() for s in getattr(older, field) if key(s) not in have
        ]
    for field in _FACTS:
        before = getattr(older, field).model_dump(exclude_none=True)
        content[field] = {**before, **getattr(newer, field).model_dump(exclude_none=True)}
    content["host"]["layers"] = {**older.host.model_dump()["layers"], **newer.host.model_dump()["layers"]}
    # The fits are recomputed over all samples, since a curve of the older one may have gained points.
    content["notes"] = (*newer.notes, f"merged with {older.name} of {older.created_at} ({older.id[:12]})")
    return fitted(CalibrationDocument.model_validate(content))


def _collective_key(s: CollectiveSample) -> object:
    return s.op, s.ranks, s.ranks_per_node, s.stride, s.concurrent_groups, s.size_bytes


def _gemm_key(s: GemmSample) -> object:
    return s.m, s.n, s.k, s.dtype, s.layout, s.batch, s.output_dtype


def _untimed(s: Any) -> object:
    """Everything that identifies what was measured, without the result."""
    results = {
        "time_s",
        "spread_fraction",
        "bytes_per_s",
        "compute_slowdown_fraction",
        "communication_slowdown_fraction",
    }
    return tuple(sorted((k, v) for k, v in s.model_dump(exclude=results).items() if v is not None))


_KEYS: Mapping[str, Callable[[Any], object]] = {
    "gemm": _gemm_key,
    "collectives": _collective_key,
    "attention": _untimed,
    "math_attention": _untimed,
    "memory_bandwidth": _untimed,
    "host_adam": _untimed,
    "overlap": _untimed,
    "pairs": _untimed,
}


def moment_of(document: CalibrationDocument) -> datetime:
    """When the document was measured. A date without a time counts as its first moment, in UTC."""
    moment = datetime.fromisoformat(document.created_at)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
