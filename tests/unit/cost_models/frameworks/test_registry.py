"""The registry of frameworks: one file for each name, and facts that every one of them must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

import cost_models.frameworks
from builders import job_of, tiny_model
from cost_models.frameworks import (
    FRAMEWORKS,
    FrameworkFacts,
    MemoryTraits,
    default_rows,
    frameworks_where,
    memory_traits,
)
from cost_models.frameworks.training_defaults import USUAL, Row
from cost_models.specs.training import Framework

FOLDER = Path(cost_models.frameworks.__file__).parent


def test_every_name_has_a_file_and_the_order_is_that_of_the_names() -> None:
    assert tuple(FRAMEWORKS) == get_args(Framework)
    for name, facts in FRAMEWORKS.items():
        assert facts.name == name
        assert (FOLDER / f"{name.replace('-', '_')}.py").is_file()


@pytest.mark.parametrize("name", get_args(Framework))
def test_a_framework_decides_every_default_in_every_setting(name: str) -> None:
    """The last row of each table holds for everything; otherwise a job of an old stack would have no value."""
    assert set(FRAMEWORKS[name].training_defaults) <= set(USUAL)
    for field in USUAL:
        last = default_rows(name, field)[-1]
        assert last == Row(last.value), field
    assert FRAMEWORKS[name].sdpa_kernels[-1] == Row("sdpa")


@pytest.mark.parametrize("name", get_args(Framework))
def test_what_differs_by_release_or_by_layers_names_real_fields(name: str) -> None:
    facts, traits = FRAMEWORKS[name], {field.name for field in fields(MemoryTraits)}
    for former in facts.former:
        assert set(former.facts) <= {field.name for field in fields(FrameworkFacts)}
        assert former.until or former.until_month
    assert all(set(variant.traits) <= traits for variant in facts.memory_variants)


@pytest.mark.parametrize("name", get_args(Framework))
def test_defaults_are_among_the_choices(name: str) -> None:
    facts = FRAMEWORKS[name]
    assert facts.default_zero in facts.choices.zero
    assert facts.strategy.cp_comm in facts.choices.cp_comms
    assert not facts.choices.dispatchers or facts.strategy.moe_dispatcher in facts.choices.dispatchers
    assert facts.default_version in {version for version, _ in facts.releases}


def test_frameworks_of_which_a_fact_holds() -> None:
    """accelerate's FSDP has no pipelines; Megatron and torchtitan can be told any list of layers per stage."""
    piped = frameworks_where(lambda facts: facts.choices.pipelines)
    told = frameworks_where(lambda facts: facts.splits.told is not None)
    assert {"megatron", "torchtitan"} <= told <= piped
    assert "fsdp" not in piped
    assert "nanotron" in piped - told


MEGATRON_VARIANTS: Mapping[tuple[str, str], tuple[bool, bool, bool, int, float]] = {
    # Transformer Engine's layers, weight gradients added by the product, cosines saved, workspaces, reserved over allocated.
    ("transformer-engine", "flash"): (True, True, False, 2, 1.07),
    ("local", "flash"): (False, False, True, 1, 1.065),
    # Without a flash kernel the layers are those of 2021, whose fp32 logits stay.
    ("transformer-engine", "math"): (False, False, False, 2, 1.07),
    ("local", "math"): (False, False, False, 1, 1.065),
}


@pytest.mark.parametrize(("layers", "expected"), MEGATRON_VARIANTS.items())
def test_what_megatron_keeps_depends_on_its_layers(
    layers: tuple[str, str], expected: tuple[bool, bool, bool, int, float]
) -> None:
    impl, attention = layers
    found = memory_traits(job_of(tiny_model(), transformer_impl=impl, attention=attention).training)
    assert expected == (
        found.transformer_engine, found.fuses_weight_gradients, found.saves_rotary_tables,
        found.sequence_workspaces, found.reserved_factor,
    )  # fmt: skip
    assert found.keeps_fp32_logits is (attention == "math")


def test_other_frameworks_keep_the_same_whatever_runs_attention() -> None:
    asked = job_of(tiny_model(), "torchtitan").training
    assert memory_traits(replace(asked, attention="math")) is memory_traits(asked)
