"""Spellings of a plan that mean the same have one meaning for writers."""

import pytest

from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.rows import evaluate_rows


def _row(**recompute):
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 2},
        "training": {"seq_length": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron"},
        "strategy": {"tp": 2, "pp": 2, "vpp": 2, "micro_batch_size": 1, "recompute": "full", **recompute},
    }


# 32 layers on 2 stages of 2 chunks: 8 layers in each chunk.
@pytest.mark.parametrize(
    ("method", "count", "plain"),
    [("uniform", 1, True), ("block", 8, True), ("block", 7, False), ("uniform", 2, False)],
)
def test_every_layer_as_a_unit_of_its_own_is_said_in_one_way(method, count, plain):
    row = _row(recompute_method=method, recompute_num_layers=count)
    quantities = Quantities(launch_plan(row), target="toy", version="1")
    seen = quantities.peek("recompute_method"), quantities.peek("recompute_num_layers")
    assert seen == ((None, None) if plain else (method, count))
    # What is called the same costs the same, and what is not does not.
    priced, every = evaluate_rows([row, _row()])
    same = priced["step_time_s"] == every["step_time_s"] and priced["memory"] == every["memory"]
    assert same == plain
