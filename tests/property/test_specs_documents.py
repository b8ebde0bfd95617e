"""Whatever a document holds, resolving it either works or raises this project's own error, and never counts wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.errors import InvalidInputError, MeshwrightError
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.hf.families import FAMILIES
from cost_models.inputs.hf_config import read_hf_config
from cost_models.inputs.model import resolve_model
from cost_models.inputs.model_fields import ModelInput
from cost_models.inputs.training import TrainingInput, resolve_training
from cost_models.layers.parameters import count_parameters

MODEL = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 96, "vocab_size": 100, "gated_mlp": True, "tie_word_embeddings": False, "norm": "rmsnorm",
    "norms_per_layer": 2, "qk_norm": True, "position_embedding": "learned", "max_position_embeddings": 50,
    "attention_bias": "qkv", "mlp_bias": False, "parallel_block": False, "embedding_norm": False,
    "attention_sinks": False, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "mtp_num_layers": 0, "moe": {"num_experts": 4, "top_k": 2, "expert_intermediate_size": 32},
}  # fmt: skip
CLUSTER = {
    "gpu": {"name": "x-H100", "memory_gib": 80, "peak_tflops": {"bf16": 900.0}, "memory_bandwidth_gb_per_s": 3000,
            "nvlink_gb_per_s": 450},
    "num_nodes": 4, "gpus_per_node": 8, "nvlink_domain_gpus": 8, "intra_node": "nvswitch",
    "pcie": {"gpus_per_switch": 2, "gpus_per_socket": 4}, "nics_per_node": 8, "nic_gbit_per_s": 400,
    "network": {"fabric": "infiniband", "rail_optimized": True, "nodes_per_leaf": 4, "oversubscription": 1.0,
                "latency_us": 3.0},
    "host_memory_gib": 512, "host_link_gb_per_s": 60, "reserved_memory_gib": 1, "price_per_gpu_hour": 2.5,
    "calibration": ["a"],
}  # fmt: skip
TRAINING = {
    "seq_length": 32, "global_batch_size": 8, "precision": "bf16", "framework": "megatron",
    "framework_version": "0.16", "software_date": "2026-02", "attention": "flash", "dropout": 0.1, "compile": False,
    "total_tokens": 1e12, "grad_dtype": "fp32",
}  # fmt: skip
CONFIG_KEYS = {
    "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_layer": 3,
    "n_embd": 64, "n_head": 8, "layer_types": None, "sliding_window": 16, "use_sliding_window": True,
    "attention_bias": True, "mlp_bias": False, "mlp_only_layers": [], "q_lora_rank": 8, "moe_layers": [0],
    "no_rope_layers": [1, 0, 1], "moe_topk": [2, 2, 2], "attention_chunk_size": 16, "moe_layer_end_index": -1,
    "n_layers": 3, "d_model": 64, "n_heads": 8, "attn_config": {"kv_n_heads": 2}, "ffn_config": {"moe_num_experts": 4},
    "moe_num_experts": 4, "sliding_window_pattern": 2, "multi_query": False, "n_inner": None, "use_bias": False,
}  # fmt: skip

awkward = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 3, 7, 10**6, 10**16, -(10**30), 10**4000]),
    st.sampled_from([0.0, -1.5, 1.5, 3.0, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.text(max_size=8),
    st.sampled_from(["full_attention", "mamba", "bf16", "2024-13", "\ud800", "/~"]),
    st.lists(st.integers(-2, 3) | st.text(max_size=3), max_size=4),
    st.dictionaries(st.text(max_size=6), st.integers(-1, 9), max_size=3),
)


@st.composite
def damaged(draw: st.DrawFn, base: dict[str, Any]) -> dict[str, Any]:
    """The document with a few keys dropped, replaced or added, one level deep too."""
    document = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    for _ in range(draw(st.integers(1, 4))):
        target = document
        nested = [value for value in document.values() if isinstance(value, dict) and value]
        if nested and draw(st.booleans()):
            target = draw(st.sampled_from(nested))
        if target and draw(st.booleans()):
            target.pop(draw(st.sampled_from(sorted(target))))
        if target and draw(st.booleans()):
            target[draw(st.sampled_from(sorted(target)))] = draw(awkward)
        if draw(st.integers(0, 5)) == 0:
            target[draw(st.text(max_size=8))] = draw(awkward)
    return document


def assert_speaks_of_the_document(error: MeshwrightError, pointer: str) -> None:
    """Every problem points into the document, says something, and fits on a screen."""
    assert isinstance(error, InvalidInputError)
    for problem in error.problems:
        assert problem.pointer.startswith(pointer)
        assert problem.message
        assert len(problem.message) < 1000


@settings(max_examples=400)
@given(document=damaged(MODEL))
def test_a_damaged_model_never_crashes(document: dict[str, Any]):
    try:
        model = resolve_model(document)
    except MeshwrightError as error:
        assert_speaks_of_the_document(error, "/model")
        return
    counts = count_parameters(model)
    assert counts.total >= counts.active > 0
    assert len(counts.per_layer) == len(model.layer_kinds) == model.num_layers


@settings(max_examples=400)
@given(document=damaged(CLUSTER))
def test_a_damaged_cluster_never_crashes(document: dict[str, Any]):
    try:
        cluster = resolve_cluster(document)
    except MeshwrightError as error:
        assert_speaks_of_the_document(error, "/cluster")
        return
    assert cluster.num_gpus >= 1
    assert cluster.capacity_bytes > 0
    assert cluster.intra_bytes_per_s > 0
    assert cluster.network.nic_wire_bytes_per_s > 0


@settings(max_examples=400)
@given(document=damaged(TRAINING))
def test_a_damaged_training_job_never_crashes(document: dict[str, Any]):
    model, cluster = resolve_model(MODEL), resolve_cluster(CLUSTER)
    try:
        training = resolve_training(document, model=model, cluster=cluster)
    except MeshwrightError as error:
        assert_speaks_of_the_document(error, "/training")
        return
    given_names = {name for name, value in document.items() if value is not None}
    assert not given_names & set(training.assumed)
    assert training.seq_length <= 50


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_config_never_crashes_and_never_takes_a_wrong_size(model_type: str, data: st.DataObject):
    config = {"model_type": model_type, **data.draw(damaged(CONFIG_KEYS))}
    try:
        model = resolve_model({"hf_config": config})
    except MeshwrightError as error:
        assert_speaks_of_the_document(error, "/model")
        return
    assert count_parameters(model).total > 0
    read = read_hf_config(config, pointer="").spec
    for ours, theirs in (("hidden_size", "hidden_size"), ("num_layers", "num_hidden_layers")):
        if type(config.get(theirs)) is int and theirs in FAMILIES[config["model_type"]].defaults:
            assert read[ours] == config[theirs]


@given(junk=st.recursive(awkward, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)))
def test_junk_is_refused_by_our_own_error(junk: Any):
    for resolve in (resolve_model, resolve_cluster):
        with pytest.raises(MeshwrightError):
            resolve(junk)
    with pytest.raises(MeshwrightError):
        resolve_training(junk, model=resolve_model(MODEL), cluster=resolve_cluster(CLUSTER))


@pytest.mark.parametrize("depth", [10, 100, 100_000])
def test_a_deeply_nested_document_is_refused(depth: int):
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"moe": nested}
    with pytest.raises(MeshwrightError):
        resolve_model(nested)
    with pytest.raises(MeshwrightError):
        resolve_model({"hf_config": {"model_type": "llama", "hidden_size": nested}})


@pytest.mark.parametrize("resolved", [MODEL, {"preset": "gemma-2-9b"}, {"hf_config": {"model_type": "qwen3"}}])
def test_resolving_twice_gives_the_same(resolved: dict[str, Any]):
    again = json.loads(json.dumps(resolved))
    assert resolve_model(resolved) == resolve_model(again)


def test_examples_of_the_schemas_resolve():
    for example in ModelInput.model_config["json_schema_extra"]["examples"]:
        model = resolve_model(example)
    for example in TrainingInput.model_config["json_schema_extra"]["examples"]:
        resolve_training(example, model=model, cluster=resolve_cluster({"preset": "dgx-h100"}))
