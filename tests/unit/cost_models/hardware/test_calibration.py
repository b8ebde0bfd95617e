"""Calibration documents: their digest, what is refused, how fits clean curves, how documents combine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import dense_model, job_of
from cost_models.calibration import NOMINAL_RESIDUALS, CalibrationDocument, CollectiveSample, fit_collectives
from cost_models.constants import DTENSOR_HOST_RATIO
from cost_models.errors import CalibrationError
from cost_models.hardware import (
    document_of,
    load_calibration,
    parse_document,
    read_document,
    reference_document,
    reference_names,
    shipped_document,
    shipped_names,
)
from cost_models.hardware.placement import place
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.terms import Tier

H100 = Gpu("H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12, "fp8": 1978.9e12}, 3.352e12, 450e9, 63e9, 132, 700.0,
           reference="H100-SXM-80GB")  # fmt: skip
CLUSTER = Cluster("unit", H100, 4, 8, 8, "nvswitch", 450e9, 2e-6, 2, 4, Network("infiniband", 50e9, 8, 4e-6))
PROFILE = "h100x4-nvls-off-2026"
MINIMAL: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-27",
    "fingerprint": {"gpu": "H100-SXM-80GB"},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
}  # fmt: skip


def collectives(op: str, times_s: list[float], *, ranks: int = 4, per_node: int = 4) -> list[dict[str, Any]]:
    return [
        {"op": op, "size_bytes": 2.0 ** (20 + i), "ranks": ranks, "ranks_per_node": per_node, "time_s": t}
        for i, t in enumerate(times_s)
    ]


def test_a_document_survives_its_file_and_keeps_its_id() -> None:
    document = document_of({**MINIMAL, "collectives": collectives("all_reduce", [1e-4, 2e-4])})
    again = parse_document(document.file_text())
    assert again == document
    assert again.id == document.id
    assert len(document.id) == 64


def test_the_id_is_over_content_not_spelling() -> None:
    """Key order, 1 against 1.0, and a default written out don't change it; a value does."""
    reordered = dict(reversed(MINIMAL.items()))
    spelled = {**MINIMAL, "licence": "", "device": {**MINIMAL["device"], "link_bytes_per_s": 450000000000}}
    assert document_of(reordered).id == document_of(spelled).id == document_of(MINIMAL).id
    assert document_of({**MINIMAL, "name": "yours"}).id != document_of(MINIMAL).id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (document_of(MINIMAL).file_text()[:-20], "not complete JSON"),
        (document_of(MINIMAL).file_text().replace('"mine"', '"edited"'), "does not match its id"),
        (json.dumps({**MINIMAL, "schema_version": 2}), "schema version 2; this release reads up to 1"),
        (json.dumps({**MINIMAL, "schema_version": True}), "/schema_version is True; it must be a whole number"),
        (json.dumps({**MINIMAL, "created": "x"}), "/created: Extra inputs are not permitted"),
        (json.dumps({**MINIMAL, "gemm": [{"m": 0, "n": 1, "k": 1, "time_s": 1.0}]}), "/gemm/0/m"),
        ("[]", "is not a JSON object"),
        (json.dumps({**MINIMAL, "device": {**MINIMAL["device"], "peak_flops_per_s": {}}}), "needs bf16 or fp16"),
    ],
)
def test_damaged_edited_and_newer_documents_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message) as caught:
        parse_document(text, origin="a.json")
    assert caught.value.hint
    assert "a.json" in caught.value.message


def test_infinite_and_missing_times_are_refused() -> None:
    for bad in (float("inf"), float("nan"), -1.0, 0.0):
        with pytest.raises(CalibrationError):
            document_of({**MINIMAL, "collectives": collectives("all_reduce", [bad])})


@pytest.mark.parametrize(
    "changed",
    [
        {"collectives": collectives("all_reduce", [1e300])},
        {"gemm": [{"m": 1, "n": 1, "k": 1, "time_s": 1e-300}]},
        {"gemm": [{"m": 10**30, "n": 1, "k": 1, "time_s": 1.0}]},
        {"device": {**MINIMAL["device"], "peak_flops_per_s": {"bf16": 1e-300}}},
        {
            "gemm_fits": [
                {"dtype": "bf16", "residual_fraction": 1e300, "m_range": (1, 2), "n_range": (1, 2), "k_range": (1, 2)}
            ]
        },
    ],
)
def test_numbers_that_no_machine_has_are_refused(changed: dict[str, Any]) -> None:
    """What is computed of a document must stay finite: the square of 1e300 is not."""
    with pytest.raises(CalibrationError, match="is not a calibration: /"):
        document_of({**MINIMAL, **changed})


