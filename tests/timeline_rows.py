"""Evaluate rows of every schedule, for the tests of timelines."""

from __future__ import annotations

from typing import Any

from builders import dense_model, request_of, with_experts

Document = dict[str, Any]
SPLIT: Document = {"compile": False, "attention_kernel": "fa2"}
"""torchtitan without what forbids to split a backward."""


def timeline_row(
    framework: str = "megatron", *, model: Document | None = None, training: Document | None = None, **strategy: Any
) -> Document:
    """A row on two nodes of eight GPUs; sixteen layers, 64 sequences a step."""
    request = request_of(model or dense_model(16), framework, num_nodes=2, **(training or {}))
    return {**request, "strategy": {"tp": 2, "micro_batch_size": 1, **strategy}}


ROWS = {
    "1f1b": timeline_row(pp=4, dp=2),
    "one rank": timeline_row(pp=1, dp=8, recompute="full"),
    "recomputed": timeline_row(pp=4, dp=2, recompute="full", recompute_method="block", recompute_num_layers=2),
    "interleaved": timeline_row(pp=4, dp=2, vpp=2),
    "unlike chunks": timeline_row(pp=4, dp=2, vpp=2, layers_per_stage=[1, 2, 2, 2, 2, 3, 2, 2]),
    "few layers at the loss": timeline_row(pp=2, dp=4, vpp=2, layers_per_stage=[3, 5, 5, 3]),
    "one micro-batch": timeline_row("torchtitan", pp=1, dp=8, zero=3, training={**SPLIT, "global_batch_size": 8}),
    "gpipe": timeline_row("torchtitan", pp=4, dp=2, schedule="gpipe", training=SPLIT),
    "zb-v": timeline_row("torchtitan", pp=4, dp=2, vpp=2, schedule="zb-v", recompute="full", training=SPLIT),
    "dualpipe-v": timeline_row(
        "torchtitan", pp=4, dp=2, vpp=2, schedule="dualpipe-v", recompute="none", training=SPLIT
    ),
    "experts": timeline_row(pp=2, dp=4, ep=2, vpp=2, model=with_experts(dense_model(16))),
    "sharded": timeline_row("torchtitan", pp=2, dp=4, zero=3, training=SPLIT),
}
