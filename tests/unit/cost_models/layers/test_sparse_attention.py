"""Sparse attention with an indexer: parameters, operations, bytes and seconds by hand, who trains it, and its launch files."""

from __future__ import annotations

import json

import pytest

from builders import H100, UNIT_GPU, cluster_of, job_of, row_of, training_of
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from cost_models.layers.attention_core import layer_attention_s
from cost_models.layers.flops import attention_flops_per_token
from cost_models.layers.parameters import count_parameters
from cost_models.layers.sparse_core import chosen_keys, index_score_bytes, sparse_bytes
from planner.export.export import export_row
from planner.export.import_config import import_config
from planner.export.settings import InputFile
from planner.rows import evaluate_rows

MLA = {"q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
INDEXER = {"num_heads": 32, "head_dim": 128, "top_k": 2048}
HEADS, HIDDEN = 128, 1024


def model(indexer=INDEXER, **fields):
    mla = {**MLA, **({"indexer": indexer} if indexer else {})}
    return {
        "num_layers": 4, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 4096, "vocab_size": 32000,
        "mla": mla, **fields,
    }  # fmt: skip


def job(its=None, **training):
    return job_of(
        its or model(),
        "megatron",
        **{"framework_version": "0.19", "seq_length": 8192, "global_batch_size": 8, **training},
    )


def test_parameters_of_an_indexer():
    with_one, without = (count_parameters(resolve_model(each)) for each in (model(), model(indexer=None)))
    # Queries from their latent, one key with a LayerNorm, and a weight for each head.
    each = 768 * 32 * 128 + 1024 * 128 + 2 * 128 + 1024 * 32
    assert with_one.total - without.total == 4 * each


def test_the_published_model_has_its_size():
    found = resolve_model({"preset": "deepseek-v3.2"})
    # 61 indexers of 64 heads on top of DeepSeek-V3; transformers' module on the meta device counts as many.
    more = 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128)
    assert count_parameters(found).total == 671_026_404_352 + more == 671_877_929_216
    assert found.indexer is not None
    assert found.indexer.top_k == 2048


def test_operations_count_chosen_keys_and_scores_of_all():
    its = resolve_model(model())
    found = attention_flops_per_token(its, its.layer_kinds[0], seq_length=8192.0)
    # As a window of 2,048 keys, in the contract's whole square; the indexer scores every pair.
    attended = 2.0 * HEADS * (2 * 2048 - 2048**2 / 8192) * (192 + 128)
    assert found == pytest.approx(attended + 2.0 * 32 * 128 * 8192)
    short = attention_flops_per_token(its, its.layer_kinds[0], seq_length=1024.0)
    assert short == pytest.approx(2.0 * HEADS * 1024 * (192 + 128) + 2.0 * 32 * 128 * 1024)


def test_queries_of_short_documents_choose_all_keys():
    its = resolve_model(model()).indexer
    assert its is not None
    assert chosen_keys(its, ((8192.0, 0.25), (512.0, 0.75))) == pytest.approx(0.25 * 2048 + 0.75 * 512)


def test_kernels_are_as_fast_as_operations_or_bytes_allow():
    """On a GPU of 100 TFLOP/s and 1,000 GB/s: with 128 heads products decide, with 16 the keys that each query gathers."""
    its = job_of(
        model(),
        "megatron",
        cluster=cluster_of(UNIT_GPU),
        framework_version="0.19",
        seq_length=8192,
        global_batch_size=8,
    )
    peak = its.calibration.peak_flops_per_s("bf16") * its.calibration.sustained_clock
    rate = its.calibration.memory_bytes_per_s_effective.value
    index, key, value, k, tokens = 2 * 32 * 128, 576, 512, 2048, 8192
    for tp in (1, 8):
        row = row_of(its, tp=tp, micro_batch_size=1)
        found = layer_attention_s(its, its.model.layer_kinds[0], row)
        heads = HEADS / tp

        def longer(flops, moved):
            return max(flops / peak, moved / rate)

        forward = (
            longer(index * 4096, 4 * 4096)
            + (2 * 4 * 4096 + 4 * k) / rate
            + longer(2 * heads * k * (key + value), 2 * k * key + 2 * heads * (key + value))
            + longer(2 * heads * k * key, 2 * k * key + 4 * k)
            + longer(index * k, 2 * k * 128 + 2 * 4 * k)
        )
        backward = longer(2 * heads * k * (3 * key + 2 * value), 2 * k * key + 4 * k * key + 4 * heads * (key + value))
        backward += longer(3 * index * k, 2 * k * 128 + 4 * k * 128)
        assert found.forward_s[0] == pytest.approx(tokens * forward, rel=1e-3)
        assert found.backward_s[0] == pytest.approx(tokens * backward, rel=1e-3)