def test_auto_is_a_services() -> None:
    with pytest.raises(CalibrationError, match="a service knows"):
        load_calibration(replace(CLUSTER, calibration=("auto",)), allow_files=True)


def test_a_missing_file_and_an_unknown_name_say_so(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no calibration 'h100x4-nvls-of'") as caught:
        load_calibration(replace(CLUSTER, calibration=("h100x4-nvls-of",)))
    assert PROFILE in caught.value.hint
    path = tmp_path / "mine.json"
    path.write_text(document_of(MINIMAL).file_text(), encoding="utf-8")
    named = replace(CLUSTER, calibration=(str(path),))
    assert load_calibration(named, allow_files=True).name == "mine + H100-SXM-80GB reference"
    with pytest.raises(CalibrationError, match="no calibration"):  # over HTTP a name is never a path
        load_calibration(named)


def test_another_gpus_calibration_is_refused() -> None:
    a100 = replace(H100, name="A100-SXM-80GB", reference="A100-SXM-80GB", generation="ampere")
    with pytest.raises(CalibrationError, match="was measured on H100-SXM-80GB, but the cluster has A100-SXM-80GB"):
        load_calibration(replace(CLUSTER, gpu=a100, calibration=(PROFILE,)))


def test_two_documents_split_compute_from_network_and_three_are_too_many() -> None:
    network = document_of({**MINIMAL, "name": "net", "collectives": collectives("all_reduce", [1e-4, 2e-4])})
    both = load_calibration(replace(CLUSTER, calibration=(PROFILE, "net")), extra={"net": network})
    assert both.compute is not None
    assert both.compute.name == PROFILE
    pair = both.collective_s("all_reduce", 2.0**21, placement=place(4, stride=1, cluster=CLUSTER))
    assert pair.seconds[0] == pytest.approx(2e-4)
    with pytest.raises(CalibrationError, match="3 calibrations"):
        load_calibration(replace(CLUSTER, calibration=(PROFILE, "net", "net")), extra={"net": network})


def test_no_calibration_named_means_reference_curves_never_the_shipped_profile() -> None:
    calibration = load_calibration(CLUSTER)
    assert calibration.name == "H100-SXM-80GB reference"
    assert calibration.compute is reference_document(H100)
    assert calibration.host_op_s().tier == Tier.NOMINAL


def test_every_shipped_document_is_intact_and_free_of_share_alike_sources() -> None:
    documents = [reference_document(replace(H100, name=name, reference=name)) for name in reference_names()]
    documents += [shipped_document(name) for name in shipped_names()]
    for document in documents:
        assert document is not None
        assert document.licence == "Apache-2.0"
        assert "ml-engineering" not in document.file_text()
    assert PROFILE in shipped_names()
    assert len(documents) == len(reference_names()) + len(shipped_names()) > len(shipped_names()) + 1


def test_a_gpu_without_curves_is_nominal_throughout() -> None:
    amd = Gpu("MI300X-192GB", "cdna3", 206e9, {"bf16": 1307.4e12}, 5.3e12, 448e9, 63e9, 304, 750.0, "MI300X-192GB")
    on = replace(CLUSTER, gpu=amd, interconnect="xgmi", intra_bytes_per_s=448e9)
    calibration = load_calibration(on)
    assert calibration.name == "nominal"
    assert int(calibration.gemm_s(8192, 8192, 8192, precision="bf16").tier) == Tier.NOMINAL
    # 0.50 of the peak, 0.90 of it sustained: 2*8192^3 / (1307.4e12 * 0.45) + 2 us
    expected = 2 * 8192**3 / (1307.4e12 * 0.45) + 2e-6
    assert float(calibration.gemm_s(8192, 8192, 8192, precision="bf16").seconds) == pytest.approx(expected)
    assert calibration.collective_s("all_reduce", 1e9, placement=place(8, stride=1, cluster=on)).tier[0] == Tier.NOMINAL


def test_less_power_per_operation_slows_the_clock_by_the_root() -> None:
    """A 500 W H100 against the table's 700 W: sqrt(5/7) = 0.845 of the speed."""
    slow = load_calibration(replace(CLUSTER, gpu=replace(H100, name="H100-500W", power_limit_w=500.0)))
    times = [
        float(c.gemm_s(8192, 8192, 8192, precision="bf16").seconds) - 2e-6 for c in (load_calibration(CLUSTER), slow)
    ]
    assert times[0] / times[1] == pytest.approx((5 / 7) ** 0.5)


def test_a_clean_curve_is_kept_and_an_interrupted_point_is_not() -> None:
    """1, 2, [50], 8 at four doublings: 50 exceeds 1.5 times both neighbours, so their geometric mean 4 replaces it."""
    fit = fit_collectives([CollectiveSample(**row) for row in collectives("all_reduce", [1.0, 2.0, 50.0, 8.0])])[0]
    assert fit.time_s == pytest.approx((1.0, 2.0, 4.0, 8.0))


@pytest.mark.parametrize(
    ("times_s", "fitted_s"),
    [
        # 3 is 1.5 times its neighbours and no more, so it stays; with the 2 behind it, it is pooled to their geometric mean.
        ([2.0, 3.0, 2.0], (2.0, 6**0.5, 6**0.5)),
        # 5 is less than 1.5 times the 4 before it, whatever lies further back; 4, 5 and 3 are pooled.
        ([1.0, 4.0, 5.0, 3.0], (1.0, 60 ** (1 / 3), 60 ** (1 / 3), 60 ** (1 / 3))),
    ],
)
def test_no_point_near_a_neighbour_was_interrupted(times_s: list[float], fitted_s: tuple[float, ...]) -> None:
    fit = fit_collectives([CollectiveSample(**row) for row in collectives("all_reduce", times_s)])[0]
    assert fit.time_s == pytest.approx(fitted_s)


def test_times_that_fall_with_size_are_pooled() -> None:
    """4 then 1: both become their geometric mean 2."""
    fit = fit_collectives([CollectiveSample(**row) for row in collectives("all_reduce", [4.0, 1.0, 9.0])])[0]
    assert fit.time_s == pytest.approx((2.0, 2.0, 9.0))


def test_repeats_of_one_point_count_by_their_median() -> None:
    samples = [
        CollectiveSample(op="all_gather", size_bytes=1e6, ranks=2, ranks_per_node=2, time_s=t) for t in (1, 2, 9)
    ]
    assert fit_collectives(samples)[0].time_s == (2.0,)


def test_samples_without_fits_are_fitted_on_loading() -> None:
    document = document_of({**MINIMAL, "collectives": collectives("reduce_scatter", [1e-4, 3e-4])})
    calibration = load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})
    got = calibration.collective_s("reduce_scatter", 2.0**20, placement=place(4, stride=1, cluster=CLUSTER))
    assert (got.seconds[0], got.tier[0]) == (pytest.approx(1e-4), Tier.MEASURED)
    assert calibration.network is not None
    assert calibration.network.id == document.id


