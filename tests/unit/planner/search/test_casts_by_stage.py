"""What layers cast depends on the ZeRO stage in two kinds of jobs; a search prices each plan at its own."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import plan
from planner.rows import evaluate_rows

MODEL = {
    "num_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 4000,
}  # fmt: skip
JOB = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "param_dtype": "fp32", "compile": False}


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({"framework": "fsdp", "adapter": {"rank": 64}}, id="adapters"),
        pytest.param({"framework": "torchtitan", "framework_version": "0.2"}, id="autocast"),
    ],
)
def test_plans_of_several_stages_are_ranked_by_what_each_takes(training: dict[str, Any]) -> None:
    request = {
        "model": MODEL, "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {**JOB, **training}, "constraints": {"allowed": {"zero": [0, 2, 3]}}, "top_k": 12,
    }  # fmt: skip
    plans = plan(request)["plans"]
    assert len({each["strategy"]["zero"] for each in plans}) > 1
    rows = [
        {**{name: request[name] for name in ("model", "cluster", "training")}, "strategy": each["strategy"]}
        for each in plans
    ]
    alone = [each["step_time_s"] for each in evaluate_rows(rows)]
    assert [each["evaluation"]["step_time_s"] for each in plans] == pytest.approx(alone)
    assert alone == sorted(alone)
