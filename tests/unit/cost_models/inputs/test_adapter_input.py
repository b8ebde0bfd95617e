"""Adapters and frozen parts as users write them: presets, peft's own file, and what is refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.layers.trained import trained_parameters
from cost_models.specs.training import Training

CLUSTER = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 2})
LLAMA: dict[str, Any] = {"preset": "llama-3.1-8b"}
TIED: dict[str, Any] = {"preset": "llama-3.2-1b"}


def training(model: dict[str, Any] = LLAMA, framework: str = "fsdp", **given: Any) -> Training:
    asked = {"seq_length": 1024, "global_batch_size": 4, "precision": "bf16", "framework": framework, **given}
    return resolve_training(asked, model=resolve_model(model), cluster=CLUSTER)


def problem(model: dict[str, Any] = LLAMA, framework: str = "fsdp", **given: Any) -> Problem:
    with pytest.raises(InvalidInputError) as caught:
        training(model, framework, **given)
    return caught.value.problems[0]


def targets(model: dict[str, Any], preset: str) -> tuple[str, ...]:
    found = training(model, adapter={"rank": 8, "target_modules": preset}).adapter
    assert found is not None
    return found.target_modules


def test_presets_name_the_modules_of_the_family() -> None:
    assert targets(LLAMA, "attention") == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert targets(LLAMA, "all-linear")[4:] == ("gate_proj", "up_proj", "down_proj")
    assert targets({"preset": "gpt2-xl"}, "all-linear") == ("c_attn", "c_proj", "c_fc")
    assert targets({"preset": "falcon-40b"}, "attention") == ("query_key_value", "dense")
    assert "kv_a_proj_with_mqa" in targets({"preset": "deepseek-v3"}, "attention")


def test_an_adapter_config_of_peft_is_read() -> None:
    config = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "use_dora": True, "target_modules": ["v_proj", "q_proj"],
        "base_model_name_or_path": "org/base", "bias": "none", "rank_pattern": {"v_proj": 2}, "modules_to_save": None,
    }  # fmt: skip
    found = training(adapter=config).adapter
    assert found is not None
    assert (found.rank, found.dora, found.dropout, found.rank_of("v_proj"), found.rank_of("q_proj")) == (
        4,
        True,
        0.1,
        2,
        4,
    )


def test_full_names_of_modules_are_read_by_their_last_part() -> None:
    found = training(adapter={"rank": 8, "target_modules": ["self_attn.q_proj"]}).adapter
    assert found is not None
    assert found.target_modules == ("q_proj",)


@pytest.mark.parametrize(
    ("adapter", "at", "says", "remedy"),
    [
        ({"rank": 0}, "/training/adapter/rank", "rank is 0", "8 or 16"),
        (
            {"rank": 8, "target_modules": ["q_proj", "k_porj"]},
            "/training/adapter/target_modules/1",
            "'k_porj'",
            "k_proj",
        ),
        ({"rank": 8, "target_modules": ["c_attn"]}, "/training/adapter/target_modules/0", "'c_attn'", "all-linear"),
        ({"rank": 8, "target_modules": []}, "/training/adapter/target_modules", "empty", "all-linear"),
        ({"rank": 8, "rank_pattern": {"lm": 4}}, "/training/adapter/rank_pattern", "'lm'", "proj"),
        ({"rank": 8, "quantized_base": "nf5"}, "/training/adapter/quantized_base", "nf5", "nf4"),
        ({"dora": True}, "/training/adapter/rank", "rank is required", "rank"),
    ],
)
def test_a_wrong_adapter_is_refused_with_field_and_remedy(adapter: Any, at: str, says: str, remedy: str) -> None:
    found = problem({"hf_config": {"model_type": "llama"}}, adapter=adapter)
    assert found.pointer.endswith(at.removeprefix("/training"))
    assert says in found.message
    assert remedy in found.hint


def test_a_tied_embedding_that_is_frozen_takes_no_adapter() -> None:
    found = problem(TIED, adapter={"rank": 8, "target_modules": ["q_proj", "embed_tokens"]})
    assert "tie_word_embeddings" in found.message
    saved = problem(TIED, adapter={"rank": 8, "modules_to_save": ["lm_head"]})
    assert "tie_word_embeddings" in saved.message


def test_frameworks_refuse_what_they_cannot_run() -> None:
    assert "nanotron has no adapters" in problem(framework="nanotron", adapter={"rank": 8}).message
    found = problem(framework="torchtitan", adapter={"rank": 8, "quantized_base": "nf4"})
    assert (found.pointer, "fsdp" in found.hint) == ("/training/adapter/quantized_base", True)


@pytest.mark.parametrize(
    ("more", "says", "remedy"),
    [
        ({"layers_to_transform": [0, 2]}, "layers_to_transform is [0, 2]", "all layers"),
        ({"layers_to_transform": 0}, "layers_to_transform is 0", "all layers"),
        ({"layers_to_transform": list(range(40))}, "layers_to_transform is a list of 40 entries", "all layers"),
        ({"layers_pattern": "layers"}, "layers_pattern is 'layers'", "all layers"),
        ({"target_parameters": ["experts.down_proj"]}, "['experts.down_proj']", "target_modules"),
        ({"exclude_modules": ["lm_head"]}, "exclude_modules is ['lm_head']", "target_modules"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is [3]", "modules_to_save"),
        ({"lora_bias": True}, "lora_bias is true", "Leave it out"),
    ],
)
def test_the_refusal_says_what_was_given_and_what_to_do_instead(more: dict[str, Any], says: str, remedy: str) -> None:
    with pytest.raises(NotModelledError) as caught:
        training(adapter={**PEFT, **more})
    (found,) = caught.value.problems
    assert says in found.message
    assert remedy in found.hint


@pytest.mark.parametrize("nothing", [[], None])
def test_layers_to_transform_that_names_no_layer_stands_for_all(nothing: object) -> None:
    adapter = training(adapter={**PEFT, "layers_to_transform": nothing}).adapter
    assert adapter == training(adapter=PEFT).adapter


PEFT: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("more", "at"),
    [
        ({"layers_to_transform": [1]}, "layers_to_transform"),
        ({"layers_to_transform": 0}, "layers_to_transform"),  # a layer's number, which is not the same as none
        ({"layers_pattern": "layers"}, "layers_pattern"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 4], [2, 8]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"lora_bias": True}, "lora_bias"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8}, "peft_type"),
        ({"target_modules": r".*\.(q|v)_proj"}, "target_modules"),
        ({"target_modules": ["v_proj", "model.layers.0.self_attn.q_proj"]}, "target_modules/1"),
        ({"rank_pattern": {"^model.layers.3.self_attn.q_proj": 4}}, "rank_pattern/^model.layers.3.self_attn.q_proj"),
    ],
)
def test_what_of_pefts_file_has_no_model_is_refused_where_it_stands(more: dict[str, Any], at: str) -> None:
    with pytest.raises(NotModelledError) as caught:
        training(adapter={**PEFT, **more})
    assert caught.value.problems[0].pointer == f"/training/adapter/{at}"


@pytest.mark.parametrize(
    ("more", "at", "says", "remedy"),
    [
        ({"target_module": ["q_proj"]}, "target_module", "not a known field", "target_modules"),
        ({"rank": 8}, "r", "r and rank", "one of the two"),
        ({"r": "8"}, "r", "r is '8'; it must be a whole number", ""),
        ({"r": 0}, "r", "r is 0", "8 or 16"),
        ({"r": 4097}, "r", "r is 4097, more than the 4096", "16"),
        ({"lora_dropout": 2}, "lora_dropout", "lora_dropout is 2", ""),
        ({"target_modules": None}, "target_modules", "null", "all-linear"),
        ({"target_modules": {"q_proj": 1}}, "target_modules", "must be a list", ""),
        ({"target_modules": ["selfattn.q_proj"]}, "target_modules/0", "'selfattn'", "self_attn"),
        ({"modules_to_save": "lm_head"}, "modules_to_save", "must be a list", ""),
        ({"modules_to_save": ["score"]}, "modules_to_save/0", "'score'", "lm_head"),
        ({"rank_pattern": {"v_proj": 4}}, "rank_pattern", "'v_proj'", "q_proj"),
        ({"rank_pattern": {"q_proj": 5000}}, "rank_pattern/q_proj", "5000", "16"),
        ({"quantized_base": "fp8"}, "quantized_base", "'fp8'", "'int8' or 'nf4'"),
    ],
)
def test_mistakes_in_pefts_file_are_named_by_its_own_keys(more: Any, at: str, says: str, remedy: str) -> None:
    found = problem(adapter={**PEFT, **more})
    assert (found.pointer, says in found.message, remedy in found.hint) == (f"/training/adapter/{at}", True, True)


def test_what_costs_nothing_of_pefts_file_is_read_over() -> None:
    more = {
        "use_rslora": True, "init_lora_weights": "pissa", "alpha_pattern": {"q_proj": 3}, "loftq_config": {}, "eva_config": None,
        "task_type": "CAUSAL_LM", "inference_mode": True, "megatron_config": None, "megatron_core": "megatron.core", "bias": "none",
        "layers_to_transform": None, "layers_pattern": None, "lora_bias": False, "peft_version": "0.21.2",
    }  # fmt: skip
    assert (
        training(adapter={**PEFT, **more}).adapter == training(adapter={"rank": 8, "target_modules": "q_proj"}).adapter
    )


def test_a_base_alone_cannot_be_quantised() -> None:
    for adapter in ({"quantized_base": "nf4"}, {"rank": 0, "quantized_base": "int8"}):
        found = problem(adapter=adapter)
        assert (found.pointer, "cannot be trained" in found.message) == ("/training/adapter/rank", True)


def test_modules_that_share_a_name_are_adapted_together() -> None:
    """GPT-2 calls the projections behind attention and MLP both c_proj."""
    assert targets({"preset": "gpt2-xl"}, "c_proj") == ("c_proj",)
    found = problem({"preset": "gpt2-xl"}, adapter={"rank": 8, "target_modules": ["mlp.c_proj"]})
    assert (found.code, found.hint) == ("not-modelled", "Name 'c_proj'.")


@pytest.mark.parametrize(
    ("framework", "adapter", "at"),
    [
        ("torchtitan", {"dora": True}, "dora"),
        ("torchtitan", {"dropout": 0.1}, "dropout"),
        ("megatron", {"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ("megatron", {"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_frameworks_refuse_what_their_adapters_lack(framework: str, adapter: Any, at: str) -> None:
    found = problem(framework=framework, adapter={"rank": 8, **adapter})
    assert (found.pointer, "fsdp" in found.hint) == (f"/training/adapter/{at}", True)


def test_torchtitan_has_adapters_since_its_third_release() -> None:
    found = problem(framework="torchtitan", framework_version="0.2", adapter={"rank": 8})
    assert found.message == "torchtitan 0.2 has no adapters"


def test_frozen_patterns_name_whole_parts() -> None:
    assert training(frozen=["embed_tokens", "*.mlp"]).frozen == ("embedding", "mlp")
    assert training(frozen=["model.layers.*.self_attn.*", "lm_head"]).frozen == ("head", "attention")
    assert "no module 'embed_token'" in problem(frozen=["embed_token"]).message
    assert "every part" in problem(frozen=["*"]).message
    with pytest.raises(NotModelledError):
        training(frozen=["model.layers.0"])


def test_frozen_parameters_are_not_trained() -> None:
    """128,256 x 4,096 elements of the embedding and 32 x 3 x 4,096 x 14,336 of the MLPs of 8,030,261,248."""
    model = resolve_model(LLAMA)
    found = trained_parameters(model, training(frozen=["embedding", "mlp"]))
    assert found.trainable == 8_030_261_248 - 128_256 * 4096 - 32 * 3 * 4096 * 14_336
    assert found.total == 8_030_261_248
