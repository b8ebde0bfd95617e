"""What is said of a collective's algorithms, on the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.units import GIB, MICRO

Json = Mapping[str, Any]
_KIB, _MIB = 2.0**10, 2.0**20
OPERATIONS = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all",
    "broadcast": "broadcast", "send_recv": "send and receive",
}  # fmt: skip


GROUPS = {
    "tp": "tensor parallel", "cp": "context parallel", "ep": "expert parallel", "dp": "data parallel",
    "dp_replicas": "copies of the shards", "pp": "next stage",
}  # fmt: skip
CALL_COLUMNS = ("group", "operation", "size", "ranks", "nodes", "algorithm", "latency, us", "bytes, us", "origin")
CALLS_NOTE = (
    "The largest call of each group, alone on its links: latency and bytes add up to its time. A measured time has the algorithm that "
    "the library took when it was measured."
)


def call_rows(evaluation: Json) -> list[tuple[str, ...]]:
    """The collectives of an evaluation, a row for each in the order of CALL_COLUMNS; empty where they are not told."""
    told = (evaluation.get("provenance") or {}).get("collectives") or ()
    return [
        (
            GROUPS[call["group"]],
            OPERATIONS[call["op"]],
            size_words(call["bytes"]),
            f"{call['num_ranks']:,}",
            f"{call['num_nodes']:,}",
            call["algorithm"] if call["protocol"] is None else f"{call['algorithm']}, {call['protocol']}",
            micros(call["latency_s"]),
            micros(call["bandwidth_s"]),
            call["tier"],
        )
        for call in told
    ]


def title(document: Json) -> str:
    """Which collective, over which ranks."""
    nodes = document["num_nodes"]
    where = "one node" if nodes == 1 else f"{nodes:,} nodes"
    operation = OPERATIONS[document["op"]].capitalize()
    return f"{operation} of {document['num_ranks']:,} ranks on {where} of {document['cluster']}"


def label(curve: Json) -> str:
    """An algorithm with its library; a star marks what the library takes only where it is forced."""
    return f"{curve['library']} {curve['algorithm']}{'' if curve['taken'] else ' *'}"


def size_words(size_bytes: float) -> str:
    """A size in whole binary units, such as 16 MiB."""
    for unit, name in ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.0f} {name}"
    return f"{size_bytes:,.0f} B"


def micros(time_s: float) -> str:
    """Seconds in microseconds, to three digits or whole."""
    us = time_s / MICRO
    return f"{us:,.0f}" if us >= 100.0 else f"{us:.1f}"


def priced_words(document: Json, place: int) -> str:
    """What plans are priced with at one size: the time, and where it comes from."""
    priced = document["priced"]
    algorithm, protocol = priced["algorithm"][place], priced["protocol"][place]
    return algorithm if protocol is None else f"{algorithm}, {protocol}"


def note(document: Json) -> str:
    """What the numbers mean."""
    told = "Microseconds of one call. Plans are priced with the column of that name; measured curves go before any formula."
    if any(not curve["taken"] for curve in document["algorithms"]):
        told += " * The library takes this algorithm only where it is forced."
    return told


def measured_note(document: Json) -> str:
    """Where the measured points come from."""
    measured = document["measured"]
    if measured is None:
        return "No calibration measured this group."
    groups = measured["concurrent_groups"]
    beside = "alone" if groups == 1 else f"with {groups} such groups at once"
    return f"Measured points: calibration {measured['calibration']}, {beside}."


def measured_at(document: Json, size_bytes: float) -> float | None:
    """Seconds that were measured at a size, within one part in a hundred of it; None where there is no such point."""
    measured = document["measured"]
    if measured is None:
        return None
    points = zip(measured["size_bytes"], measured["seconds"], strict=True)
    return next((time_s for size, time_s in points if abs(size / size_bytes - 1.0) < 0.01), None)
