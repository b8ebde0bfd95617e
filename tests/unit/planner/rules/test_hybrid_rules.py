"""Rules on hybrids, with the frameworks' own assertions as oracle.

Megatron's mixer asserts that tp divides heads and groups (megatron/core/ssm/mamba_mixer.py), and its context parallelism that heads divide by
tp * cp, and that groups do or are copied evenly (mamba_context_parallel.py, whose own test has the three refused cases below).
"""

from __future__ import annotations

import pytest

from builders import Document, job_of, llama_model, row_of, with_experts
from planner.rules import reasons

BASE = {**llama_model(vocab_size=32000), "layer_types": ["linear_attention", "full_attention"] * 16}


def broken(
    framework: str, recurrent: Document, strategy: Document, model: Document = BASE, **training: str
) -> list[str]:
    job = job_of({**model, "recurrent": recurrent}, framework, num_nodes=2, seq_length=4096, **training)
    return [reason["code"] for reason in reasons(job, row_of(job, **strategy), 0)]


def mamba2(heads: int, groups: int) -> Document:
    return {"kind": "mamba2", "num_heads": heads, "num_groups": groups, "head_dim": 64}


SHORT = {"kind": "short-conv"}
DELTA = {"kind": "gated-delta-net", "num_heads": 32, "num_groups": 16, "head_dim": 128}


@pytest.mark.parametrize(
    ("heads", "groups", "strategy", "codes"),
    [
        (128, 8, {"tp": 8}, []),
        (128, 1, {"tp": 2}, ["heads-not-divisible"]),
        (12, 4, {"tp": 8}, ["heads-not-divisible"]),
        (128, 8, {"cp": 8}, []),
        (128, 2, {"cp": 8}, []),
        (3, 1, {"cp": 2}, ["context-parallel-heads"]),
        (12, 3, {"cp": 4}, ["context-parallel-heads"]),
        (12, 3, {"cp": 2}, ["context-parallel-heads"]),
    ],
)
def test_megatron_splits_the_heads_and_groups_of_mamba_2(heads: int, groups: int, strategy: Document, codes: list[str]):
    assert broken("megatron", mamba2(heads, groups), strategy) == codes


def test_a_delta_net_needs_its_key_heads_divided_by_both_degrees():
    both = {"tp": 4, "cp": 4}
    assert broken("megatron", DELTA, both, framework_version="0.18") == []
    assert broken("megatron", {**DELTA, "num_groups": 8}, both, framework_version="0.18") == ["context-parallel-heads"]


@pytest.mark.parametrize("framework", ["torchtitan", "nanotron", "megatron-deepspeed"])
def test_frameworks_without_recurrent_layers_refuse_the_model(framework: str):
    assert "layers-unsupported-by-framework" in broken(framework, mamba2(128, 8), {})


def test_megatron_has_no_short_convolutions_and_nothing_side_by_side():
    assert broken("megatron", SHORT, {}) == ["layers-unsupported-by-framework"]
    beside = {**BASE, "layer_types": ["hybrid"] * 32}
    assert broken("megatron", mamba2(128, 8), {}, beside) == ["layers-unsupported-by-framework"]


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("recurrent", [mamba2(128, 8), SHORT, DELTA])
def test_modules_of_transformers_are_not_split(framework: str, recurrent: Document):
    assert broken(framework, recurrent, {"zero": 2}) == []
    assert "context-parallel-unsupported" in broken(framework, recurrent, {"zero": 2, "cp": 2})
    assert "tensor-parallel-unsupported" in broken(framework, recurrent, {"zero": 1, "tp": 2})


@pytest.mark.parametrize("recurrent", [SHORT, {"kind": "mamba"}])
def test_what_a_framework_does_not_have_is_not_divided(recurrent: Document):
    """Megatron has neither, so that no tp and no cp would make these layers run there."""
    assert broken("megatron", recurrent, {"tp": 2, "cp": 2}) == ["layers-unsupported-by-framework"]


@pytest.mark.parametrize(
    ("recurrent", "strategy", "codes"),
    [
        (mamba2(128, 8), {"offload": {"activation_layers": 2}}, ["offload-unsupported"]),
        (DELTA, {"offload": {"activation_layers": 2}}, []),
        (mamba2(128, 8), {"ep": 4, "overlap": {"moe_all_to_all": True}}, ["overlap-unsupported"]),
        (DELTA, {"ep": 4, "overlap": {"moe_all_to_all": True}}, []),
    ],
)
def test_the_stack_of_blocks_does_less_than_the_usual_model(recurrent: Document, strategy: Document, codes: list[str]):
    """megatron/core/models/hybrid of 0.19.2 has no context of offloaded layers and no schedule plan; GPTModel has both."""
    model = with_experts(BASE) if "ep" in strategy else BASE
    assert broken("megatron", recurrent, strategy, model, framework_version="0.19") == codes


@pytest.mark.parametrize(
    ("model", "strategy", "hint"),
    [
        ({}, {"pp": 2}, "Set pp to 1, or use torchtitan."),
        (mamba2(128, 8), {"pp": 2}, "Set pp to 1, or use megatron."),
        (DELTA, {"cp": 2}, "Set cp to 1, or use megatron."),
        (SHORT, {"pp": 2}, "Set pp to 1."),
        (SHORT, {"tp": 2}, "Set tp to 1."),
    ],
)
def test_a_hint_names_a_framework_that_trains_the_model(model: Document, strategy: Document, hint: str):
    """torchtitan/models has no recurrent layers, Megatron Core has Mamba-2 and gated delta nets, and none of both short convolutions."""
    hybrid = {**BASE, "recurrent": model} if model else llama_model(vocab_size=32000)
    job = job_of(hybrid, "fsdp", num_nodes=2, seq_length=4096)
    assert hint in [reason["hint"] for reason in reasons(job, row_of(job, zero=2, **strategy), 0)]