def test_groups_measured_across_nodes_come_back_as_measured() -> None:
    """16 ranks, 8 a node: 10 ms measured at 1 MiB, 20 ms at 2 MiB, whatever the formula says."""
    rows = collectives("all_gather", [0.010, 0.020], ranks=16, per_node=8)
    document = document_of({**MINIMAL, "collectives": rows})
    calibration = load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})
    got = calibration.collective_s("all_gather", 2.0**21, placement=place(16, stride=1, cluster=CLUSTER))
    assert (got.seconds[0], got.tier[0]) == (pytest.approx(0.020), Tier.MEASURED)
    other = calibration.collective_s("all_gather", 2.0**21, placement=place(32, stride=1, cluster=CLUSTER))
    assert other.tier[0] == Tier.EXTRAPOLATED


def test_groups_across_nodes_take_the_ratio_of_the_nearest_measured_one() -> None:
    """Of 16 and of 64 ranks 1 MiB takes 2 and 8 times the formula, 2 MiB 4 and 32 times. Between the sizes ratios go on in logarithms:
    sqrt(2 * 4) and sqrt(8 * 32). A group of 24 is nearer to 16, one of 128 nearer to 64, and both are extrapolated.
    """
    nominal = load_calibration(CLUSTER)
    sizes, ratios = (2.0**20, 2.0**21), {16: (2.0, 4.0), 64: (8.0, 32.0)}

    def priced(calibration, ranks, size):
        return calibration.collective_s("all_gather", size, placement=place(ranks, stride=1, cluster=CLUSTER))

    rows = []
    for ranks, times in ratios.items():
        seconds = [float(priced(nominal, ranks, s).seconds[0]) * times[i] for i, s in enumerate(sizes)]
        rows += collectives("all_gather", seconds, ranks=ranks, per_node=8)
    document = document_of({**MINIMAL, "collectives": rows})
    calibration = load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})
    between = 2.0**20.5
    for ranks, ratio, tier in (
        (16, 8**0.5, Tier.MEASURED), (64, 256**0.5, Tier.MEASURED),
        (24, 8**0.5, Tier.EXTRAPOLATED), (128, 256**0.5, Tier.EXTRAPOLATED),
    ):  # fmt: skip
        got = priced(calibration, ranks, between)
        assert got.seconds[0] == pytest.approx(ratio * priced(nominal, ranks, between).seconds[0], rel=0.02), ranks
        assert got.tier[0] == tier


