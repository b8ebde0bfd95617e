"""One transformer layer against Korthikanti et al. 2022, Table 4: a check of the layer table alone.

The 22B model on eight A100, tensor parallel 8, micro-batch 4: forward plus backward with and without sequence
parallelism and recomputation. There is no output layer, no optimizer and no pipeline, so any error is in the layer itself.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.record import ROOT
from cost_models.layers.costs import layer_costs
from planner.request.job import resolve_job
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

TABLE = ROOT / "data" / "reference" / "layer_times.csv"
CASES: Mapping[str, tuple[bool, str]] = {
    "baseline no recompute": (False, "none"),
    "sequence parallelism": (True, "none"),
    "baseline with full recompute": (False, "full"),
    "selective recompute": (False, "selective"),
    "selective + sequence": (True, "selective"),
}
"""Sequence parallelism and recomputation of each row of the table."""
JOB: Mapping[str, Any] = {
    "model": {
        "name": "22B", "num_layers": 48, "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 64,
        "intermediate_size": 24576, "vocab_size": 51200, "gated_mlp": False, "tie_word_embeddings": True,
        "norm": "layernorm", "position_embedding": "learned", "max_position_embeddings": 2048, "linear_bias": True,
    },
    "cluster": {"gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8, "intra_node": "nvswitch"},
    "training": {
        "seq_length": 2048, "global_batch_size": 4, "precision": "fp16", "framework": "megatron", "optimizer": "adam",
        "attention": "math", "software_date": "2022-05",
    },
}  # fmt: skip
"""The job of the korthikanti2022 rows with the 22B model."""


def layer_time_cases() -> list[tuple[str, float, float]]:
    """(case, measured seconds, predicted seconds) of forward plus backward of one layer."""
    job = resolve_job(JOB)
    inputs = [
        StrategyInput.model_validate(
            {"tp": 8, "zero": 0, "micro_batch_size": 4, "sequence_parallel": sequence_parallel, "recompute": recompute}
        )
        for sequence_parallel, recompute in CASES.values()
    ]
    strategies = resolve_strategies(job, inputs).strategies
    assert strategies is not None
    assert len(strategies) == len(CASES)
    layer = layer_costs(job, strategies)
    seconds = layer.cases.spread(layer.parts_JPU.sum(axis=1))[0]
    full = np.array([recompute == "full" for _, recompute in CASES.values()])
    selective = np.array([recompute == "selective" for _, recompute in CASES.values()])
    seconds = seconds + np.where(full, layer.cases.spread(layer.again_JU)[0], 0.0)
    seconds = seconds + np.where(selective, layer.cases.spread(layer.selective_JU)[0], 0.0)
    with TABLE.open(encoding="utf-8", newline="") as file:
        measured_s = {row["case"]: float(row["combined_ms"]) * 1e-3 for row in csv.DictReader(file)}
    return [(case, measured_s[case], float(value)) for case, value in zip(CASES, seconds, strict=True)]