def test_a_published_kernel_is_near_its_roofline():
    """FlashMLA's sparse prefill reaches 640 TFLOP/s on an H800 (its README, 2025-09-29), with 128 heads and 2,048 keys of 576 elements."""
    its = job_of(
        model(),
        "megatron",
        cluster=cluster_of("H800-SXM-80GB"),
        framework_version="0.19",
        seq_length=8192,
        global_batch_size=8,
    )
    flops, moved = 2 * 128 * 2048 * (576 + 512), 2 * 2048 * 576 + 2 * 128 * (576 + 512)
    peak = its.calibration.peak_flops_per_s("bf16") * its.calibration.sustained_clock
    seconds = max(flops / peak, moved / its.calibration.memory_bytes_per_s_effective.value)
    # The cache serves some of what is counted at the memory's rate, so that the kernel can be faster than this.
    assert flops / seconds == pytest.approx(640e12, rel=0.15)


def test_what_is_saved_for_the_backward():
    import numpy as np

    its, one = resolve_model(model()), np.ones(1)
    alone = sparse_bytes(its, 2.0, 1000.0 * one, tp=one, sp=one)[0]
    # Latent outputs of all heads; the shared key; places, loss's gradient and mask; the indexer's queries, key and weights.
    expected = 2 * HEADS * 512 + 2 * 576 + 2048 * (4 + 4 + 1) + 2 * (33 * 128 + 32)
    assert alone == 1000 * expected
    split = sparse_bytes(its, 2.0, 1000.0 * one, tp=8 * one, sp=8 * one)[0]
    assert split == 1000 * (expected - 2 * HEADS * 512 * 7 / 8 + 2 * (HIDDEN + 768))
    assert index_score_bytes(its, 16384.0 * one, 16384.0)[0] == 4 * 8192 * 16384


def evaluated(framework="megatron", version="0.19", its=None, training=None, **strategy):
    row = {
        "model": its or model(), "cluster": cluster_of(H100),
        "training": training_of(framework, framework_version=version, global_batch_size=8, **(training or {})),
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip
    (answer,) = evaluate_rows([json.dumps(row)])
    return answer


@pytest.mark.parametrize(("framework", "version", "said"), [
    ("fsdp", "2.11", "without being trained"), ("deepspeed", "0.19", "without being trained"), ("torchtitan", "0.3", "no sparse attention"),
    ("nanotron", "2025", "no sparse attention"), ("megatron", "0.18", "not modelled"),
])  # fmt: skip
def test_who_does_not_train_it_is_refused_with_who_does(framework, version, said):
    answer = evaluated(framework, version)
    reason = next(each for each in answer["reasons"] if each["code"] == "layers-unsupported-by-framework")
    assert said in reason["message"]
    assert "0.19" in reason["hint"]


@pytest.mark.parametrize(("its", "training", "strategy", "code"), [
    (model(mla={**MLA, "kv_lora_rank": 256, "indexer": INDEXER}), {}, {}, "layers-unsupported-by-framework"),
    (model({**INDEXER, "top_k": 1000}), {}, {}, "layers-unsupported-by-framework"),
    (model(linear_bias=True), {}, {}, "layers-unsupported-by-framework"),
    (model(), {"precision": "fp16"}, {}, "precision-unsupported-by-framework"),
    (model(), {"attention": "math"}, {}, "attention-unsupported-by-framework"),
    (model(), {}, {"tp": 2, "sequence_parallel": False}, "tensor-parallel-unsupported"),
    (model(num_attention_heads=96), {}, {"tp": 2}, "heads-not-divisible"),
    (model(), {}, {"cp": 2, "cp_comm": "p2p"}, "context-parallel-comm-unsupported"),
])  # fmt: skip
def test_what_its_kernels_do_not_take(its, training, strategy, code):
    assert code in [each["code"] for each in evaluated(its=its, training=training, **strategy)["reasons"]]
    assert evaluated()["verdict"] == "fits"


def test_context_parallelism_gathers_by_itself():
    answer = evaluated(cp=2)
    assert (answer["verdict"], answer["assumed"]["cp_comm"]) == ("fits", "allgather")
    assert "sparse-attention-nominal" in answer["warnings"]
    assert answer["provenance"]["terms"]["attention"] == "nominal"


def test_an_indexer_needs_a_latent_to_read_and_room_to_rotate():
    for its, said in (
        (model(mla={**{k: v for k, v in MLA.items() if k != "q_lora_rank"}, "indexer": INDEXER}), "no q_lora_rank"),
        (model({**INDEXER, "head_dim": 32}), "less than the qk_rope_head_dim 64"),
        (model({"num_heads": 4}), "head_dim"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            resolve_model(its)


def test_megatron_is_told_and_what_it_was_told_is_read():
    row = {
        "model": model(), "cluster": cluster_of(H100), "strategy": {"tp": 2, "micro_batch_size": 1},
        "training": training_of("megatron", framework_version="0.19", global_batch_size=8),
    }  # fmt: skip
    files = export_row(row, "megatron")
    script = next(file for file in files if "--experimental-attention-variant" in file.content)
    line = " ".join(script.content.split())
    for said in (
        "--experimental-attention-variant dsa", "--dsa-indexer-n-heads 32", "--dsa-indexer-head-dim 128", "--dsa-indexer-topk 2048",
        "--dsa-indexer-use-sparse-loss", "--dsa-kernel-backend tilelang", "--no-rope-fusion",
    ):  # fmt: skip
        assert said in line.replace(" \\", "")
    found = import_config([InputFile(script.path, script.content)])
    assert found.row["model"]["mla"]["indexer"] == INDEXER
