"""From findings to a document: what a processor's peak is taken to be, which link a GPU has, and what is never merged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cost_models.calibration import CalibrationDocument
from cost_models.errors import CalibrationError
from profiler.fit import build_document, merge

MACHINE = {"gpu": "H100-SXM-80GB", "gpus_per_node": 2, "num_nodes": 1, "nvls": "off", "torch": "2.11", "driver": "580"}


def document(*, days_ago: float = 0.0, machine: dict[str, Any] | None = None, **found: Any) -> CalibrationDocument:
    made = datetime.now(UTC) - timedelta(days=days_ago)
    return build_document([found], name="mine", fingerprint=MACHINE | (machine or {}), created_at=made.isoformat())


def test_a_processor_is_taken_to_reach_a_quarter_more_than_its_best_rates() -> None:
    """2 x 100 x 200 x 300 x 4 operations in 1 ms are 48 GFLOP/s; another product is slower."""
    products = [
        {"m": 100, "n": 200, "k": 300, "batch": 4, "time_s": 1e-3}, {"m": 100, "n": 200, "k": 300, "time_s": 1e-3},
    ]  # fmt: skip
    streams = [
        {"kind": kind, "size_bytes": 1e6, "bytes_per_s": rate} for kind, rate in (("copy", 8e9), ("elementwise", 6e9))
    ]
    pairs = [{"first": 0, "second": 1, "bytes_per_s": 2e9, "link": "loopback"}]
    device = document(machine={"gpu": "CPU"}, gemm=products, memory_bandwidth=streams, pairs=pairs).device
    assert device.peak_flops_per_s == {"bf16": pytest.approx(60e9), "fp16": pytest.approx(60e9)}
    assert (device.memory_bytes_per_s, device.link_bytes_per_s) == (pytest.approx(10e9), pytest.approx(2.5e9))


@pytest.mark.parametrize(("link", "kind", "link_bytes_per_s"), [("pcie", "pcie", 64e9), ("nvlink", "nvswitch", 450e9)])
def test_a_server_without_its_gpus_bridges_has_the_bandwidth_of_pcie(
    link: str, kind: str, link_bytes_per_s: float
) -> None:
    """PCIe 5.0 x16 carries 64 GB/s each way, NVLink 4 450."""
    found = document(pairs=[{"first": 0, "second": 1, "bytes_per_s": 300e9, "link": link}])
    assert found.fingerprint.interconnect == kind
    assert found.device.link_bytes_per_s == pytest.approx(link_bytes_per_s, rel=0.02)
    assert (found.kind, found.device.generation) == ("measured", "hopper")


def test_a_document_of_today_is_merged_and_one_of_last_season_is_not() -> None:
    newer = document()
    assert merge(newer, document(days_ago=30.0)).notes[-1].startswith("merged with mine of ")
    with pytest.raises(CalibrationError, match="is 100 days old"):
        merge(newer, document(days_ago=100.1))


def test_a_class_of_layers_timed_again_replaces_the_older_one_and_others_stay() -> None:
    def timed(name: str, forward_s: float) -> dict[str, Any]:
        return {"layer_class": name, "forward_s": forward_s, "backward_s": 3.0, "spread": 0.1}

    newer = document(host=[{"eager_op_s": 2e-5}], host_layers=[timed("a", 1.0), timed("b", 2.0)])
    merged = merge(newer, document(host_layers=[timed("b", 7.0), timed("c", 8.0)]))
    assert {name: layer.forward_s for name, layer in merged.host.layers.items()} == {"a": 1.0, "b": 2.0, "c": 8.0}
    assert (merged.host.eager_op_s, merged.host.layers["c"].backward_s) == (2e-5, 3.0)


def test_three_of_the_differences_between_machines_are_told() -> None:
    other = document(machine={"nvls": "on", "torch": "2.12", "driver": "590", "num_nodes": 2})
    with pytest.raises(CalibrationError) as caught:
        merge(document(), other)
    assert str(caught.value).count(" against ") == 3