def test_host_cost_comes_from_the_profiles_eager_layer() -> None:
    """2009 us for a layer forward and backward over 100 operators is 20.1 us each in a loop; compiled 0.82 of it."""
    calibration = load_calibration(replace(CLUSTER, calibration=(PROFILE,)))
    assert calibration.host_op_s().value == pytest.approx(1.4 * 2009e-6 / 100)
    assert calibration.host_op_s().tier == Tier.INTERPOLATED
    assert calibration.host_op_s("compiled").value == pytest.approx(0.82 * 1.4 * 2009e-6 / 100)


def test_a_step_takes_its_host_longer_than_a_loop_and_a_captured_graph_as_long() -> None:
    """25 us an eager and 20 us a compiled operation in a loop are 35 and 28 us in a step; a replay is measured as it is used."""
    host = {"eager_op_s": 25e-6, "compiled_op_s": 20e-6, "graph_op_s": 1e-7}
    own = load_calibration(
        replace(CLUSTER, calibration=("mine",)), extra={"mine": document_of({**MINIMAL, "host": host})}
    )
    assert (own.looped_op_s.value, own.looped_op_s.tier) == (25e-6, Tier.MEASURED)
    found = {mode: own.host_op_s(mode) for mode in ("eager", "compiled", "graph")}
    assert {mode: scalar.value for mode, scalar in found.items()} == pytest.approx(
        {"eager": 35e-6, "compiled": 28e-6, "graph": 1e-7}
    )
    tiers = {mode: scalar.tier for mode, scalar in found.items()}
    assert tiers == {"eager": Tier.INTERPOLATED, "compiled": Tier.INTERPOLATED, "graph": Tier.MEASURED}


def test_wrapped_layers_cost_what_was_measured_else_the_nominal_ratio() -> None:
    """A plain layer of 3 ms, 9 ms under FSDP2; DTensor was not measured on one GPU."""
    document = document_of({**MINIMAL, "host": {"plain_layer_s": 0.003, "sharded_layer_s": 0.009}})
    own = load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})
    sharded, split = own.wrapped_layer_ratio("sharded"), own.wrapped_layer_ratio("tensor_parallel")
    assert (sharded.value, sharded.tier) == (pytest.approx(3.0), Tier.MEASURED)
    assert (split.value, split.tier) == (DTENSOR_HOST_RATIO.value, Tier.NOMINAL)
    assert own.wrapped_layer_ratio("sharded", compiled=True).tier == Tier.NOMINAL


def test_a_compiled_wrapper_costs_what_it_adds_over_the_plain_layer() -> None:
    """4 ms more than the compiled layer of 2 ms, against a plain one of 2.5 ms; the sequence whole or split."""
    host = {
        "plain_layer_s": 0.0025, "compiled_layer_s": 0.002, "compiled_sharded_layer_s": 0.006,
        "tensor_parallel_layer_s": 0.009, "sequence_parallel_layer_s": 0.01,
    }  # fmt: skip
    own = load_calibration(
        replace(CLUSTER, calibration=("mine",)), extra={"mine": document_of({**MINIMAL, "host": host})}
    )
    sharded = own.wrapped_layer_ratio("sharded", compiled=True)
    assert (sharded.value, sharded.tier) == (pytest.approx(1 + 4 / 2.5), Tier.MEASURED)
    assert own.wrapped_layer_ratio("tensor_parallel").value == pytest.approx(9 / 2.5)
    assert own.wrapped_layer_ratio("sequence_parallel").value == pytest.approx(10 / 2.5)
    assert own.wrapped_layer_ratio("tensor_parallel", compiled=True).tier == Tier.NOMINAL


