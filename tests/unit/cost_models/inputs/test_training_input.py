"""A training document is resolved by framework, date and GPU generation; what was filled is listed."""

from __future__ import annotations

from typing import get_args

import pytest

from cost_models.errors import InvalidInputError
from cost_models.frameworks import FRAMEWORKS, release_at, release_month, version_key
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.specs.training import Framework

MODEL = resolve_model({"preset": "llama-3.1-8b"})
GPT = resolve_model({"preset": "gpt2-xl"})
H100 = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8})
A100 = resolve_cluster({"gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8})
V100 = resolve_cluster({"gpu": "V100-SXM-32GB", "num_nodes": 1, "gpus_per_node": 8})
JOB = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"}


def resolve(cluster=H100, model=MODEL, **changes):
    return resolve_training({**JOB, **changes}, model=model, cluster=cluster)


def problems(error=InvalidInputError, cluster=H100, model=MODEL, **changes):
    document = {name: value for name, value in {**JOB, **changes}.items() if value is not None}
    with pytest.raises(error) as caught:
        resolve_training(document, model=model, cluster=cluster)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("changes", "cluster", "kernel"),
    [
        ({"software_date": "2023-07"}, A100, "fa1"),
        ({"software_date": "2023-08"}, A100, "fa2"),
        ({"software_date": "2024-08"}, H100, "fa2"),
        ({"software_date": "2024-09"}, H100, "cudnn"),
        ({"software_date": "2024-09"}, A100, "fa2"),
        ({"software_date": "2024-09", "transformer_impl": "local"}, H100, "fa2"),
        ({"framework": "torchtitan"}, H100, "flex"),
        ({"framework": "torchtitan"}, A100, "flex"),
        ({"framework": "torchtitan", "framework_version": "0.2.2", "software_date": "2026-11"}, H100, "cudnn"),
        ({"framework": "torchtitan", "framework_version": "0.2"}, A100, "cudnn"),
        ({"framework": "torchtitan", "framework_version": "0.1"}, H100, "sdpa"),
        ({"framework": "fsdp", "framework_version": "2.8"}, H100, "sdpa"),
        ({"framework": "fsdp", "framework_version": "2.11"}, H100, "cudnn"),
        ({"framework": "fsdp", "framework_version": "2.11"}, A100, "sdpa"),
        ({"framework": "fsdp", "software_date": "2023-10"}, H100, "fa1"),
        ({"framework": "nanotron"}, H100, "fa2"),
    ],
)
def test_attention_kernel_follows_date_generation_and_framework(changes, cluster, kernel):
    training = resolve(cluster, **changes)
    assert training.attention_kernel == kernel
    assert training.assumed["attention_kernel"] == kernel


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        # Megatron's parser: cross_entropy_loss_fusion False, cross_entropy_fusion_impl native, through 0.19
        ({}, "unfused"),
        ({"recipe": "nvidia-perf"}, "te"),
        ({"recipe": "nvidia-perf", "software_date": "2024-11"}, "unfused"),
        ({"recipe": "nvidia-perf", "transformer_impl": "local"}, "unfused"),
        ({"framework": "torchtitan", "compile": True, "framework_version": "0.2"}, "compiled"),
        ({"framework": "torchtitan", "compile": True, "software_date": "2024-12"}, "unfused"),
        ({"framework": "torchtitan", "framework_version": "0.2.2", "software_date": "2026-11"}, "unfused"),
        ({"framework": "torchtitan", "compile": True}, "chunked"),
        ({"framework": "torchtitan"}, "chunked"),
        ({"framework": "deepspeed"}, "unfused"),
    ],
)
def test_cross_entropy_follows_framework_and_date(changes, loss):
    assert resolve(**changes).cross_entropy == loss


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("bf16", "fp32", "fp32", "fp32", "fp32")),
        ({"precision": "fp16"}, ("fp16", "fp32", "fp16", "fp16", "fp32")),
        ({"precision": "fp8"}, ("bf16", "fp32", "fp32", "fp32", "fp32")),
        ({"precision": "fp32"}, ("fp32", "none", "fp32", "fp32", "fp32")),
        ({"framework": "deepspeed"}, ("bf16", "fp32", "bf16", "bf16", "fp32")),
        ({"framework": "torchtitan"}, ("fp32", "none", "fp32", "fp32", "fp32")),
        ({"framework": "torchtitan", "param_dtype": "bf16"}, ("bf16", "none", "bf16", "fp32", "bf16")),
        ({"framework": "fsdp"}, ("fp32", "none", "fp32", "bf16", "fp32")),
        ({"framework": "nanotron"}, ("bf16", "fp32", "fp32", "fp32", "fp32")),
        ({"optimizer": "adam-8bit"}, ("bf16", "fp32", "fp32", "fp32", "fp8")),
    ],
)
def test_state_types_follow_the_framework(changes, expected):
    t = resolve(**changes)
    found = (t.param_dtype, t.main_param_dtype, t.grad_dtype, t.grad_reduce_dtype, t.optimizer_state_dtype)
    assert found == expected


def test_what_was_given_is_not_assumed():
    training = resolve(attention="math", grad_dtype="bf16", dropout=0, framework_version="0.16")
    assert not {"attention", "grad_dtype", "dropout", "framework_version", "seq_length"} & set(training.assumed)
    assert training.assumed["software_date"] == "2026-02"
    assert "attention_kernel" not in training.assumed  # no kernel runs


