"""A synthetic device with known truth and noise: what `fit` recovers lies within the error that it states itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.calibration import CalibrationDocument
from cost_models.calibration.fit import fit_gemms
from cost_models.errors import CalibrationError
from cost_models.hardware import load_calibration
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.placement import place
from cost_models.inputs.cluster import resolve_cluster
from profiler.fit import build_document, merge

LATENCY_S, LINK = 12e-6, 360e9
MACHINE = {"gpu": "H100-SXM-80GB", "gpus_per_node": 4, "num_nodes": 1, "nvls": "off", "torch": "2.11", "driver": "580"}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NOW = "2026-11-27T10:00:00+00:00"


CLUSTER: dict[str, Any] = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 4}
PUBLIC = load_calibration(resolve_cluster(CLUSTER))


def true_product_s(m: float, n: float, k: float) -> float:
    """A device like the public one, with another power limit: 4 % slower per doubling of the rows past 512."""
    public_s = float(PUBLIC.gemm_s(float(m), float(n), float(k), precision="bf16").seconds)
    return public_s * (0.95 + 0.04 * np.log2(m / 512))


def true_collective_s(op: str, ranks: int, size: float) -> float:
    return LATENCY_S + float(bus_factor(op, np.float64(ranks))) * size / LINK  # type: ignore[arg-type]


def synthetic(noise: float, seed: int, *, created_at: str = NOW, sizes: range = range(13, 31)) -> CalibrationDocument:
    """What an agent would have found on such a device."""
    random = np.random.default_rng(seed)

    def noisy(seconds: float) -> dict[str, float]:
        return {"time_s": seconds * float(random.lognormal(0.0, noise)), "spread_fraction": noise}

    found: dict[str, list[dict[str, Any]]] = {
        "gemm": [
            {"m": m, "n": n, "k": k, **noisy(true_product_s(m, n, k))}
            for m in (512, 2048, 8192) for n in (2048, 4096, 8192) for k in (1024, 4096, 8192)
        ],
        "collectives": [
            {
                "op": op, "ranks": ranks, "ranks_per_node": ranks, "size_bytes": 2.0**e,
                **noisy(true_collective_s(op, ranks, 2.0**e)),
            }
            for op in OPS for ranks in (2, 4) for e in sizes
        ],
        "pairs": [{"first": 0, "second": 1, "bytes_per_s": 300e9, "link": "nvlink"}],
    }  # fmt: skip
    return build_document([found], name="synthetic", fingerprint=MACHINE, created_at=created_at)


def price(document: CalibrationDocument) -> Any:
    cluster = resolve_cluster({**CLUSTER, "calibration": document.id})
    return load_calibration(cluster, extra={document.id: document})


@given(noise=st.sampled_from([0.0, 0.01, 0.03]), seed=st.integers(0, 1000))
def test_collectives_are_recovered_within_their_stated_error(noise: float, seed: int) -> None:
    """Between measured sizes too; at least 80 % of the points lie within the residual (plus interpolation of the knee)."""
    calibration = price(synthetic(noise, seed))
    size = 2.0 ** np.arange(13.5, 29.6, 1.0)
    for op in OPS:
        priced = calibration.collective_s(
            op, size, placement=place(np.full(size.shape, 4.0), stride=1.0, cluster=calibration.cluster)
        )
        truth = np.array([true_collective_s(op, 4, s) for s in size])
        stated = max(f.residual_fraction for f in calibration.network.collective_fits if f.op == op) + 2 * noise
        assert np.quantile(np.abs(priced.seconds / truth - 1.0), 0.8) <= max(stated, 0.02)


@given(noise=st.sampled_from([0.0, 0.01, 0.03]), seed=st.integers(0, 1000))
def test_products_are_recovered_within_their_stated_error(noise: float, seed: int) -> None:
    """Shapes that were not measured: at least 80 % lie within the residual that the document states."""
    document = synthetic(noise, seed)
    calibration = price(document)
    shapes = [(m, n, k) for m in (1024, 4096) for n in (3072, 6144) for k in (2048, 6144)]
    m, n, k = (np.array(column, dtype=np.float64) for column in zip(*shapes, strict=True))
    truth = np.array([true_product_s(*shape) for shape in shapes])
    error = np.abs(calibration.gemm_s(m, n, k, precision="bf16").seconds / truth - 1.0)
    assert np.quantile(error, 0.8) <= document.gemm_fits[0].residual_fraction + 2 * noise


def test_measured_points_come_back_as_measured() -> None:
    document = synthetic(0.0, 0)
    calibration = price(document)
    estimate = calibration.gemm_s(2048.0, 4096.0, 4096.0, precision="bf16")
    assert float(estimate.seconds) == pytest.approx(true_product_s(2048, 4096, 4096), rel=0.01)
    assert int(estimate.tier) == 0


def test_a_merge_keeps_the_newer_and_adds_what_only_the_older_has() -> None:
    """The older one reaches 1 GiB, the newer one 1 MiB: 8 curves of 8 KiB to 512 MiB, small sizes of the newer."""
    older = synthetic(0.0, 0, created_at="2026-11-20T10:00:00+00:00")
    newer = synthetic(0.03, 1, sizes=range(13, 21))
    merged = merge(newer, older, now=datetime(2026, 11, 27, tzinfo=UTC))
    assert len(merged.collectives) == len(older.collectives)
    assert set(newer.collectives) <= set(merged.collectives)
    assert merged.collective_fits[0].size_bytes[-1] == 2.0**30
    assert merged.notes[-1].startswith("merged with synthetic of 2026-11-20")


def test_groups_that_ran_side_by_side_are_another_measurement_than_one_alone() -> None:
    """A merge keeps the older one's crowded samples, strided groups and nodes of other sizes beside the newer one's, and drops
    nothing but what was measured again.
    """

    def of(time_s: float, **fields: Any) -> dict[str, Any]:
        return {
            "op": "all_reduce", "ranks": 4, "ranks_per_node": 4, "size_bytes": 2.0**20, "time_s": time_s, **fields,
        }  # fmt: skip

    variants = [
        {"concurrent_groups": 2}, {"stride": 2}, {"ranks_per_node": 2}, {"ranks": 2, "ranks_per_node": 2},
        {"op": "all_gather"}, {"size_bytes": 2.0**21},
    ]  # fmt: skip
    older, newer = (
        build_document([{"collectives": rows}], name=name, fingerprint=MACHINE, created_at=NOW)
        for name, rows in (("old", [of(9e-3), *(of(2e-3, **each) for each in variants)]), ("new", [of(1e-3)]))
    )
    merged = merge(newer, older, now=datetime.fromisoformat(NOW))
    assert [sample.time_s for sample in merged.collectives] == [1e-3, *[2e-3] * len(variants)]


def test_products_of_another_kind_are_another_measurement() -> None:
    def of(time_s: float, **fields: Any) -> dict[str, Any]:
        return {"m": 512, "n": 1024, "k": 2048, "time_s": time_s, **fields}

    variants = [
        {"m": 1024}, {"n": 512}, {"k": 1024}, {"dtype": "fp8"}, {"layout": "dgrad"}, {"batch": 2},
        {"output_dtype": "fp32"},
    ]  # fmt: skip
    older, newer = (
        build_document([{"gemm": rows}], name=name, fingerprint=MACHINE, created_at=NOW)
        for name, rows in (("old", [of(9e-3), *(of(2e-3, **each) for each in variants)]), ("new", [of(1e-3)]))
    )
    merged = merge(newer, older, now=datetime.fromisoformat(NOW))
    assert [sample.time_s for sample in merged.gemm] == [1e-3, *[2e-3] * len(variants)]


def test_facts_and_samples_measured_again_replace_the_older_ones() -> None:
    """Host and memory facts by name, samples by all that says what was measured and nothing of what came out."""

    def of(rate: float, **facts: float) -> dict[str, Any]:
        return {
            "memory_bandwidth": [{"kind": "copy", "size_bytes": 1e9, "bytes_per_s": rate, "spread_fraction": rate / 1e15}],
            "pairs": [{"first": 0, "second": 1, "bytes_per_s": rate, "link": "nvlink"}],
            "memory": [facts],
        }  # fmt: skip

    older, newer = (
        build_document([found], name=name, fingerprint=MACHINE, created_at=NOW)
        for name, found in (
            ("old", of(1e12, capacity_bytes=80e9, context_bytes=5e8)), ("new", of(2e12, context_bytes=6e8)),
        )
    )  # fmt: skip
    merged = merge(newer, older, now=datetime.fromisoformat(NOW))
    assert [sample.bytes_per_s for sample in merged.memory_bandwidth] == [2e12]
    assert [sample.bytes_per_s for sample in merged.pairs] == [2e12]
    assert (merged.memory.capacity_bytes, merged.memory.context_bytes) == (80e9, 6e8)


def test_the_lowest_power_limit_is_the_machine_s() -> None:
    """The slowest rank sets the pace: of 700, 650 and 600 W, and one that does not say, 600."""
    devices = [{"rank": rank, "power_limit_w": limit} for rank, limit in enumerate((700.0, 600.0, 650.0))]
    found = [{"devices": [*devices, {"rank": 3}]}]
    document = build_document(found, name="capped", fingerprint=MACHINE, created_at=NOW)
    assert document.device.power_limit_w == 600.0
    sheet = build_document([{}], name="plain", fingerprint=MACHINE, created_at=NOW)
    assert sheet.device.power_limit_w == 700.0  # the data sheet's


@pytest.mark.parametrize(("days", "merges"), [(90, True), (90.001, False)])
def test_measurements_are_merged_until_they_are_ninety_days_old(days: float, merges: bool) -> None:
    document, now = synthetic(0.0, 0), datetime.fromisoformat(NOW) + timedelta(days=days)
    if merges:
        assert merge(document, document, now=now).collectives == document.collectives
        return
    with pytest.raises(CalibrationError, match="90 days old, and 90 days is the limit"):
        merge(document, document, now=now)


def test_other_machines_are_not_merged() -> None:
    newer = synthetic(0.0, 0)
    other = newer.model_copy(update={"fingerprint": newer.fingerprint.model_copy(update={"driver": "550"})})
    with pytest.raises(CalibrationError, match="driver '580' against '550'"):
        merge(newer, other)


def test_old_measurements_are_not_merged() -> None:
    document = synthetic(0.0, 0)
    with pytest.raises(CalibrationError, match="91 days old"):
        merge(document, document, now=datetime.fromisoformat(NOW) + timedelta(days=91))


def test_what_was_not_measured_stays_nominal() -> None:
    """No attention, no memory bandwidth, no network: the models say so."""
    calibration = price(synthetic(0.0, 0))
    assert int(calibration.memory_bytes_per_s_effective.tier) == 3
    assert calibration.attention_ratios == {}


def test_a_fit_says_the_range_of_each_side_of_the_products() -> None:
    """Rows from 512 to 8192, columns from 2048 to 8192, depths from 1024 to 8192; other types and layouts do not count."""
    plain = synthetic(0.0, 1).gemm
    other = [
        plain[0].model_copy(update={"m": 16, "k": 32768, "dtype": "fp8"}),
        plain[0].model_copy(update={"n": 99999, "batch": 2}),
    ]
    fit = fit_gemms([*plain, *other], peak_flops_per_s=1e15)
    assert fit is not None
    assert (fit.m_range, fit.n_range, fit.k_range) == ((512, 8192), (2048, 8192), (1024, 8192))
