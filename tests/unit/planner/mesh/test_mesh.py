"""The mesh of plans on clusters that one can draw: nodes, links, and that the document stays small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import UNIT_GPU, dense_model, request_of, with_experts
from planner.export.launch_plan import launch_plan
from planner.mesh.mesh import mesh_document

PLAIN = {"micro_batch_size": 1, "zero": 1}


def mesh(strategy: dict[str, Any], *, cluster: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    model = given.pop("model", dense_model(8))
    batch = 64 * strategy["dp"]
    row = request_of(model, given.pop("framework", "megatron"), cluster=cluster, global_batch_size=batch, **given)
    plan = launch_plan({**row, "strategy": PLAIN | strategy})
    return mesh_document(plan.pooled, plan.row)


def links(document: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["links"][0] for each in document["dimensions"]}


def test_two_stages_on_four_nodes() -> None:
    """tp 4, dp 4, pp 2 on 32 GPUs: a stage fills two nodes, each with two tensor-parallel groups."""
    found = mesh({"tp": 4, "dp": 4, "pp": 2}, num_nodes=4)
    assert (found["world"], found["stage_ranks"], found["idle_gpus"]) == (32, 16, 0)
    assert [(run["first_node"], run["count"], run["first_rank"], set(run["stages"])) for run in found["nodes"]] == [
        (0, 2, 0, {0}), (2, 2, 16, {1}),
    ]  # fmt: skip
    its = links(found)
    told = {
        name: (each["link"], each["nodes"], each["members_per_node"], each["groups_per_node"])
        for name, each in its.items()
    }
    assert told == {
        "tp": ("fast", [1, 1], [4, 4], 2),
        "cp": ("none", [1, 1], [1, 1], 8),
        "dp": ("network", [2, 2], [2, 2], 4),
        "pp": ("network", [2, 2], [1, 1], 8),
        "zero_shard": ("network", [2, 2], [2, 2], 4),
    }  # fmt: skip
    assert its["cp"]["bus_bytes_per_s"] is None


def test_stages_inside_a_node_are_told_by_gpu() -> None:
    found = mesh({"tp": 2, "pp": 8, "dp": 1}, num_nodes=2)
    assert [run["stages"] for run in found["nodes"]] == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]
    pipeline = links(found)["pp"]
    assert (pipeline["nodes"], pipeline["members_per_node"], pipeline["groups_per_node"]) == ([2, 2], [4, 4], 2)


def test_groups_that_straddle_nodes_are_told_by_fewest_and_most() -> None:
    """Groups of 3 on nodes of 8: ranks 6, 7 and 8 lie on two nodes."""
    found = mesh({"tp": 1, "dp": 3, "pp": 8, "zero": 0}, num_nodes=3)
    data = links(found)["dp"]
    assert data["link"] == "network"
    assert (data["nodes"], data["members_per_node"]) == ([1, 2], [1, 3])
    assert data["groups_per_node"] == 4  # ranks 8 to 15 are parts of the groups that begin at 6, 9, 12 and 15


def test_an_nvlink_domain_over_nodes_needs_no_network() -> None:
    found = mesh({"tp": 8, "dp": 9, "pp": 1}, cluster={"gpus_per_node": 4, "nvlink_domain_gpus": 72, "num_nodes": 18})
    its = links(found)
    assert (its["tp"]["link"], its["tp"]["nodes"], its["tp"]["members_per_node"]) == ("fast", [2, 2], [4, 4])
    assert its["dp"]["link"] == "fast"


def test_cards_on_pcie_say_what_they_cross() -> None:
    pcie = {"gpu": "L40S-48GB", "intra_node": "pcie", "pcie": {"gpus_per_switch": 2, "gpus_per_socket": 4}}
    for size, reach in ((2, "switch"), (4, "socket")):
        its = links(mesh({"tp": size, "dp": 8 // size}, cluster=pcie))
        assert (its["tp"]["link"], its["tp"]["reach"]) == ("pcie", reach)
        assert its["dp"]["reach"] == "sockets"


def test_bandwidth_is_that_of_the_link() -> None:
    """One member a node and eight groups share eight NICs of 400 Gbit/s, 50 GB/s each, of which InfiniBand moves some 80 %."""
    its = links(
        mesh({"tp": 8, "dp": 4}, gpu=UNIT_GPU, num_nodes=4, cluster={"nics_per_node": 8, "nic_gbit_per_s": 400})
    )
    assert 0.7 * 50e9 < its["dp"]["bus_bytes_per_s"] < 50e9
    assert its["dp"]["tier"] == "nominal"
    # The unit GPU's NVLink carries 100 GB/s one way.
    assert 0.5 * 100e9 < its["tp"]["bus_bytes_per_s"] < 100e9
    half = links(
        mesh({"tp": 8, "dp": 4}, gpu=UNIT_GPU, num_nodes=4, cluster={"nics_per_node": 4, "nic_gbit_per_s": 400})
    )
    assert half["dp"]["bus_bytes_per_s"] == pytest.approx(its["dp"]["bus_bytes_per_s"] / 2, rel=0.03)


def test_pools_have_links_of_their_own_and_pipelines_cross_them() -> None:
    pools = [
        {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
        {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    ]
    row = request_of(dense_model(6), global_batch_size=64)
    split = {**PLAIN, "tp": 8, "dp": 1, "pp": 3, "layers_per_stage": [2, 2, 2], "pool_per_stage": ["old", "old", "new"]}
    plan = launch_plan({**row, "cluster": {"pools": pools}, "strategy": split})
    found = mesh_document(plan.pooled, plan.row)
    assert [(run["pool"], run["first_node"], run["first_rank"]) for run in found["nodes"]] == [
        ("old", 0, 0), ("old", 1, 8), ("new", 2, 16),
    ]  # fmt: skip
    by_name = {each["name"]: each["links"] for each in found["dimensions"]}
    assert [link["pool"] for link in by_name["tp"]] == ["old", "new"]
    # Three stages of one group each, two of them on the older pool.
    assert [(link["count"], link["first_rank"]) for link in by_name["tp"]] == [(2, 0), (1, 16)]
    assert by_name["tp"][0]["bus_bytes_per_s"] < by_name["tp"][1]["bus_bytes_per_s"]
    (pipeline,) = by_name["pp"]
    assert (pipeline["link"], pipeline["nodes"], pipeline["pool"]) == ("network", [3, 3], None)


def test_a_hundred_thousand_gpus_take_no_more_room_than_eight() -> None:
    model = with_experts(dense_model(16), num_experts=64)
    split = {"tp": 8, "pp": 16, "dp": 784, "ep": 32, "etp": 1, "zero": 1}
    found = mesh(split, model=model, num_nodes=12544)
    assert found["world"] == 100_352
    assert len(json.dumps(found)) < 8_000
    assert len(found["nodes"]) == 16
    small = mesh({"tp": 2, "pp": 1, "dp": 4, "ep": 4, "etp": 1, "zero": 1}, model=with_experts(dense_model()))
    assert len(json.dumps(small)) > 1_000


def test_frameworks_with_a_device_mesh_tell_its_axes() -> None:
    found = mesh({"tp": 2, "dp": 8, "zero": 3, "zero_shard_size": 4}, framework="torchtitan", num_nodes=2)
    assert found["device_mesh"] == {"pp": 1, "dp_replicate": 2, "dp_shard": 4, "cp": 1, "tp": 2}
    assert mesh({"tp": 2, "dp": 4})["device_mesh"] is None
