"""The same request in two processes, with one and with two threads: the same bytes, whatever searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MIXTURE: dict[str, Any] = {
    "model": {
        "num_layers": 26, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 10_944,
        "vocab_size": 102_400,
        "moe": {
            "num_experts": 64, "top_k": 6, "expert_intermediate_size": 1408, "num_shared_experts": 2,
            "first_dense_layers": 3,
        },
    },
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": "megatron"},
    "constraints": {
        "fixed": {
            "pp": 4, "tp": 1, "cp": 1, "ep": 4, "vpp": 2, "zero": 1, "micro_batch_size": 1, "recompute": "none", "moe_dispatcher": "alltoall",
            "overlap": {"moe_all_to_all": False, "tp_comm": False},
        }
    },
    "include": ["open_splits"],
    "top_k": 5,
}  # fmt: skip
"""Two kinds of layer over virtual stages: the gap that thresholds leave is too wide to be enumerated, and CP-SAT narrows it."""
FEWER_LAYERS: dict[str, Any] = {
    **MIXTURE, "model": {**MIXTURE["model"], "num_layers": 14}, "include": ["open_splits", "pareto", "what_if"]
}  # fmt: skip
"""Thresholds close the gap, so that the front and the variants take a second each."""
LARGE: dict[str, Any] = {
    "model": {"preset": "llama-3.1-70b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 128},
    "training": {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"},
    "constraints": {
        "allowed": {"overlap": {key: [False, True] for key in ("tp_comm", "p2p", "grad_reduce", "param_gather")}}
    },
    "include": ["pareto"],
    "seed": 7,
}
"""More strategies than a front is enumerated of."""
PARTS = ("plans", "ties", "pareto", "what_if", "rejected", "nearest_infeasible", "inexpressible_best", "request_digest")


def planned(request: Path, *, threads: int) -> dict[str, Any]:
    """The response of a process of its own, whose libraries may use so many threads and hash as no other process."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "PYTHONHASHSEED")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, "-m", "meshwright", "plan", str(request), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("asked", "methods"),
    [
        (MIXTURE, {"exhaustive", "thresholds", "cp-sat"}),
        (FEWER_LAYERS, {"exhaustive", "thresholds"}),
        (LARGE, {"exhaustive", "nsga-ii"}),
    ],
    ids=["cp-sat", "thresholds", "nsga-ii"],
)
def test_same_request_same_bytes(asked: dict[str, Any], methods: set[str], tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(asked))
    one, two = (planned(request, threads=threads) for threads in (1, 2))
    assert set(one["search"]["methods"]) == methods  # else the test says nothing about them
    for name in asked["include"]:
        assert name == "open_splits" or one[name], name
    for part in PARTS:
        assert json.dumps(one[part]).encode() == json.dumps(two[part]).encode(), part
    assert one["search"]["proof"] == two["search"]["proof"]
