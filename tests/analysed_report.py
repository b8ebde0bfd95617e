"""A report that is planned in less than a second and has a front, variants with a gap, ties and near-copies."""

from __future__ import annotations

from functools import cache
from typing import Any

from app.report.build import build_report
from app.report.report import Report
from planner.plan import plan

REQUEST: dict[str, Any] = {
    "model": {
        "name": "small", "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192,
        "vocab_size": 50304, "position_embedding": "learned", "max_position_embeddings": 4096, "gated_mlp": False,
    },
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "constraints": {"allowed": {"zero": [1], "vpp": [1], "recompute": ["none", "full"]}, "fixed": {"cp": 1}},
    "top_k": 5,
    "include": ["pareto", "what_if"],
}  # fmt: skip
"""A model with 4,096 learned positions on one node, with the front and the variants: longer sequences have no plan."""


@cache
def analysed_report() -> Report:
    """The report of the request."""
    return build_report(plan(REQUEST))
