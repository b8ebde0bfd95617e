"""Trainable and total parameters of adapters equal those that peft counts.

`peft_counts.json` holds what `get_nb_trainable_parameters` of peft 0.21.2 returned for transformers' modules on the meta device,
with the model's configuration and the adapter's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.inputs.adapter import resolve_adapter
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.layers.trained import trained_parameters

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("peft_counts.json").read_text())["rows"]
ON_SOME_LAYERS = [row for row in ROWS if "layers_to_transform" in row["adapter"]]
CLUSTER = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 1})


def named(row: dict[str, Any]) -> str:
    return f"{row['name']}-{row['trainable']}"


def model_of(row: dict[str, Any]) -> Any:
    return resolve_model({"hf_config": {"model_type": row["family"], **row["config"]}})


def test_enough_families_are_compared() -> None:
    assert len(ROWS) >= 36
    assert len({row["family"] for row in ROWS}) >= 15


@pytest.mark.parametrize("row", [row for row in ROWS if row not in ON_SOME_LAYERS], ids=named)
def test_counts_are_pefts(row: dict[str, Any]) -> None:
    asked = {
        "seq_length": 128,
        "global_batch_size": 1,
        "precision": "bf16",
        "framework": "fsdp",
        "adapter": row["adapter"],
    }
    model = model_of(row)
    found = trained_parameters(model, resolve_training(asked, model=model, cluster=CLUSTER))
    assert (found.trainable, found.total) == (row["trainable"], row["total"])


@pytest.mark.parametrize("row", ON_SOME_LAYERS, ids=named)
def test_adapters_on_some_layers_are_a_share_of_those_on_all(row: dict[str, Any]) -> None:
    """These are refused, so only the elements of one layer are compared."""
    model = model_of(row)
    chosen = row["adapter"]["layers_to_transform"]
    document = {key: value for key, value in row["adapter"].items() if key != "layers_to_transform"}
    adapter = resolve_adapter(document, model=model, pointer="/training/adapter")
    asked = {"seq_length": 128, "global_batch_size": 1, "precision": "bf16", "framework": "fsdp", "adapter": document}
    on_all = trained_parameters(model, resolve_training(asked, model=model, cluster=CLUSTER)).trainable
    assert on_all * len(chosen) == row["trainable"] * model.num_layers
    assert adapter.rank == row["adapter"]["r"]
