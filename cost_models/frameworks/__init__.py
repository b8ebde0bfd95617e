"""What each training framework is, as data, and what it was at earlier releases: one file for each framework.

`FRAMEWORKS` holds the facts of the newest release that is known; the functions here look up those of a job's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import get_args

from cost_models.frameworks.choices import RecipeFacts
from cost_models.frameworks.facts import FrameworkFacts, LatentDown
from cost_models.frameworks.memory import LossFamily, MemoryTraits
from cost_models.frameworks.releases import month_of, newest_at, precedes, version_key
from cost_models.frameworks.training_defaults import USUAL, Rows, Setting, chosen
from cost_models.specs.training import Framework, Training

__all__ = [
    "FRAMEWORKS",
    "FrameworkFacts",
    "LatentDown",
    "LossFamily",
    "MemoryTraits",
    "RecipeFacts",
    "Setting",
    "default_of",
    "default_rows",
    "framework_facts",
    "frameworks_where",
    "memory_traits",
    "precedes",
    "release_at",
    "release_month",
    "sdpa_kernel",
    "version_key",
]


def _facts(name: str) -> FrameworkFacts:
    """The `FACTS` of the file that is named after a framework; so the list of names in `Framework` is the only one."""
    facts: FrameworkFacts = import_module(f"{__name__}.{name.replace('-', '_')}").FACTS
    assert facts.name == name
    return facts


FRAMEWORKS: Mapping[str, FrameworkFacts] = {name: _facts(name) for name in get_args(Framework)}


def frameworks_where(holds: Callable[[FrameworkFacts], bool]) -> frozenset[Framework]:
    """The frameworks of whose newest release something holds."""
    return frozenset(facts.name for facts in FRAMEWORKS.values() if holds(facts))


def framework_facts(training: Training) -> FrameworkFacts:
    """The facts of the framework at this job's release."""
    return _facts_at(training.framework, training.framework_version, training.software_date)


@lru_cache(maxsize=1024)
def _facts_at(framework: str, version: str, month: str) -> FrameworkFacts:
    facts = FRAMEWORKS[framework]
    for former in facts.former:
        if former.held(version, month):
            facts = replace(facts, **former.facts)  # type: ignore[arg-type]
    return facts


def memory_traits(training: Training) -> MemoryTraits:
    """What the framework holds in memory at this job's release, with its implementation of layers and attention, and whose
    modules the model is made of.
    """
    facts = framework_facts(training)
    return _traits_at(facts, training.transformer_impl, training.attention, training.model_impl)


@lru_cache(maxsize=1024)
def _traits_at(facts: FrameworkFacts, transformer_impl: str, attention: str, model_impl: str) -> MemoryTraits:
    traits = facts.memory
    for variant in facts.memory_variants:
        if variant.holds(transformer_impl, attention):
            traits = replace(traits, **variant.traits)  # type: ignore[arg-type]
    # Whose modules run under PyTorch's wrappers and DeepSpeed's engine is not for the framework to say; Megatron and
    # nanotron bring their own.
    if traits.torch_operators and model_impl != "native":
        traits = replace(traits, huggingface_modules=True, loss_family="huggingface")
    return traits


def default_rows(framework: str, field: str) -> Rows:
    """What decides a `training` field that is not given; the first row that holds does."""
    return FRAMEWORKS[framework].training_defaults.get(field, USUAL[field])


def default_of(field: str, setting: Setting) -> object:
    """The value a `training` field takes when it is not given."""
    return chosen(default_rows(setting.framework, field), setting)


def sdpa_kernel(setting: Setting) -> object:
    """The kernel that runs where a job asks for `sdpa`."""
    return chosen(FRAMEWORKS[setting.framework].sdpa_kernels, setting)


def release_at(framework: str, month: str) -> str:
    """The newest release that was out in this month, or the oldest known one."""
    return newest_at(FRAMEWORKS[framework].releases, month)


def release_month(framework: str, version: str) -> tuple[str, bool]:
    """Month of a release, and whether the release is a known one."""
    return month_of(FRAMEWORKS[framework].releases, version)
