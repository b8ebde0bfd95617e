"""The request of an answer says the stated collectives again, and means the same when it is asked again."""

from __future__ import annotations

from typing import Any

import pytest

from builders import tiny_model, training_of
from planner.plan import plan

STATED = {"library": "nccl", "algorithm": {"all_reduce": "ring"}, "protocol": "LL128"}
NODES = {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 4}
POOLS = {"pools": [{"name": "old", **NODES, "gpu": "A100-SXM-80GB"}, {"name": "new", **NODES}]}


@pytest.mark.parametrize("cluster", [NODES, POOLS], ids=["one-kind", "pools"])
def test_an_answer_repeats_what_was_stated(cluster: dict[str, Any]) -> None:
    asked = {
        "model": tiny_model(),
        "cluster": {**cluster, "collectives": STATED},
        "training": training_of(),
        "top_k": 1,
    }
    answer = plan(asked)
    assert answer["request"]["cluster"]["collectives"] == STATED
    again = plan(answer["request"])
    assert again["request_digest"] == answer["request_digest"]
    plain = plan({**asked, "cluster": cluster})
    assert "collectives" not in plain["request"]["cluster"]
    assert plain["request_digest"] != answer["request_digest"]
