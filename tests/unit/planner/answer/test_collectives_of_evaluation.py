"""Which algorithm an answer assumes for each group of ranks, with the parts of the call's time worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from planner.rows import evaluate_rows
from planner.schemas.evaluation import Evaluation

MODEL = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000,
}  # fmt: skip
NODES = {
    "gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8, "nics_per_node": 8, "nic_gbit_per_s": 400,
    "network": {"fabric": "infiniband", "latency_us": 2.7},
}  # fmt: skip
TRAINING = {"seq_length": 4096, "global_batch_size": 256, "precision": "bf16", "framework": "megatron"}
US = 1e-6


def calls_of(
    strategy: dict[str, Any], *, framework: str = "megatron", **collectives: Any
) -> dict[tuple[str, str], Any]:
    """The calls of one strategy by group and operation."""
    cluster = {**NODES, **({"collectives": collectives} if collectives else {})}
    row = {
        "model": MODEL, "cluster": cluster, "training": {**TRAINING, "framework": framework},
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    evaluation = Evaluation.model_validate(answer)
    assert evaluation.provenance is not None
    assert evaluation.provenance.collectives is not None
    return {(call.group, call.op): call for call in evaluation.provenance.collectives}


def test_every_group_tells_its_algorithm_and_the_parts_of_its_time() -> None:
    """tp inside a node was measured on such nodes; over 2 nodes of 4 ranks gradients take NCCL's ring, a stage is sent straight."""
    calls = calls_of({"tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True})
    assert set(calls) == {
        ("tp", "all_gather"), ("tp", "reduce_scatter"), ("dp", "reduce_scatter"), ("dp", "all_gather"), ("pp", "send_recv"),
    }  # fmt: skip
    inside = calls["tp", "all_gather"]
    assert (inside.algorithm, inside.protocol, inside.num_nodes) == ("measured", None, 1)
    assert inside.bytes == 4096 * 2048 * 2
    ring = calls["dp", "reduce_scatter"]
    assert (ring.algorithm, ring.protocol, ring.num_ranks, ring.num_nodes) == ("ring", "Simple", 8, 2)
    # 8.4 + (7 - 1) x 3.4 + 1 x 14 us; 7/8 S over four NICs of 50 GB/s at 0.80
    assert ring.latency_s == pytest.approx((8.4 + 6 * 3.4 + 14) * US)
    assert ring.bandwidth_s == pytest.approx(7 / 8 * ring.bytes / (4 * 0.8 * 50e9), rel=1e-9)
    sent = calls["pp", "send_recv"]
    assert (sent.algorithm, sent.num_ranks) == ("direct", 2)
    assert sent.latency_s == pytest.approx((7 + 2.7) * US)
    assert sent.bytes == 4096 * 2048 * 2 / 2


def test_forced_algorithms_are_told_where_groups_have_them() -> None:
    torus = calls_of({"tp": 2, "zero": 0}, library="msccl", algorithm={"all_reduce": "torus-2d"})
    assert (torus["dp", "all_reduce"].algorithm, torus["dp", "all_reduce"].protocol) == ("torus-2d", None)
    tree = calls_of({"tp": 2, "zero": 0}, algorithm={"all_reduce": "tree"}, protocol="LL128")
    call = tree["dp", "all_reduce"]
    assert (call.algorithm, call.protocol, call.num_nodes) == ("tree", "LL128", 4)
    # 14 + 2 (3 x 1.25 + 2 x 8.5) us
    assert call.latency_s == pytest.approx((14 + 2 * (3 * 1.25 + 2 * 8.5)) * US)
    nvls = calls_of({"tp": 2, "zero": 0}, algorithm={"all_reduce": "nvls"})
    assert nvls["dp", "all_reduce"].algorithm in ("ring", "tree", "nvls-tree")
    pat = calls_of({"tp": 8, "zero": 1}, algorithm={"all_gather": "pat"})
    assert pat["dp", "all_gather"].algorithm == "pat"
    assert pat["dp", "reduce_scatter"].algorithm == "ring"


def test_replicas_of_sharded_state_are_a_group_of_their_own() -> None:
    """Shards over the 8 ranks of a node, four copies of them: the copies reduce an eighth of the largest layer's gradients."""
    calls = calls_of({"zero": 3, "zero_shard_size": 8}, framework="torchtitan")
    assert calls["dp", "all_gather"].num_ranks == 8
    copies = calls["dp_replicas", "all_reduce"]
    assert (copies.num_ranks, copies.num_nodes) == (4, 4)
    assert copies.bytes == calls["dp", "reduce_scatter"].bytes / 8


def test_a_cluster_with_pools_tells_no_collectives() -> None:
    pools = [{"name": name, "gpu": gpu, "num_nodes": 1, "gpus_per_node": 8} for name, gpu in
             (("old", "A100-SXM-80GB"), ("new", "H100-SXM-80GB"))]  # fmt: skip
    row = {
        "model": MODEL, "cluster": {"pools": pools}, "training": TRAINING,
        "strategy": {"micro_batch_size": 1, "tp": 2, "pp": 2, "pool_per_stage": ["old", "new"]},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    assert answer["verdict"] == "fits"
    assert "collectives" not in answer["provenance"]
