"""The invented calibration of the documentation: an H100 node by its data sheet, and a product that such a GPU could reach."""

from __future__ import annotations

from app.service.intake.examples import EXAMPLE_CALIBRATION
from cost_models.inputs.cluster import resolve_cluster


def test_the_example_is_a_node_of_the_preset_by_its_data_sheet() -> None:
    node = resolve_cluster({"preset": "dgx-h100", "num_nodes": 1})
    machine, device = EXAMPLE_CALIBRATION["fingerprint"], EXAMPLE_CALIBRATION["device"]
    assert (machine["gpu"], machine["gpus_per_node"], machine["num_nodes"]) == (node.gpu.name, node.gpus_per_node, 1)
    assert device["link_bytes_per_s"] == 450e9  # NVLink 4: 18 links of 25 GB/s each way
    assert device["num_sms"] == 132


def test_its_product_reaches_between_60_and_75_percent_of_the_peak() -> None:
    """2 x 8192^3 operations in 1.6 ms are 687 TFLOP/s of 989."""
    (sample,) = EXAMPLE_CALIBRATION["gemm"]
    reached = 2 * sample["m"] * sample["n"] * sample["k"] / sample["time_s"]
    assert 0.6 < reached / EXAMPLE_CALIBRATION["device"]["peak_flops_per_s"]["bf16"] < 0.75