def test_measured_bandwidth_and_host_link_replace_nominal_ones() -> None:
    samples = [
        {"kind": "copy", "size_bytes": 1e9, "bytes_per_s": 2.5e12},
        {"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 2.9e12},
        {"kind": "host_to_device", "size_bytes": 1e9, "bytes_per_s": 5.5e10},
    ]
    document = document_of({**MINIMAL, "memory_bandwidth": samples})
    own = load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document})
    assert (own.memory_bytes_per_s_effective.value, own.memory_bytes_per_s_effective.tier) == (2.9e12, Tier.MEASURED)
    assert own.host_link_bytes_per_s.value == 5.5e10
    reference = load_calibration(CLUSTER).memory_bytes_per_s_effective
    assert (reference.value, reference.tier) == (pytest.approx(0.8 * 3.352e12), Tier.NOMINAL)


def test_a_worse_tier_never_has_a_narrower_range() -> None:
    for calibration in (load_calibration(CLUSTER), load_calibration(replace(CLUSTER, calibration=(PROFILE,)))):
        for family in NOMINAL_RESIDUALS:
            widths = [calibration.residual(family, tier) for tier in Tier]
            assert widths == sorted(widths)
            assert all(0 < width < 1 for width in widths)


def shape(spread: float, m: int = 4096) -> dict[str, Any]:
    return {"m": m, "n": 4096, "k": 4096, "time_s": 1e-3, "spread_fraction": spread}


@pytest.mark.parametrize(
    ("spreads", "products", "links"),
    [
        # Sorted 0.01 … 0.05, 0.20: the 80 % point of five lies a fifth of the way from the fourth to the fifth value.
        ([0.20, 0.02, 0.05, 0.03, 0.01], 0.05 + 0.2 * 0.15, 2 * (0.05 + 0.2 * 0.15)),
        ([0.02, 0.0, 0.0, 0.0], 0.02, 0.04),  # a spread of 0 was not measured
        ([0.004, 0.002], 0.01, 0.01),  # less than 1 % is not believed
    ],
)
def test_measured_terms_are_as_uncertain_as_four_fifths_of_the_repeats_were(
    spreads: list[float], products: float, links: float
) -> None:
    """Collectives, which spread twice as far here, have repeats of their own; every worse tier is at least as wide."""
    gemm = [shape(spread, m=512 * (place + 1)) for place, spread in enumerate(spreads)]
    rows = collectives("all_reduce", [1e-4 * 2**place for place in range(len(spreads))])
    sent = [{**row, "spread_fraction": 2 * spread} for row, spread in zip(rows, spreads, strict=True)]
    own = load_calibration(
        replace(CLUSTER, calibration=("mine",)),
        extra={"mine": document_of({**MINIMAL, "gemm": gemm, "collectives": sent})},
    )
    assert own.residual("gemm", Tier.MEASURED) == pytest.approx(products)
    assert own.residual("collective", Tier.MEASURED) == pytest.approx(links)
    for family in ("gemm", "collective"):
        widest = max(NOMINAL_RESIDUALS[family][1], own.residual(family, Tier.MEASURED))
        assert own.residual(family, Tier.INTERPOLATED) == widest


def test_interpolated_collectives_are_as_uncertain_as_the_middle_curve() -> None:
    """Leave-one-out errors of 9, 20 and 11 %: the median is 11 %; one below what was measured says nothing."""
    curve = {"op": "all_reduce", "ranks": 4, "ranks_per_node": 4, "size_bytes": [1e6, 2e6], "time_s": [1e-4, 2e-4]}
    for errors, expected in (((0.09, 0.20, 0.11), 0.11), ((0.02, 0.03), NOMINAL_RESIDUALS["collective"][0])):
        fits = [{**curve, "stride": place + 1, "residual_fraction": error} for place, error in enumerate(errors)]
        own = load_calibration(
            replace(CLUSTER, calibration=("mine",)),
            extra={"mine": document_of({**MINIMAL, "collective_fits": fits})},
        )
        assert own.residual("collective", Tier.INTERPOLATED) == pytest.approx(expected)


