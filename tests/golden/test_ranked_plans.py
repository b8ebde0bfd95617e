"""Ranked plans of a few requests, kept as files and reviewed as a diff.

    python tests/golden/test_ranked_plans.py      regenerates them

Each file holds what a change of the cost models may move on purpose: rank, degrees, verdict, step time to four digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.plan import plan

HERE = Path(__file__).parent
DEGREES = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "zero_shard_size", "sequence_parallel", "micro_batch_size",
    "recompute", "recompute_num_layers",
)  # fmt: skip
REQUESTS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b-megatron": {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 4},
        "training": {"seq_length": 8192, "global_batch_size": 256, "precision": "bf16", "framework": "megatron"},
    },
    "llama-3.1-70b-torchtitan": {
        "model": {"preset": "llama-3.1-70b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 16},
        "training": {"seq_length": 8192, "global_batch_size": 256, "precision": "bf16", "framework": "torchtitan"},
    },
    "mixtral-8x7b-megatron-a100": {
        "model": {"preset": "mixtral-8x7b"},
        "cluster": {"preset": "dgx-a100-80gb", "num_nodes": 8},
        "training": {"seq_length": 4096, "global_batch_size": 512, "precision": "bf16", "framework": "megatron"},
    },
    "llama-2-13b-deepspeed-cost": {
        "model": {"preset": "llama-2-13b"},
        "cluster": {"preset": "dgx-a100-80gb", "num_nodes": 4},
        "training": {"seq_length": 4096, "global_batch_size": 128, "precision": "bf16", "framework": "deepspeed"},
        "objective": "cost",
    },
}


def ranked(name: str) -> list[dict[str, Any]]:
    """The five best plans of a request, in short."""
    response = plan({**REQUESTS[name], "top_k": 5})
    return [
        {
            "rank": each["rank"],
            **{field: each["strategy"][field] for field in DEGREES},
            "verdict": each["evaluation"]["verdict"],
            "step_time_s": float(f"{each['evaluation']['step_time_s']:.4g}"),
        }
        for each in response["plans"]
    ]


def rendered(plans: list[dict[str, Any]]) -> str:
    """One plan a line, so that a diff shows which moved."""
    return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in plans) + "\n]\n"


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_ranked_plans(name: str) -> None:
    kept = (HERE / f"{name}.json").read_text(encoding="utf-8")
    assert rendered(ranked(name)) == kept, (
        "changed on purpose? regenerate them: python tests/golden/test_ranked_plans.py"
    )


def test_every_file_belongs_to_a_request() -> None:
    assert {path.stem for path in HERE.glob("*.json")} - {"interface", "public_configs"} == set(REQUESTS)


if __name__ == "__main__":
    for request_name in REQUESTS:
        (HERE / f"{request_name}.json").write_text(rendered(ranked(request_name)), encoding="utf-8")
