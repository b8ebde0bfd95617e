"""Which optimizers each framework and release has, from their own sources, and what the refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from builders import job_of, llama_model, rows_of, with_experts
from cost_models.errors import InvalidInputError
from planner.rules import reasons

DENSE = llama_model(vocab_size=32000)


def refused(
    framework: str, model: dict[str, Any] = DENSE, strategy: dict[str, Any] | None = None, **training: Any
) -> list[str]:
    job = job_of(model, framework, num_nodes=2, **training)
    found = reasons(job, rows_of(job, strategy or {}), 0)
    return [reason["message"] for reason in found if reason["code"] in ("optimizer-unsupported", "offload-unsupported")]


@pytest.mark.parametrize(("framework", "version", "optimizer", "zero", "legal"), [
    # megatron/core/optimizer/muon.py came with core 0.16; Lion, and both over layer-wise buffers, with 0.17 and 0.18
    ("megatron", "0.15", "muon", 1, False), ("megatron", "0.16", "muon", 1, True), ("megatron", "0.16", "muon", 0, True),
    ("megatron", "0.19", "muon", 3, False), ("megatron", "0.16", "lion", 0, False), ("megatron", "0.17", "lion", 0, True),
    ("megatron", "0.17", "lion", 1, False), ("megatron", "0.18", "lion", 1, True), ("megatron", "0.19", "sgd-momentum", 1, True),
    ("megatron", "0.19", "adafactor", 1, False), ("megatron", "0.19", "adam-4bit", 1, False),
    # pull requests 7509 (stages 1 and 2) and 7798 (stage 3); issue 8441 (stage 0)
    ("deepspeed", "0.17", "muon", 2, False), ("deepspeed", "0.18", "muon", 2, True), ("deepspeed", "0.18", "muon", 3, False),
    ("deepspeed", "0.19", "muon", 3, True), ("deepspeed", "0.19", "muon", 0, False), ("deepspeed", "0.19", "lion", 2, True),
    ("deepspeed", "0.19", "adafactor", 3, True), ("deepspeed", "0.19", "adam-4bit", 2, True),
    # torchtitan/components/optimizer: Adam, AdamW and, from 0.3, DistMuon
    ("torchtitan", "0.2", "muon", 3, False), ("torchtitan", "0.3", "muon", 3, True), ("torchtitan", "0.3", "lion", 3, False),
    # torch.optim.Muon came with 2.9; Adafactor refuses distributed tensors (tried at PyTorch 2.13 and transformers 5.24)
    ("fsdp", "2.8", "muon", 3, False), ("fsdp", "2.11", "muon", 3, True), ("fsdp", "2.11", "adafactor", 3, False),
    ("fsdp", "2.11", "adafactor", 0, True), ("fsdp", "2.11", "lion", 3, False), ("fsdp", "2.11", "lion", 0, True), ("nanotron", "0.4", "muon", 1, False),
    ("megatron-deepspeed", None, "muon", 1, False), ("megatron-deepspeed", None, "sgd-momentum", 1, True),
])  # fmt: skip
def test_optimizers_of_each_release(framework: str, version: str | None, optimizer: str, zero: int, legal: bool):
    stated = {} if version is None else {"framework_version": version}
    found = refused(framework, strategy={"zero": zero}, optimizer=optimizer, **stated)
    assert len(found) == (not legal), found
    assert all(f"'{optimizer}'" in message for message in found)


def test_megatron_trains_with_muon_in_bf16():
    assert refused("megatron", optimizer="muon", precision="fp16") == [
        "megatron trains with optimizer 'muon' in bf16 or fp32, not in fp16"
    ]


def test_plain_muon_of_megatron_reduces_behind_the_backward():
    for version, overlaps, legal in (("0.17", True, False), ("0.17", False, True), ("0.18", True, True)):
        job = job_of(DENSE, "megatron", num_nodes=2, optimizer="muon", framework_version=version)
        found = reasons(job, rows_of(job, {"zero": 0, "overlap": {"grad_reduce": overlaps}}), 0)
        assert [reason["code"] for reason in found] == ([] if legal else ["overlap-unsupported"])


@pytest.mark.parametrize(
    ("optimizer", "groups", "legal"), [("muon", 4, False), ("muon", 16, True), ("lion", 4, False), ("adam", 4, True)]
)
def test_megatron_deals_matrices_out_to_all_ranks(optimizer: str, groups: int, legal: bool):
    """LayerWiseDistributedOptimizer of core 0.19.2 asserts that there is one optimizer instance."""
    job = job_of(DENSE, "megatron", num_nodes=2, optimizer=optimizer, framework_version="0.19")
    found = reasons(job, rows_of(job, {"dp": 16, "zero": 1, "zero_shard_size": groups}), 0)
    assert [reason["code"] for reason in found] == ([] if legal else ["zero-shard-size-unsupported"])


def test_torchtitans_muon_splits_no_matrix():
    assert refused("torchtitan", strategy={"tp": 2}, optimizer="muon") == [
        "torchtitan has no layout for optimizer 'muon' on matrices that tensor parallelism splits (tp 2)"
    ]


def test_pytorchs_muon_takes_no_experts_in_one_tensor():
    model = with_experts(DENSE)
    assert len(refused("fsdp", model, optimizer="muon")) == 1
    # transformers before 5.0 held each expert's matrices apart.
    assert not refused("fsdp", model, optimizer="muon", framework_version="2.9", software_date="2025-12")


def test_no_such_update_runs_on_the_host():
    assert refused("deepspeed", strategy={"zero": 2, "offload": {"optimizer_fraction": 1.0}}, optimizer="lion") == [
        "optimizer 'lion' can update its state only on the GPU"
    ]


@pytest.mark.parametrize(("framework", "version", "optimizer", "zero", "hint"), [
    ("megatron", "0.16", "muon", 3, "Set zero to 0 or 1, or optimizer to 'adam'."),
    ("megatron", "0.17", "lion", 1, "Set zero to 0, or optimizer to 'adam'."),
    ("deepspeed", "0.18", "muon", 3, "Set zero to 1 or 2, or optimizer to 'adam'."),
    ("torchtitan", "0.3", "muon", 0, "Set zero to 2 or 3, or optimizer to 'adam'."),
])  # fmt: skip
def test_a_stage_without_the_optimizer_names_those_that_have_it(
    framework: str, version: str, optimizer: str, zero: int, hint: str
):
    job = job_of(DENSE, framework, num_nodes=2, optimizer=optimizer, framework_version=version)
    (found,) = reasons(job, rows_of(job, {"zero": zero}), 0)
    assert found["hint"] == hint


@pytest.mark.parametrize(
    ("written", "meant"), [("Adam", "adam"), ("SGD", "sgd"), ("adamw", "adam"), ("paged_adamw_8bit", "adam-8bit")]
)
def test_an_optimizer_in_other_letters_is_the_one_that_is_meant(written: str, meant: str):
    with pytest.raises(InvalidInputError) as caught:
        job_of(DENSE, optimizer=written)
    assert caught.value.problems[0].hint == f"Did you mean '{meant}'?"