CURVE: dict[str, Any] = {
    "op": "all_reduce", "ranks": 8, "ranks_per_node": 4, "size_bytes": [1e6, 2e6, 4e6], "time_s": [1e-4, 1e-4, 3e-4],
    "residual_fraction": 0.05,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"time_s": [1e-4, 2e-4, 1.9e-4]}, "time_s never fall"),
        ({"time_s": [2e-4, 1e-4, 3e-4]}, "time_s never fall"),
        ({"size_bytes": [1e6, 1e6, 4e6]}, "size_bytes must rise"),
        ({"size_bytes": [1e6, 4e6, 2e6]}, "size_bytes must rise"),
        ({"time_s": [1e-4, 2e-4]}, "equally long"),
        ({"size_bytes": [], "time_s": []}, "not empty"),
        ({"ranks_per_node": 3}, "ranks_per_node must divide ranks"),
        ({"ranks": 12, "ranks_per_node": 8}, "ranks_per_node must divide ranks"),
    ],
)
def test_a_curve_that_no_machine_has_is_refused(changed: dict[str, Any], message: str) -> None:
    """A larger message is never quicker, and every node holds equally many ranks; equal times and one node are fine."""
    document_of({**MINIMAL, "collective_fits": [CURVE, {**CURVE, "ranks_per_node": 8}, {**CURVE, "ranks_per_node": 1}]})
    with pytest.raises(CalibrationError, match=f"is not a calibration: /collective_fits/1: .*{message}"):
        document_of({**MINIMAL, "collective_fits": [CURVE, {**CURVE, **changed}]})


def test_measured_groups_hold_equally_many_ranks_on_every_node() -> None:
    """Else their curve, which is fitted only when a job is priced, could not be."""
    document_of({**MINIMAL, "collectives": collectives("all_reduce", [1e-4], ranks=6, per_node=3)})
    with pytest.raises(CalibrationError, match=r"/collectives/0: .*ranks_per_node must divide ranks"):
        document_of({**MINIMAL, "collectives": collectives("all_reduce", [1e-4], ranks=4, per_node=3)})


def test_a_file_is_read_up_to_its_limit_and_no_byte_more(tmp_path: Path) -> None:
    """64 MiB with the spaces that JSON allows at its end; a document of the whole limit is read and one byte more is not."""
    text, path = document_of(MINIMAL).file_text(), tmp_path / "mine.json"
    path.write_text(text + " " * (64 * 2**20 - len(text.encode())), encoding="utf-8")
    assert read_document(path).id == document_of(MINIMAL).id
    with path.open("a", encoding="utf-8") as file:
        file.write(" ")
    with pytest.raises(CalibrationError, match="larger than any calibration"):
        read_document(path)


def test_a_sample_that_states_no_spread_was_measured_without_one() -> None:
    samples = {
        "gemm": {"m": 64, "n": 64, "k": 64, "time_s": 1e-5},
        "collectives": {"op": "all_reduce", "size_bytes": 1e6, "ranks": 4, "ranks_per_node": 4, "time_s": 1e-4},
        "math_attention": {
            "direction": "forward", "sequences": 1, "heads": 4, "kv_heads": 4, "q_length": 64, "kv_length": 64, "d": 64, "time_s": 1e-4,
        },
        "attention": {
            "kernel": "fa2", "direction": "forward", "sequences": 1, "heads": 4, "kv_heads": 4, "q_length": 64, "kv_length": 64,
            "d_qk": 64, "d_v": 64, "time_s": 1e-4,
        },
        "memory_bandwidth": {"kind": "copy", "size_bytes": 1e6, "bytes_per_s": 1e12},
        "host_adam": {"ranks": 4, "parameters": 1000, "threads": 2, "bytes_per_s": 1e10},
    }  # fmt: skip
    found = document_of({**MINIMAL, **{group: [sample] for group, sample in samples.items()}})
    assert [getattr(found, group)[0].spread_fraction for group in samples] == [0.0] * 6


def test_documents_are_immutable() -> None:
    document: CalibrationDocument = document_of(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        document.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("gpu", "loop_us"), [("A100-SXM-80GB", 18.0), ("H100-SXM-80GB", 26.0), ("B200-SXM-180GB", 26.0)]
)
def test_an_unknown_host_is_one_of_its_gpus_time(gpu: str, loop_us: float) -> None:
    """26 us an operator is the median of our agent's profiles of 2026; an operation outside of modules takes 0.31 of it there."""
    calibration = job_of(dense_model(), "megatron", cluster={"gpu": gpu}).calibration
    assert calibration.looped_op_s.value == pytest.approx(loop_us * 1e-6)
    assert calibration.host_op_s().value == pytest.approx(1.4 * loop_us * 1e-6)
    assert calibration.bare_op_s.value == pytest.approx(0.31 * 1.4 * loop_us * 1e-6)
    assert calibration.bare_op_s.tier == Tier.NOMINAL
