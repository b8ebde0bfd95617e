"""Memory beside a frozen base, against peft runs on an H200 and against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.units import GIB
from planner.rows import evaluate_rows

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[4] / "data/measured_h200/lora_runs.jsonl").read_text().splitlines()
]
UNSAID = "own_lora_h200-d35814f2b9"
"""Its norms, embedding and output projection were stored in fp32, which no field says."""
LLAMA = next(row for row in ROWS if row["model"]["name"] == "llama-3.1-8b" and row["strategy"]["zero"] == 0)


def priced(row: dict[str, Any]) -> dict[str, Any]:
    given = {name: row[name] for name in ("id", "model", "cluster", "training", "strategy")}
    (answer,) = evaluate_rows([given])
    return answer


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not row["id"].startswith(UNSAID[:22])], ids=lambda row: row["id"]
)
def test_the_allocated_peak_is_that_of_the_run(row: dict[str, Any]) -> None:
    answer = priced(row)
    assert answer["memory"]["peak_allocated_bytes"] / GIB == pytest.approx(row["measured"]["peak_memory_gib"], rel=0.04)
    assert answer["trainable_parameters"] == row["measured"]["trainable_parameters"]
    assert answer["stored_parameters"] == row["measured"]["total_parameters"]


def test_a_base_in_four_bits() -> None:
    """32 x (2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336) weights of 0.5 + 1/64 + 4/16384 bytes; 1,050,939,392 others of 2; 41,943,040
    adapter elements of 4, and 8 bytes of moments for each.
    """
    row = {**LLAMA, "training": {**LLAMA["training"], "adapter": {"rank": 16, "quantized_base": "nf4"}}}
    breakdown = priced(row)["memory"]["stages"][0]["breakdown_bytes"]
    linear = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    others = 8_030_261_248 - linear
    assert breakdown["parameters"] == pytest.approx(linear * (0.5 + 1 / 64 + 4 / 16384) + 2 * others + 4 * 41_943_040)
    assert breakdown["optimizer_states"] == 8 * 41_943_040
