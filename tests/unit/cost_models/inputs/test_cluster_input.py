"""A cluster document becomes SI units once; nominal facts are reported, and the network's are warned of."""

from __future__ import annotations

import pytest

from cost_models import presets
from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.cluster import resolve_cluster

NODES = {"num_nodes": 2, "gpus_per_node": 8}
NODE = {"gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8}
CUSTOM = {
    "name": "H100-96GB-HBM2e-500W",
    "memory_gib": 95,
    "peak_tflops": {"bf16": 989, "fp8": 1979},
    "memory_bandwidth_gb_per_s": 2400,
    "nvlink_gb_per_s": 450,
}


def problems(document: dict, error: type[InvalidInputError] = InvalidInputError) -> list:
    with pytest.raises(error) as caught:
        resolve_cluster(document)
    return list(caught.value.problems)


def test_human_units_become_si():
    cluster = resolve_cluster({**NODE, "nics_per_node": 8, "nic_gbit_per_s": 400, "reserved_memory_gib": 1,
                               "host_memory_gib": 2048, "network": {"latency_us": 3}})  # fmt: skip
    assert cluster.gpu.memory_bytes == 79.1 * 2**30
    assert cluster.capacity_bytes == (79.1 - 1) * 2**30
    assert cluster.gpu.peak_flops_per_s["bf16"] == 989.4e12
    assert cluster.intra_bytes_per_s == 450e9
    # 400 Gbit/s = 50 GB/s a NIC, eight of them a node
    assert cluster.network.nic_wire_bytes_per_s == 50e9
    assert cluster.network.node_bytes_per_s == 400e9
    assert cluster.network.latency_s == pytest.approx(3e-6)
    assert cluster.host_memory_bytes == 2**41
    assert cluster.num_gpus == 16
    assert cluster.warnings == ()


def test_a_missing_network_is_nominal_with_a_warning():
    cluster = resolve_cluster(NODE)
    assert cluster.warnings == ("network-nominal",)
    assert cluster.assumed["nics_per_node"] == 8
    assert cluster.assumed["nic_gbit_per_s"] == 400
    assert cluster.assumed["network.fabric"] == "infiniband"


def test_one_node_needs_no_network():
    cluster = resolve_cluster({**NODE, "num_nodes": 1})
    assert cluster.warnings == ()
    assert not any(name.startswith(("nic", "network")) for name in cluster.assumed)


@pytest.mark.parametrize(
    ("document", "domain", "gb_per_s"),
    [
        (NODE, 8, 450.0),
        ({**NODE, "gpu": "L40S-48GB"}, 1, 31.5),
        ({**NODE, "gpu": "A100-PCIe-80GB", "intra_node": "nvlink-pairs"}, 2, 300.0),
        ({**NODE, "gpu": "A100-PCIe-80GB"}, 1, 31.5),
        ({**NODE, "gpu": "GB200-186GB", "gpus_per_node": 4}, 72, 900.0),
        ({**NODE, "intra_node": {"bandwidth_gb_per_s": 100, "latency_us": 5}}, 8, 100.0),
        ({**NODE, "gpu": "MI300X-192GB"}, 8, 448.0),
    ],
)
def test_the_fast_domain_follows_the_link(document, domain, gb_per_s):
    cluster = resolve_cluster(document)
    assert cluster.nvlink_domain_gpus == domain
    assert cluster.intra_bytes_per_s == gb_per_s * 1e9


def test_a_custom_gpu_borrows_what_it_does_not_state():
    cluster = resolve_cluster({"gpu": CUSTOM, "num_nodes": 1, "gpus_per_node": 8})
    gpu = cluster.gpu
    assert (gpu.generation, gpu.num_sms, gpu.reference) == ("hopper", 132, "H100-SXM-80GB")
    assert gpu.power_limit_w == 500.0
    assert gpu.peak_flops_per_s["fp16"] == 989e12
    assert gpu.memory_bytes_per_s == 2.4e12
    assert cluster.assumed["gpu.generation"] == "hopper"


def test_a_custom_gpu_of_no_family_is_said_to_be_unknown():
    cluster = resolve_cluster({"gpu": {**CUSTOM, "name": "Fast-1"}, "num_nodes": 1, "gpus_per_node": 8})
    assert cluster.gpu.generation == "unknown"
    assert "gpu-family-unknown" in cluster.warnings


def test_a_faster_gpu_of_no_family_borrows_the_same_facts():
    """With the preset nearest in speed, 165 TFLOP/s (RTX 4090) would halve H20's PCIe and take its network away."""
    found = [
        resolve_cluster({"gpu": {**CUSTOM, "name": "Fast-1", "peak_tflops": {"bf16": peak}}, **NODES})
        for peak in (120, 148, 165, 320, 362, 1000, 2300)
    ]
    assert (
        len({(c.gpu.pcie_bytes_per_s, c.gpu.num_sms, c.gpu.reference, c.network, c.intra_bytes_per_s) for c in found})
        == 1
    )


@pytest.mark.parametrize(
    ("gpu", "gb_per_s", "kind", "domain"),
    [
        ("L40S-48GB", 31.5, "pcie", 1),  # at most PCIe 5's 63 GB/s, on a card: its slot
        ("L40S-48GB", 100, "nvswitch", 8),
        ("H100-SXM-80GB", 50, "nvswitch", 8),  # a slower switch
        ("MI300X-192GB", 448, "xgmi", 8),
    ],
)
def test_a_stated_link_takes_the_kind_of_the_gpu(gpu, gb_per_s, kind, domain):
    cluster = resolve_cluster({"gpu": gpu, **NODES, "intra_node": {"bandwidth_gb_per_s": gb_per_s}})
    assert (cluster.interconnect, cluster.link_kind, cluster.nvlink_domain_gpus) == ("custom", kind, domain)


def test_a_preset_takes_overrides():
    cluster = resolve_cluster({"preset": "dgx-h100", "num_nodes": 16, "network": {"nodes_per_leaf": 32}})
    assert (cluster.name, cluster.num_gpus) == ("dgx-h100", 128)
    assert cluster.network.nodes_per_leaf == 32
    assert cluster.network.fabric == "infiniband"


def test_a_preset_without_a_node_count_says_which_it_takes():
    assert resolve_cluster({"preset": "gb200-nvl72"}).assumed["num_nodes"] == 18


def test_calibrations_keep_their_order():
    assert resolve_cluster({**NODE, "calibration": "mine"}).calibration == ("mine",)
    assert resolve_cluster({**NODE, "calibration": ["a", "b"]}).calibration == ("a", "b")
    assert resolve_cluster(NODE).calibration == ()


@pytest.mark.parametrize(
    ("document", "pointer", "text", "hint"),
    [
        ({**NODE, "gpu": "H100-80GB-SXM"}, "/cluster/gpu", "not a GPU preset", "H100-SXM-80GB"),
        ({"preset": "dgx-h10"}, "/cluster/preset", "not a cluster preset", "dgx-h100"),
        ({**NODE, "num_node": 3}, "/cluster/num_node", "not a known field", "num_nodes"),
        ({**NODE, "num_nodes": 125_000}, "/cluster/num_nodes", "1000000 GPUs; the most is 262144", "Lower"),
        ({**NODE, "num_nodes": 0}, "/cluster/num_nodes", "at least 1", "Correct"),
        (
            {**NODE, "nvlink_domain_gpus": 12},
            "/cluster/nvlink_domain_gpus",
            "neither divides the other",
            "whole number",
        ),
        ({**NODE, "gpu": "L40S-48GB", "intra_node": "nvswitch"}, "/cluster/intra_node", "no such link", "pcie"),
        ({**NODE, "reserved_memory_gib": 80}, "/cluster/reserved_memory_gib", "79.1 GiB", "less"),
        ({**NODE, "nic_gbit_per_s": 5e-324}, "/cluster/nic_gbit_per_s", "must be at least 1e-06", "Correct"),
        (
            {**NODE, "gpu": {**CUSTOM, "peak_tflops": {"bf16": 0}}},
            "/cluster/gpu/peak_tflops/bf16",
            "at least",
            "Correct",
        ),
        ({**NODE, "gpu": {**CUSTOM, "peak_tflops": {"fp8": 1}}}, "/cluster/gpu/peak_tflops", "neither", "bf16"),
        ({**NODE, "gpu": {**CUSTOM, "memory_gib": float("inf")}}, "/cluster/gpu/memory_gib", "finite", "Correct"),
        ({**NODE, "network": {"fabric": "ib"}}, "/cluster/network/fabric", "must be one of", "infiniband"),
        ({**NODE, "calibration": [3]}, "/cluster/calibration/0", "must be a string", "Correct"),
    ],
)
def test_a_wrong_value_is_named_with_rule_and_hint(document, pointer, text, hint):
    found = {p.pointer: p for p in problems(document)}
    assert pointer in found
    assert text in found[pointer].message
    assert hint in found[pointer].hint


def test_missing_fields_are_all_named():
    assert [p.pointer for p in problems({})] == ["/cluster/gpu", "/cluster/num_nodes", "/cluster/gpus_per_node"]


def test_pools_are_refused_by_code():
    assert problems({"pools": []}, NotModelledError)[0].code == "pools-not-supported"


@pytest.mark.parametrize("name", presets.names("gpus"))
def test_every_gpu_preset_makes_a_cluster(name):
    cluster = resolve_cluster({"gpu": name, "num_nodes": 2, "gpus_per_node": 8})
    gpu = cluster.gpu
    assert gpu.name == name
    assert gpu.reference in presets.names("gpus")
    assert gpu.peak_flops_per_s["fp16"] > gpu.peak_flops_per_s["fp32"] > 1e12
    # what the driver offers is 90 to 100 % of the name's decimal gigabytes (one die of two on the MI250X)
    named = float(name.rsplit("-", 1)[1].removesuffix("GB")) * (0.5 if name.startswith("MI250X") else 1.0)
    assert 0.9 * named * 1e9 <= gpu.memory_bytes <= named * 2**30


@pytest.mark.parametrize("name", presets.names("clusters"))
def test_every_cluster_preset_states_its_network(name):
    cluster = resolve_cluster({"preset": name, "num_nodes": 2})
    assert "network-nominal" not in cluster.warnings
    assert "nics_per_node" not in cluster.assumed
