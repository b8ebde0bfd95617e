"""What a framework does by default, and what it did otherwise before a release or a month: each bound from both sides.

Rules have their pairs in test_rule_versions.py. A bound that is added needs a row here; the tests at the end of each part say so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from builders import Document, dense_model, job_of, row_of
from cost_models.frameworks import FRAMEWORKS, deepspeed, default_rows, fsdp
from cost_models.frameworks.torchtitan import CHOICES
from cost_models.frameworks.training_defaults import USUAL
from cost_models.layers.attention_core import running_kernel

job = partial(job_of, dense_model())


def release(bound: str) -> str:
    """The field that a release or a month is given in."""
    return "software_date" if "-" in bound else "framework_version"


# --- facts of the framework -------------------------------------------------------------------------------------------

SIGNS = replace(deepspeed.CHOICES, compressions=frozenset({"onebit", "zero-one"}))
FACTS: tuple[tuple[str, str, str, str, object, object], ...] = (
    # Framework, last before, first after, fact, before, after. Sources stand beside `former` in each file.
    ("megatron", "0.11.9", "0.12", "builds_mtp", False, True),
    ("megatron", "0.12.9", "0.13", "weighs_inside_experts", False, True),
    ("megatron", "0.13.9", "0.14", "latent_down", "columns", "shards"),
    ("megatron", "2023-02", "2023-03", "scatters_pipeline_messages", True, False),
    ("megatron", "2023-12", "2024-01", "local_modules_fuse_nothing", False, True),
    ("deepspeed", "0.19.1", "0.19.2", "loops_experts", True, False),
    ("deepspeed", "0.19.1", "0.19.2", "pads_experts", True, False),
    ("deepspeed", "0.12.3", "0.12.4", "zero2_all_reduces", False, True),
    ("deepspeed", "0.12.9", "0.13", "reduces_in_backward_from", 2, 1),
    ("deepspeed", "0.13.1", "0.13.2", "param_shards_serve_forward", False, True),
    ("deepspeed", "0.9.9", "0.10", "param_shard_group_stages", frozenset(), frozenset({3})),
    ("deepspeed", "2021-07", "2021-08", "lists_slices", True, False),
    (
        "deepspeed",
        "0.18.9",
        "0.19",
        "memory",
        replace(deepspeed.MEMORY, buckets_at_first_gradient=False),
        deepspeed.MEMORY,
    ),
    ("megatron-deepspeed", "2023-11", "2023-12", "zero2_all_reduces", False, True),
    ("megatron-deepspeed", "2023-12", "2024-01", "reduces_in_backward_from", 2, 1),
    ("megatron-deepspeed", "2021-07", "2021-08", "lists_slices", True, False),
    ("fsdp", "2026-02", "2026-03", "fp8_gather_recipes", frozenset(), frozenset({"tensorwise"})),
    ("fsdp", "2026-10", "2026-11", "choices", replace(fsdp.CHOICES, dispatchers=()), fsdp.CHOICES),
    ("torchtitan", "0.2.9", "0.3", "fuses_qkv", False, True),
    ("torchtitan", "0.2.9", "0.3", "choices", replace(CHOICES, adapters=False), CHOICES),
    ("nanotron", "2024-06", "2024-07", "keeps_gathered_norms", True, False),
    ("fsdp", "2.3.9", "2.4", "copies_units", False, True),
    ("fsdp", "2.7.9", "2.8", "memory", replace(fsdp.MEMORY, optimizer_copies=1.0), fsdp.MEMORY),
    ("fsdp", "1.13.9", "2.0", "shard_group_stages", frozenset(), frozenset({1, 2, 3})),
    ("fsdp", "1.13.9", "2.0", "expert_shard_group_stages", frozenset(), frozenset({1, 2, 3})),
    ("megatron", "0.12.9", "0.13", "shard_group_stages", frozenset({1}), frozenset({1, 2, 3})),
    ("megatron", "0.16.9", "0.17", "expert_shard_group_stages", frozenset({1}), frozenset({1, 2, 3})),
    ("deepspeed", "0.19.6", "0.19.7", "shard_group_stages", frozenset({3}), frozenset()),
    ("deepspeed", "0.19.6", "0.19.7", "expert_shard_group_stages", frozenset({3}), frozenset()),
    ("deepspeed", "0.19.6", "0.19.7", "choices", SIGNS, deepspeed.CHOICES),
)
EARLIER: tuple[tuple[str, str, str, str, object, object], ...] = (
    # The same of facts that changed again later.
    ("megatron", "0.9.9", "0.10", "shard_group_stages", frozenset(), frozenset({1})),
    ("megatron", "0.9.9", "0.10", "expert_shard_group_stages", frozenset(), frozenset({1})),
    ("megatron", "0.12.9", "0.13", "expert_shard_group_stages", frozenset({1}), frozenset({1, 2, 3})),
    ("megatron", "0.13.9", "0.14", "expert_shard_group_stages", frozenset({1, 2, 3}), frozenset({1})),
    ("deepspeed", "0.9.1", "0.9.2", "shard_group_stages", frozenset(), frozenset({3})),
    ("deepspeed", "0.9.1", "0.9.2", "expert_shard_group_stages", frozenset(), frozenset({3})),
)


@pytest.mark.parametrize(("framework", "last", "first", "fact", "before", "after"), FACTS + EARLIER)
def test_a_fact_holds_until_its_release(
    framework: str, last: str, first: str, fact: str, before: object, after: object
) -> None:
    found = [getattr(job(framework, **{release(bound): bound}).framework, fact) for bound in (last, first)]
    assert found == [before, after]


@pytest.mark.parametrize(("framework", "_last", "_first", "fact", "_before", "after"), FACTS)
def test_what_came_last_is_what_the_newest_release_does(
    framework: str, _last: str, _first: str, fact: str, _before: object, after: object
) -> None:
    assert getattr(FRAMEWORKS[framework], fact) == after


@pytest.mark.parametrize(
    ("framework", "version", "serves"),
    [
        ("deepspeed", "0.13", True),
        ("deepspeed", "0.13.0", False),
        ("deepspeed", "0.12", False),
        ("deepspeed", "0.14", True),
    ],
)
def test_two_numbers_stand_for_the_newest_patch_of_their_series(framework: str, version: str, serves: bool) -> None:
    """What package managers install: "0.13" is at least 0.13.2, "0.13.0" says what it is."""
    assert job(framework, framework_version=version).framework.param_shards_serve_forward is serves


def test_every_former_fact_has_a_pair() -> None:
    every = {
        (framework, former.until or former.until_month, fact)
        for framework, facts in FRAMEWORKS.items() for former in facts.former for fact in former.facts
    }  # fmt: skip
    assert every == {(framework, first, fact) for framework, _, first, fact, _, _ in FACTS + EARLIER}


# --- defaults of the strategy -----------------------------------------------------------------------------------------

OVERLAPS = (
    ("megatron", "2023-06", "2023-07", 1),
    ("megatron-deepspeed", "2022-02", "2022-03", 3),
    ("deepspeed", "2022-02", "2022-03", 3),
)


@pytest.mark.parametrize(("framework", "last", "first", "zero"), OVERLAPS)
def test_communication_between_replicas_is_overlapped_by_default_since_its_month(
    framework: str, last: str, first: str, zero: int
) -> None:
    found = []
    for month in (last, first):
        row = row_of(job(framework, software_date=month), zero=zero)
        found.append((bool(row.overlap_grad_reduce[0]), bool(row.overlap_param_gather[0])))
    assert found == [(False, False), (True, True)]
    assert FRAMEWORKS[framework].overlaps_since == first


def test_every_month_of_overlap_has_a_pair() -> None:
    assert {(n, r.overlaps_since) for n, r in FRAMEWORKS.items() if r.overlaps_since} == {o[::2][:2] for o in OVERLAPS}


# --- defaults of training ---------------------------------------------------------------------------------------------

A100, B200 = {"gpu": "A100-SXM-80GB"}, {"gpu": "B200-SXM-180GB"}
GIVEN: tuple[tuple[str, str, Document, str, str, object, object], ...] = (
    # Field, framework, what else is given, last before, first after, before, after.
    ("transformer_impl", "megatron", {}, "2023-12", "2024-01", "local", "transformer-engine"),
    ("attention", "megatron", {}, "2022-12", "2023-01", "math", "flash"),
    ("attention_kernel", "fsdp", {}, "2023-12", "2024-01", "fa1", "sdpa"),
    ("attention_kernel", "torchtitan", {}, "0.1.9", "0.2", "sdpa", "cudnn"),
    ("attention_kernel", "torchtitan", {}, "0.2.9", "0.3", "cudnn", "flex"),
    ("attention_kernel", "fsdp", {}, "2.10.9", "2.11", "sdpa", "cudnn"),
    ("attention_kernel", "megatron", {}, "2023-07", "2023-08", "fa1", "fa2"),
    ("attention_kernel", "megatron", {}, "2024-08", "2024-09", "fa2", "cudnn"),
    ("attention_kernel", "megatron", A100, "2024-08", "2024-09", "fa2", "fa2"),
    ("cross_entropy", "megatron", {"recipe": "nvidia-perf"}, "2024-12", "2025-01", "unfused", "te"),
    ("cross_entropy", "torchtitan", {}, "0.2.9", "0.3", "unfused", "chunked"),
    ("cross_entropy", "torchtitan", {"compile": True}, "2024-12", "2025-01", "unfused", "compiled"),
    ("fp8_recipe", "megatron", {"precision": "fp8"}, "2025-04", "2025-05", "delayed", "tensorwise"),
    ("fp8_recipe", "megatron", {"precision": "fp8", **B200}, "2025-04", "2025-05", "delayed", "mxfp8"),
    ("dropout", "megatron", {}, "2022-12", "2023-01", 0.1, 0.0),
)


@pytest.mark.parametrize(("field", "framework", "given", "last", "first", "before", "after"), GIVEN)
def test_a_default_changes_with_its_release(
    field: str, framework: str, given: Document, last: str, first: str, before: object, after: object
) -> None:
    found = [getattr(job(framework, **given, **{release(bound): bound}).training, field) for bound in (last, first)]
    assert found == [before, after]


def test_every_bound_of_a_default_has_a_pair() -> None:
    every = {
        (field, bound)
        for field in USUAL
        for framework in FRAMEWORKS
        for row in default_rows(framework, field)
        for bound in (row.since, row.before, row.since_version)
        if bound not in ("0000-00", "9999-99", "")
    }
    assert every == {(field, first) for field, _, _, _, first, before, after in GIVEN if before != after}


@pytest.mark.parametrize(
    ("framework", "gpu", "last", "first", "before", "after"),
    [
        ("deepspeed", "H100-SXM-80GB", "2026-02", "2026-03", "sdpa", "cudnn"),
        ("deepspeed", "A100-SXM-80GB", "2026-02", "2026-03", "sdpa", "sdpa"),
        ("fsdp", "H100-SXM-80GB", "2.10.9", "2.11", "sdpa", "cudnn"),
        ("torchtitan", "A100-SXM-80GB", "0.1.9", "0.2", "sdpa", "cudnn"),
    ],
)
def test_what_scaled_dot_product_attention_runs_changes_with_its_release(
    framework: str, gpu: str, last: str, first: str, before: str, after: str
) -> None:
    given = {"attention_kernel": "sdpa", "attention": "flash", "gpu": gpu}
    assert [running_kernel(job(framework, **given, **{release(each): each})) for each in (last, first)] == [
        before,
        after,
    ]
