"""What is said of a plan's collectives: rows of a table with the algorithm, its protocol and the two parts of the time."""

from __future__ import annotations

from app.collective_words import call_rows, size_words


def test_collectives_are_rows_with_both_parts_of_their_time() -> None:
    ring = {
        "group": "dp", "op": "reduce_scatter", "bytes": 2.0**28, "num_ranks": 16, "num_nodes": 2, "algorithm": "ring",
        "protocol": "Simple", "latency_s": 42.8e-6, "bandwidth_s": 3469.5e-6, "tier": "nominal",
    }  # fmt: skip
    curve = {**ring, "group": "tp", "op": "all_reduce", "algorithm": "measured", "protocol": None, "num_nodes": 1}
    assert call_rows({"provenance": {"collectives": [ring, {**curve, "tier": "interpolated"}]}}) == [
        ("data parallel", "reduce-scatter", "256 MiB", "16", "2", "ring, Simple", "42.8", "3,470", "nominal"),
        ("tensor parallel", "all-reduce", "256 MiB", "16", "1", "measured", "42.8", "3,470", "interpolated"),
    ]
    # Evaluations on pools tell of none, invalid ones have no provenance, and those of earlier releases have no such field.
    assert call_rows({"provenance": {}}) == call_rows({"provenance": None}) == call_rows({}) == []


def test_sizes_are_whole_binary_units() -> None:
    assert [size_words(size) for size in (512.0, 2.0**10, 2.0**24, 2.0**33)] == ["512 B", "1 KiB", "16 MiB", "8 GiB"]
