"""NCCL's own estimates, and which algorithms stated libraries take, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.hardware import load_calibration
from cost_models.hardware.algorithms import OFFERED
from cost_models.hardware.nccl_tuner import Group, Way, nccl_ways
from cost_models.hardware.placement import place
from cost_models.inputs.cluster import resolve_cluster
from cost_models.operations import Op

US = 1e-6
WIRE = 384e9  # 16 channels of 24 GB/s


def on_h100s(ranks: int, per_node: int) -> Group:
    n, k = np.array([float(ranks)]), np.array([float(per_node)])
    return Group(n, k, n / k, "nvlink", "hopper", WIRE, WIRE)


def seconds(way: Way) -> float:
    """Without the 1.4 that NCCL lays on the latency of large rings over nodes."""
    plateau = 1.4 if (way.algorithm, way.protocol) == ("ring", "Simple") else 1.0
    return float(np.ravel(way.latency_s)[0] / plateau + way.bandwidth_s[0])


@pytest.mark.parametrize(
    ("op", "ranks", "size", "us", "algorithm", "protocol"),
    [
        # 6.8 + 2 (7 x 0.6 + 3 x 5) = 45.2; 2 S / (20.4 GB/s x 0.6) = 10.7. (LL moves 20.4 GB/s on Intel hosts, 19.0 on AMD's.)
        ("all_reduce", 64, 2**16, 55.9, "tree", "LL"),
        # 14 + 2 (7 x 1.25 + 3 x 8.5) = 82.5; 2 S / (384 x 0.92 x 120/128 x 0.6 GB/s) = 10.6
        ("all_reduce", 64, 2**20, 93.1, "tree", "LL128"),
        # 8.4 + 112 x 3.4 + 14 x 14 = 585.2; 126/64 S / 384 GB/s = 5,505
        ("all_reduce", 64, 2**30, 6090.0, "ring", "Simple"),
        # 6.6 + 56 x 1 + 7 x 2.7 = 81.5; 63/64 S / 20.4 GB/s = 50.6
        ("all_gather", 64, 2**20, 132.1, "ring", "LL"),
        # 14 + 448 x 1.9 + 63 x 4 = 1,117.2; 511/512 S / (0.92 x 384 GB/s) = 47.4
        ("all_gather", 512, 2**24, 1164.6, "ring", "LL128"),
    ],
)
def test_nccl_chooses_as_its_tuner_does(
    op: Op, ranks: int, size: int, us: float, algorithm: str, protocol: str
) -> None:
    ways = nccl_ways(op, np.array([float(size)]), on_h100s(ranks, 8))
    # CollNet is off by default, and NVLS needs all ranks behind one switch.
    best = min((way for way in ways if way.possible.all() and way.algorithm != "collnet"), key=seconds)
    assert (best.algorithm, best.protocol) == (algorithm, protocol)
    assert seconds(best) / US == pytest.approx(us, abs=0.06 if us < 1000 else 0.3)


def test_pat_serves_groups_with_one_rank_on_each_node() -> None:
    """8 + 6 x 14 / 3.5 + 64 x 2.8 = 211.2 us, as EQUATIONS.md says of 64 nodes; with eight ranks a node it is not there."""
    size = np.array([1024.0])
    alone, crowded = (
        next(way for way in nccl_ways("all_gather", size, on_h100s(64, k)) if way.algorithm == "pat") for k in (1, 8)
    )
    assert float(np.ravel(alone.latency_s)[0]) / US == pytest.approx(211.2)
    assert alone.possible.all()
    assert not crowded.possible.any()


@pytest.mark.parametrize(
    ("ranks", "measured"), [(5, 414.2 / 364.4), (6, 435.6 / 365.1), (7, 460 / 365.7), (8, 473.1 / 365.6)]
)
def test_nvls_beats_a_ring_by_what_was_measured(ranks: int, measured: float) -> None:
    """Bus bandwidth of all-reduces of 8 GiB on H200s, NVLS over ring (data/reference, ml-engineering's table)."""
    ways = {
        (way.algorithm, way.protocol): way
        for way in nccl_ways("all_reduce", np.array([2.0**33]), on_h100s(ranks, ranks))
    }
    ratio = ways["ring", "Simple"].bandwidth_s / ways["nvls", "Simple"].bandwidth_s
    assert ratio[0] == pytest.approx(measured, rel=0.03)


# --- stated libraries -------------------------------------------------------------------------------------------------------

NODES = {
    "gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8, "nics_per_node": 8, "nic_gbit_per_s": 400,
    "network": {"fabric": "infiniband", "latency_us": 2.7},
}  # fmt: skip


def priced(size: float, *, ranks: int = 64, op: Op = "all_reduce", **collectives: Any) -> float:
    stated = {"collectives": collectives} if collectives else {}
    cluster = resolve_cluster({**NODES, **stated})
    placement = place(float(ranks), stride=1.0, cluster=cluster)
    return float(load_calibration(cluster).collective_s(op, size, placement=placement).seconds[0])


def test_a_library_takes_the_fastest_of_what_it_has() -> None:
    """No forced algorithm is faster than "auto", and one is as fast; CollNet is taken only where it is forced."""
    for library, table in OFFERED.items():
        if library == "rccl":
            continue
        names = [name for name in table["all_reduce"] if name not in ("collnet", "nvls")]
        for size in (2.0**14, 2.0**20, 2.0**30):
            auto = priced(size, library=library)
            forced = [priced(size, library=library, algorithm={"all_reduce": name}) for name in names]
            assert min(forced) == pytest.approx(auto, rel=1e-12)
    assert priced(2.0**26, algorithm={"all_reduce": "collnet"}) < priced(2.0**26, library="nccl")


def test_an_algorithm_that_a_group_cannot_have_leaves_it_to_the_library() -> None:
    """NVLS does not leave a node: over eight of them it is NCCL's choice, and a forced LL holds for what it can."""
    size = 2.0**28
    assert priced(size, algorithm={"all_reduce": "nvls"}) == priced(size, library="nccl")
    assert priced(size, protocol="LL") > 3 * priced(size, protocol="Simple")


def test_a_measured_curve_is_taken_before_any_formula() -> None:
    """Eight neighbours of a DGX H100 were measured; what is forced changes nothing there, but gloo was not measured."""
    size = 2.0**26
    plain = priced(size, ranks=8)
    assert priced(size, ranks=8, algorithm={"all_reduce": "tree"}) == plain
    assert priced(size, ranks=8, protocol="LL") == plain
    assert priced(size, ranks=8, library="gloo") > 5 * plain


def test_a_torus_between_nodes_is_its_closed_form() -> None:
    """512 MiB over 8 x 8: near 2 us and 0.75 x 450 GB/s, far 2.7 us and 0.8 x 50 GB/s for each GPU.

    2 x 7 (2 us + S / 8 / 337.5e9) + 2 x 7 (2.7 us + S / 64 / 40e9).
    """
    size = 2.0**29
    expected = 14 * (2e-6 + size / 8 / 337.5e9) + 14 * (2.7e-6 + size / 64 / 40e9)
    assert priced(size, library="msccl", algorithm={"all_reduce": "torus-2d"}) == pytest.approx(expected, rel=1e-9)
