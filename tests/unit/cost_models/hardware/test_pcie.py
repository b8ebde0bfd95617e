"""Rings over PCIe against published all-reduces: two cards and eight, one socket and two, with peer access and through the host."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.hardware.build_links import build_links
from cost_models.hardware.collectives import collective_s
from cost_models.hardware.pcie import pcie_rates
from cost_models.inputs.cluster import resolve_cluster
from cost_models.specs.cluster import Cluster
from tests.unit.cost_models.hardware.test_collectives import of


def box(gpu: str | dict[str, Any], cards: int, **pcie: int) -> Cluster:
    """One node of cards without NVLink."""
    return resolve_cluster(
        {"gpu": gpu, "num_nodes": 1, "gpus_per_node": cards, "intra_node": "pcie", "pcie": pcie or None}
    )


def card(name: str, lanes_gb_per_s: float) -> dict[str, Any]:
    return {
        "name": name, "memory_gib": 31.8, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 1000, "pcie_gb_per_s": lanes_gb_per_s,
        "generation": "ada", "num_sms": 128, "power_limit_w": 400, "reference": "L40S-48GB",
    }  # fmt: skip


def all_reduce_gb_per_s(on: Cluster, ranks: int) -> float:
    """Bus bandwidth of 4 GiB, as nccl-tests prints it."""
    seconds = collective_s("all_reduce", 2.0**32, placement=of(ranks, stride=1, on=on), links=build_links(on, None))
    return float(2 * (ranks - 1) / ranks * 2**32 / seconds.seconds[0] / 1e9)


@pytest.mark.parametrize(
    ("on", "ranks", "published", "apart"),
    [
        (box("L40S-48GB", 2, gpus_per_switch=1, gpus_per_socket=2), 2, 20.0, 0.03),
        (box(card("RTX PRO 6000", 63.0), 8, gpus_per_switch=2, gpus_per_socket=8), 8, 40.0, 0.03),
        (box(card("RTX 5090", 63.0), 8, gpus_per_switch=1, gpus_per_socket=4), 4, 35.0, 0.03),
        (box(card("RTX 5090", 63.0), 8, gpus_per_switch=1, gpus_per_socket=4), 8, 28.0, 0.03),
        # with NCCL's own channels, and with eight: 22.2 and 37.6
        (box(card("RTX PRO 6000", 63.0), 8, gpus_per_switch=1, gpus_per_socket=4), 8, (22.2 * 37.6) ** 0.5, 0.06),
    ],
)
def test_rings_run_at_what_users_published(on: Cluster, ranks: int, published: float, apart: float) -> None:
    assert all_reduce_gb_per_s(on, ranks) == pytest.approx(published, rel=apart)


def test_cards_without_peer_access_share_the_memory_of_their_socket() -> None:
    """Eight channels of DDR5-4800 are 307.2 GB/s; 0.91 of it, in and out: 34.9 for each of four cards and 17.5 of eight."""
    four, eight = (box(card("RTX 5090", 63.0), n, gpus_per_switch=n, gpus_per_socket=n) for n in (4, 8))
    assert pcie_rates(four).socket == pytest.approx(307.2e9 * 0.91 / 8)
    assert pcie_rates(eight).socket == pytest.approx(307.2e9 * 0.91 / 16)
    # two cards are held by their lanes, and a switch between cards without peer access helps nothing
    two = pcie_rates(box(card("GeForce RTX 5090", 63.0), 2, gpus_per_switch=2, gpus_per_socket=2))
    assert two.socket == two.switch == pytest.approx(63e9 * 0.63)
    # hosts of PCIe 4.0 have DDR4-3200: 204.8 GB/s
    older = pcie_rates(box("RTX4090-24GB", 8, gpus_per_switch=4, gpus_per_socket=8))
    assert older.switch == pytest.approx(204.8e9 * 0.91 / 16)


@pytest.mark.parametrize(
    ("name", "peers"),
    [
        ("RTX 4090 48GB", False),
        ("NVIDIA GeForce RTX 3090", False),
        ("RTX A6000", True),
        ("RTX 6000 Ada", True),
        ("A10", True),
    ],
)
def test_geforce_cards_have_no_peer_access(name: str, peers: bool) -> None:
    assert box(card(name, 31.5), 2).gpu.peer_access is peers