def test_flash_attention_is_impossible_in_fp32():
    training = resolve(precision="fp32", attention="flash")
    assert training.attention == "math"
    assert training.warnings == ("attention-math-for-fp32",)


def test_volta_has_no_flash_kernel_in_megatron():
    assert resolve(V100, precision="fp16").attention == "math"


def test_batch_in_tokens_is_a_whole_number_of_sequences():
    assert resolve(global_batch_size=None, global_batch_tokens=4096 * 12).global_batch_size == 12
    found = problems(global_batch_size=None, global_batch_tokens=4_000_000)
    # 4,000,000 / 4096 = 976.56, so 977 sequences: 977 * 4096 = 4,001,792
    assert found[0].pointer == "/training/global_batch_tokens"
    assert "4001792" in found[0].hint
    assert problems(global_batch_size=3, global_batch_tokens=4096 * 12)[0].pointer == "/training/global_batch_tokens"


@pytest.mark.parametrize("name", ["seq_length", "global_batch_size", "precision", "framework"])
def test_a_missing_required_field_is_named(name):
    found = problems(**{name: None})
    assert [(p.pointer, p.code) for p in found] == [(f"/training/{name}", "missing-field")]


@pytest.mark.parametrize(
    ("changes", "pointer", "hint"),
    [
        ({"framework": "megatron-lm"}, "/training/framework", "megatron"),
        ({"precision": "fp4"}, "/training/precision", "fp"),
        ({"software_date": "2024-13"}, "/training/software_date", "Correct"),
        ({"dropout": 1.5}, "/training/dropout", "Correct"),
        ({"seq_len": 4096}, "/training/seq_len", "seq_length"),
        ({"framework_version": "latest"}, "/training/framework_version", "0.16"),
        ({"precision": "nvfp4"}, "/training/precision", "bf16"),
    ],
)
def test_a_wrong_value_is_named_with_a_hint(changes, pointer, hint):
    found = {p.pointer: p for p in problems(**changes)}
    assert hint in found[pointer].hint


def test_precision_the_gpu_lacks_is_refused():
    assert problems(cluster=A100, precision="fp8")[0].code == "precision-not-supported"
    assert "V100" in problems(cluster=V100, precision="bf16")[0].message


def test_more_tokens_than_learned_positions_are_refused():
    found = problems(model=GPT, seq_length=2048)
    assert found[0].pointer == "/training/seq_length"
    assert "1024 learned positions" in found[0].message


def test_a_choice_of_another_type_lists_the_choices():
    assert "Known: bf16, fp16" in problems(precision=10**6000)[0].hint


def test_an_unknown_release_is_the_nearest_known_one_with_a_warning():
    training = resolve(framework_version="99.0")
    assert training.warnings == ("framework-version-unknown",)
    assert training.software_date == FRAMEWORKS["megatron"].releases[-1][1]


def test_a_date_alone_chooses_the_release():
    assert resolve(software_date="2025-06").framework_version == "0.12"
    assert release_at("megatron", "2020-01") == "0.8"
    assert release_month("torchtitan", "0.2.2") == ("2025-10", True)


@pytest.mark.parametrize("framework", get_args(Framework))
def test_every_framework_has_releases_in_order_and_defaults(framework):
    releases = FRAMEWORKS[framework].releases
    assert [version for version, _ in releases] == sorted((v for v, _ in releases), key=version_key)
    assert [month for _, month in releases] == sorted(month for _, month in releases)
    assert resolve(framework=framework).framework_version == FRAMEWORKS[framework].default_version


@pytest.mark.parametrize(
    ("framework", "default"),
    [
        ("deepspeed", "transformers"), ("fsdp", "transformers"), ("megatron", "native"), ("torchtitan", "native"),
        ("nanotron", "native"), ("megatron-deepspeed", "native"),
    ],
)  # fmt: skip
def test_whose_modules_run_is_kept_and_defaults_by_framework(framework, default):
    """CONTRACT: transformers for deepspeed and fsdp, native elsewhere; liger is transformers with Liger's kernels."""
    left_open = resolve(framework=framework)
    assert (left_open.model_impl, left_open.assumed["model_impl"]) == (default, default)
    given = resolve(framework=framework, model_impl="liger")
    assert given.model_impl == "liger"
    assert "model_impl" not in given.assumed


def test_an_unknown_model_implementation_names_the_known_ones():
    found = problems(model_impl="hf")
    assert [problem.pointer for problem in found] == ["/training/model_impl"]
    assert "transformers" in found[0].message + found[0].hint


def test_who_states_the_gradients_type_under_fsdp_means_their_reduction_too():
    """Shards of gradients have their parameters' type; MixedPrecision's reduce_dtype is what a user can choose."""
    assert resolve(framework="fsdp").grad_reduce_dtype == "bf16"
    assert resolve(framework="fsdp", grad_dtype="fp32").grad_reduce_dtype == "fp32"
    assert resolve(framework="fsdp", grad_dtype="fp32", grad_reduce_dtype="bf16").grad_reduce_dtype == "bf16"
    assert resolve(framework="torchtitan", grad_dtype="bf16").grad_reduce_dtype == "fp32"


def test_ligers_patches_take_the_linear_cross_entropy_unless_told_otherwise():
    patched = resolve(framework="fsdp", model_impl="liger")
    assert (patched.cross_entropy, patched.assumed["cross_entropy"]) == ("linear", "linear")
    assert resolve(framework="fsdp", model_impl="liger", cross_entropy="unfused").cross_entropy == "unfused"
    assert resolve(framework="fsdp").cross_entropy == "unfused"
