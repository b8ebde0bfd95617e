"""What a search takes for the least memory of a base row and its expansions, against every strategy that it stands for.

Each job was drawn at random and once had a strategy that needs less than its bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.evaluate import evaluate
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas import PlanRequest
from planner.search.bounds import build_bounds
from planner.search.leanest import least_memory
from planner.strategies.axes import build_space

DENSE = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 768, "intermediate_size": 3072}
TITAN = {"framework": "torchtitan", "framework_version": "0.1", "compile": False, "attention_kernel": "sdpa"}


def job(model: dict[str, Any], training: dict[str, Any], nodes: int, gpus: int, **constraints: Any) -> dict[str, Any]:
    gpu = {
        "name": "X", "memory_gib": 16, "peak_tflops": {"bf16": 312, "fp16": 312, "fp32": 60},
        "memory_bandwidth_gb_per_s": 2000, "nvlink_gb_per_s": 300,
    }  # fmt: skip
    cluster = {"gpu": gpu, "num_nodes": nodes, "gpus_per_node": gpus}
    return {"model": model, "cluster": cluster, "training": training, "constraints": constraints}


JOBS = {
    # GPipe holds all micro-batches, but a last stage without layers saves nothing of them.
    "a last stage without layers": job(
        {**DENSE, "num_layers": 6, "vocab_size": 32000},
        {"seq_length": 1536, "global_batch_size": 24, "precision": "bf16", "framework": "torchtitan", "framework_version": "0.3"},
        2, 4, allowed={"recompute": ["none", "full", "selective"]}, allow_idle_gpus=False,
    ),
    # The first stage of a V holds the head too, and the last one as many layers as in a plain pipeline.
    "a folded pipeline of two kinds of layer": job(
        {
            **DENSE, "num_layers": 4, "vocab_size": 4000,
            "moe": {
                "num_experts": 4, "top_k": 2, "expert_intermediate_size": 1536, "num_shared_experts": 1,
                "shared_expert_intermediate_size": 768, "first_dense_layers": 1,
            },
        },
        {**TITAN, "seq_length": 512, "global_batch_size": 24, "precision": "fp16", "cross_entropy": "compiled"},
        2, 1, fixed={"tp": 1, "cp": 1},
    ),
    # Gradients appear while the backward frees activations, so that the last layer's backward is the peak.
    "a layer that is kept": job(
        {
            "num_layers": 3, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096, "vocab_size": 128000,
            "moe": {"num_experts": 2, "top_k": 2, "expert_intermediate_size": 1024},
        },
        {**TITAN, "seq_length": 512, "global_batch_size": 2, "precision": "fp32"},
        3, 1, fixed={"tp": 1}, allowed={"recompute": ["full"], "recompute_num_layers": [1, 2, 3]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_no_strategy_undercuts_its_bounds(name: str) -> None:
    request = JOBS[name]
    space = build_space(resolve_job(request), PlanRequest.model_validate(request).constraints)
    base, pairs = space.base(), space.every_pair(space.base())
    least, rows = least_memory(space, base), space.expand(base, pairs).rows
    legal = np.flatnonzero(violations(space.job, rows).legal)
    costs = evaluate(space.job, rows.take(legal))
    assert len(legal) > 50
    assert (least.of_rows[pairs.origin] <= least.of_pairs(pairs)).all()
    assert (least.of_pairs(pairs)[legal] <= costs.memory.device * (1 + 1e-12)).all()
    bounds_s = build_bounds(space, base).paired_s(space, pairs)[legal]
    assert (bounds_s <= costs.step_time_s * (1 + 1e-9)).all()
