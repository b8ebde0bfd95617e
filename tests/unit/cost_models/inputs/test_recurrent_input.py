"""Recurrent layers as users write them: what contradicts itself is refused with field and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from builders import dense_model, job_of, with_experts
from cost_models.errors import InvalidInputError, NotModelledError
from cost_models.inputs.model import resolve_model
from planner.request.resolved import model_document

LAYERS = ["linear_attention", "full_attention"] * 2


def hybrid(kind: str, layer_types: list[str] = LAYERS, **fields: Any) -> dict[str, Any]:
    """A model of four layers with this mixer."""
    sizes = {"mamba2": {"num_heads": 16}, "gated-delta-net": {"num_heads": 16, "head_dim": 64}}.get(kind, {})
    return dense_model(layer_types=layer_types, recurrent={"kind": kind, **sizes, **fields})


@pytest.mark.parametrize(("kind", "fields", "field", "message"), [
    # A state of no elements remembers nothing, and a product with a matrix of no columns has no time.
    ("mamba2", {"state_size": 0}, "state_size", "state_size is 0; it must be at least 1 for mamba2"),
    ("gated-delta-net", {"state_size": 0}, "state_size", "state_size is 0; it must be at least 1 for gated-delta-net"),
    ("mamba", {"state_size": 0}, "state_size", "state_size is 0; it must be at least 1 for mamba"),
    ("mamba", {"dt_rank": 0}, "dt_rank", "dt_rank is 0; it must be at least 1 for mamba"),
    # What a kind does not have changes nothing, so that whoever gives it means something else.
    ("short-conv", {"state_size": 16}, "state_size", "state_size is 16, but short-conv has no state"),
    ("mamba2", {"dt_rank": 64}, "dt_rank", "dt_rank is 64, but mamba2 has no bottleneck of step sizes"),
    ("gated-delta-net", {"inner_norms": True}, "inner_norms", "inner_norms is true, but gated-delta-net does not normalise"),
    # A chunk is what one block of a kernel holds; those of mamba-ssm and flash-linear-attention hold 256 and 64 tokens.
    ("mamba2", {"chunk_size": 10**6}, "chunk_size", "chunk_size is 1000000; it must be at most 8192"),
])  # fmt: skip
def test_a_mixer_has_what_its_kind_has(kind: str, fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve_model(hybrid(kind, **fields))
    (problem,) = caught.value.problems
    assert problem.pointer == f"/model/recurrent/{field}"
    assert problem.message.startswith(message)
    assert problem.hint


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "gated-delta-net", "short-conv"])
def test_a_resolved_mixer_means_the_same_model(kind: str) -> None:
    model = resolve_model(hybrid(kind))
    assert resolve_model(model_document(model)).recurrent == model.recurrent


@pytest.mark.parametrize("layers", [["linear_attention"] * 4, ["mlp", "mamba"] * 2, ["conv"] * 4])
def test_a_model_without_attention_is_refused_however_it_is_written(layers: list[str]) -> None:
    with pytest.raises(NotModelledError, match="no layer of the model attends") as caught:
        job_of(hybrid("mamba2", layers), "fsdp")
    assert caught.value.problems[0].pointer == "/model/layer_types"
    # This class has Mamba in every layer that is not listed.
    with pytest.raises(NotModelledError, match="no layer of the model attends") as caught:
        job_of({"hf_config": {"model_type": "granitemoehybrid", "num_hidden_layers": 2}}, "fsdp")
    assert caught.value.problems[0].pointer == "/model/hf_config"


def test_layers_that_stand_beside_attention_attend() -> None:
    assert job_of(hybrid("mamba2", ["hybrid"] * 4), "fsdp").model.num_layers == 4


def test_experts_that_no_layer_has_are_refused() -> None:
    model = with_experts(dense_model(layer_types=["full_attention", "mlp"] * 2))
    with pytest.raises(InvalidInputError) as caught:
        resolve_model(model)
    (problem,) = caught.value.problems
    assert problem.pointer == "/model/moe"
    assert problem.message == "moe is given, but no layer of layer_types is 'moe'"
