"""What users state of collectives: refused with the field, the rule and its source where nothing could run it."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.pools import resolve_pools
from cost_models.specs.collectives import Collectives

H100 = {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8}
A100, MI300X = {**H100, "gpu": "A100-SXM-80GB"}, {**H100, "gpu": "MI300X-192GB"}


def of(cluster: dict[str, Any], **collectives: Any) -> Collectives | None:
    return resolve_cluster({**cluster, "collectives": collectives}).collectives


def test_the_library_follows_the_vendor_and_auto_forces_nothing() -> None:
    assert of(H100) == Collectives("nccl")
    assert of(MI300X, algorithm={"all_reduce": "auto"}, protocol="auto") == Collectives("rccl")
    assert resolve_cluster(H100).collectives is None
    stated = of(H100, algorithm={"reduce_scatter": "pat", "all_reduce": "tree"}, protocol="Simple")
    assert stated == Collectives("nccl", (("all_reduce", "tree"), ("reduce_scatter", "pat")), "Simple")


@pytest.mark.parametrize(
    ("cluster", "collectives", "pointer", "says"),
    [
        (H100, {"algorithm": {"all_reduce": "halving-doubling"}}, "algorithm/all_reduce", "NCCL src/graph/tuning.cc"),
        (H100, {"algorithm": {"all_reduce": "pat"}}, "algorithm/all_reduce", "nccl has no algorithm 'pat' for all_reduce"),
        (H100, {"library": "gloo", "algorithm": {"all_reduce": "nvls"}}, "algorithm/all_reduce", "gloo docs/algorithms.md"),
        (A100, {"algorithm": {"all_reduce": "nvls"}}, "algorithm/all_reduce", "Hopper or later behind an NVSwitch"),
        ({**H100, "num_nodes": 1}, {"algorithm": {"all_gather": "pat"}}, "algorithm/all_gather", "the cluster has one"),
        (
            {**H100, "network": {"fabric": "roce"}}, {"algorithm": {"all_reduce": "collnet"}}, "algorithm/all_reduce",
            "InfiniBand switches",
        ),
        (
            {**H100, "nics_per_node": 1}, {"library": "msccl", "algorithm": {"all_reduce": "torus-2d"}},
            "algorithm/all_reduce", "two NICs or more",
        ),
        (H100, {"algorithm": {"all_reduce": "nvls"}, "protocol": "LL"}, "protocol", "under Simple only"),
        (H100, {"library": "gloo", "protocol": "LL"}, "protocol", "gloo has no protocols"),
        (MI300X, {"algorithm": {"all_reduce": "torus-2d"}, "protocol": "LL"}, "protocol", "choose theirs themselves"),
        (H100, {"library": "rccl"}, "library", "does not run on NVIDIA's GPUs"),
        (MI300X, {"library": "nccl"}, "library", "does not run on AMD's GPUs"),
        (H100, {"algorithm": {"all_to_all": "ring"}}, "algorithm/all_to_all", "all_to_all"),
        (H100, {"algorithm": {"all_reduce": "rings"}}, "algorithm/all_reduce", "is 'rings'; it must be one of 'ring', 'tree', 'nvls'"),
        (H100, {"algorithm": {"broadcast": {}}}, "algorithm/broadcast", "broadcast is an object of 0 entries; it must be one of 'ring'"),
        (H100, {"protocol": "LL64"}, "protocol", "is 'LL64'; it must be one of 'LL', 'LL128', 'Simple' or 'auto'"),
    ],
)  # fmt: skip
def test_what_nothing_could_run_is_refused(
    cluster: dict[str, Any], collectives: dict[str, Any], pointer: str, says: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        of(cluster, **collectives)
    (problem,) = caught.value.problems
    assert problem.pointer == f"/cluster/collectives/{pointer}"
    assert says in problem.message
    assert problem.hint


def test_pools_share_one_library() -> None:
    pools = [{"name": "old", **A100}, {"name": "new", **H100}]
    found = resolve_pools({"collectives": {"algorithm": {"all_reduce": "ring"}}, "pools": pools})
    assert {pool.cluster.collectives for pool in found.pools} == {Collectives("nccl", (("all_reduce", "ring"),))}
    with pytest.raises(InvalidInputError, match="NVSwitch"):
        resolve_pools({"collectives": {"algorithm": {"all_reduce": "nvls"}}, "pools": pools})
