"""Pools as users write them: shared network, names, what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.pools import lists_pools, resolve_pools
from planner.request.job import resolve_job, resolve_pooled_job
from planner.strategies.told import assumed_fields

OLD = {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8}
NEW = {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8}
TRAINING = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"}


def problems(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInputError) as raised:
        resolve_pools(document)
    return [(problem.pointer, problem.message) for problem in raised.value.problems]


def test_every_pool_is_a_cluster_on_the_shared_network() -> None:
    network = {"fabric": "roce", "oversubscription": 2, "nodes_per_leaf": 4, "latency_us": 7}
    pooled = resolve_pools({"pools": [OLD, {**NEW, "nics_per_node": 4, "nic_gbit_per_s": 400}], "network": network})
    assert [pool.name for pool in pooled.pools] == ["old", "new"]
    assert pooled.num_gpus == 8 * 8 + 4 * 8
    assert pooled.num_nodes == 12
    for pool in pooled.pools:
        assert pool.cluster.network.fabric == "roce"
        assert pool.cluster.network.oversubscription == 2
        assert pool.cluster.network.latency_s == pytest.approx(7e-6)
    assert pooled.pools[1].cluster.network.nics_per_node == 4
    assert "network-nominal" in pooled.warnings  # what the old nodes' NICs are was not said


def test_an_open_network_is_the_first_pools() -> None:
    first = {"name": "cloud", "preset": "aws-p4d", "num_nodes": 2}
    pools = resolve_pools({"pools": [first, NEW]}).pools
    assert pools[0].cluster.network.fabric == pools[1].cluster.network.fabric == "efa"
    assert pools[0].cluster.network.latency_s == pools[1].cluster.network.latency_s


def test_gpus_of_two_vendors_are_refused() -> None:
    amd = {"name": "amd", "preset": "mi300x-8", "num_nodes": 2}
    with pytest.raises(NotModelledError) as raised:
        resolve_pools({"pools": [amd, NEW]})
    assert raised.value.problems[0].code == "pools-not-supported"
    assert "'amd' and 'new'" in raised.value.problems[0].message
    assert len(resolve_pools({"pools": [amd, {**amd, "name": "more"}]}).pools) == 2


def test_a_pool_takes_its_gpus_name() -> None:
    pooled = resolve_pools({"pools": [{key: value for key, value in OLD.items() if key != "name"}, NEW]})
    assert pooled.pools[0].name == "A100-SXM-80GB"
    assert pooled.assumed["pools.0.name"] == "A100-SXM-80GB"
    assert pooled.assumed["pools.A100-SXM-80GB.intra_node"] == "nvswitch"


def test_a_preset_describes_a_pools_nodes() -> None:
    pool = resolve_pools({"pools": [{"name": "x", "preset": "dgx-a100-80gb", "num_nodes": 3}]}).pools[0]
    assert (pool.cluster.num_nodes, pool.cluster.gpus_per_node, pool.cluster.gpu.name) == (3, 8, "A100-SXM-80GB")


@pytest.mark.parametrize(
    ("document", "pointer", "says"),
    [
        ({"pools": []}, "/cluster/pools", "empty"),
        ({"pools": "two"}, "/cluster/pools", "must be a list"),
        ({"pools": [{**OLD, "num_nodes": 0}]}, "/cluster/pools/0/num_nodes", "pool 'old' is empty"),
        ({"pools": [OLD, {**NEW, "gpus_per_node": 0}]}, "/cluster/pools/1/gpus_per_node", "pool 'new' is empty"),
        ({"pools": [OLD, {**NEW, "name": "old"}]}, "/cluster/pools/1/name", "two pools are called 'old'"),
        ({"pools": [OLD, {**NEW, "gpu": "H101"}]}, "/cluster/pools/1/gpu", "H101"),
        ({"pools": [OLD, {**NEW, "num_node": 3}]}, "/cluster/pools/1/num_node", "not a known field"),
        ({"pools": [OLD], "gpu": "H100-SXM-80GB"}, "/cluster/gpu", "beside pools"),
        ({"pools": [OLD], "calibration": "x"}, "/cluster/calibration", "beside pools"),
        ({"pools": [OLD], "islands": {"count": 2, "link_gbit_per_s": 10}}, "/cluster/islands", "which is not modelled"),
        ({"pools": [OLD], "network": {"fabric": "wool"}}, "/cluster/network/fabric", "wool"),
        ({"pools": [{**OLD, "network": {}}]}, "/cluster/pools/0/network", "not a known field"),
        ({"pools": [OLD, 7]}, "/cluster/pools/1", "must be an object"),
        ({"pools": [{**OLD, "name": f"p{n}"} for n in range(7)]}, "/cluster/pools", "the most is 6"),
        ({"pools": [OLD], "name": 5}, "/cluster/name", "must be a string"),
        ({"pools": [OLD], "name": ""}, "/cluster/name", "at least 1 character"),
        ({"pools": [OLD], "colour": 1}, "/cluster/colour", "not a known field"),
    ],
)
def test_wrong_pools_are_named(document: dict[str, Any], pointer: str, says: str) -> None:
    found = problems(document)
    assert found[0][0] == pointer
    assert says in found[0][1]


def test_two_pools_of_one_gpu_want_names() -> None:
    unnamed = {key: value for key, value in OLD.items() if key != "name"}
    assert "the name of their GPU" in problems({"pools": [unnamed, unnamed]})[0][1]


def test_only_pools_make_a_mixed_cluster() -> None:
    assert lists_pools({"pools": []})
    assert not lists_pools({"preset": "dgx-h100"})
    assert not lists_pools("dgx-h100")


def test_each_pool_has_its_own_defaults() -> None:
    document = {"model": {"preset": "llama-3.1-8b"}, "cluster": {"pools": [OLD, NEW]}, "training": TRAINING}
    pooled = resolve_pooled_job(document)
    kernels = [job.training.attention_kernel for job in pooled.jobs]
    assert kernels[0] != kernels[1]  # the newer kernel needs the newer GPU
    assert assumed_fields(pooled, {})["attention_kernel"] == dict(zip(("old", "new"), kernels, strict=True))
    assert [job.calibration.name for job in pooled.jobs] == ["A100-SXM-80GB reference", "H100-SXM-80GB reference"]


def test_a_framework_without_a_pipeline_is_refused() -> None:
    document = {"model": {"preset": "llama-3.1-8b"}, "cluster": {"pools": [OLD, NEW]}}
    with pytest.raises(NotModelledError) as raised:
        resolve_pooled_job(document | {"training": TRAINING | {"framework": "fsdp"}})
    assert raised.value.problems[0].code == "pools-not-supported"
    assert "unequal shares" in raised.value.problems[0].message


def test_a_precision_that_one_pool_lacks_is_refused() -> None:
    document = {"model": {"preset": "llama-3.1-8b"}, "cluster": {"pools": [OLD, NEW]}}
    with pytest.raises(InvalidInputError) as raised:
        resolve_pooled_job(document | {"training": TRAINING | {"precision": "fp8"}})
    assert "A100-SXM-80GB" in raised.value.problems[0].message


def test_what_wants_one_kind_of_node_refuses_pools() -> None:
    document = {"model": {"preset": "llama-3.1-8b"}, "cluster": {"pools": [OLD, NEW]}, "training": TRAINING}
    with pytest.raises(NotModelledError) as raised:
        resolve_job(document)
    assert raised.value.problems[0].code == "pools-not-supported"


def test_what_is_missing_is_told_together() -> None:
    with pytest.raises(InvalidInputError) as raised:
        resolve_pooled_job({"cluster": {"pools": []}})
    assert {problem.pointer for problem in raised.value.problems} == {"/model", "/cluster/pools", "/training"}
