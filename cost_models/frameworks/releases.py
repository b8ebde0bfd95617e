"""What earlier releases of a framework did differently, as data: the facts of `runtimes` as they stood before a release.

`runtime_of` picks the facts of a training job's release. A release written with two numbers ("0.12") stands for the newest
patch of that series, which is what package managers install.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from cost_models.frameworks.facts import RUNTIMES, FrameworkFacts
from cost_models.frameworks.training_defaults import precedes
from cost_models.specs.training import Framework, Training


@dataclass(frozen=True, slots=True)
class Former:
    """Facts that held until a release or, for a framework that has none, until a month."""

    facts: Mapping[str, object]
    """Values by field of `FrameworkFacts`."""
    until: str = ""
    """The first release in which they no longer hold."""
    until_month: str = ""
    """The first month (YYYY-MM) in which they no longer hold; read only where `until` is empty."""


FORMER: Mapping[Framework, tuple[Former, ...]] = {
    "megatron": (
        # CHANGELOG.md of core 0.12: "Multi-Token Prediction (MTP) Support".
        Former({"builds_mtp": False}, until="0.12"),
        # CHANGELOG.md of core 0.13: "moving the probs multiplication from unpermutation to activation function".
        Former({"weighs_inside_experts": False}, until="0.13"),
        # megatron/core/models/gpt/gpt_layer_specs.py: TEColumnParallelLinear, and from 0.14 on TELinear, whose parallel
        # mode multi_latent_attention.py sets to "duplicated".
        Former({"latent_down": "columns"}, until="0.14"),
        # Megatron-LM's own p2p_communication.py sent a slice from each rank of a tensor-parallel group (Narayanan 2021,
        # section 4.1). Megatron Core, whose first package (0.1.0) is of 2023-03, has no such thing; the flag in arguments.py
        # is unread.
        Former({"scatters_pipeline_messages": True}, until_month="2023-03"),
    ),
    "deepspeed": (
        # Before AutoEP (deepspeed/module_inject/auto_ep.py, moe/ep_experts.py) experts were those of deepspeed/moe/layer.py:
        # chunks padded to a capacity, one expert after another.
        Former({"loops_experts": True, "pads_experts": True}, until="0.19.2"),
        # deepspeed/runtime/zero/stage_1_and_2.py (average_tensor): a bucket's slices were reduced to their owners one by
        # one until use_multi_rank_bucket_allreduce came with 0.12.4 and the default true (zero/config.py).
        Former({"zero2_all_reduces": False}, until="0.12.4"),
        # deepspeed/runtime/engine.py (_configure_zero_optimizer) switched overlap_comm off for stage 1.
        Former({"reduces_in_backward_from": 2}, until="0.13"),
        # deepspeed/runtime/zero/partition_parameters.py: 0.13.0 and 0.13.1 take the secondary tensor in backward
        # only, 0.13.2 wherever it exists.
        Former({"param_shards_serve_forward": False}, until="0.13.2"),
        # deepspeed/runtime/zero/partition_parameters.py (_allgather_param, _reduce_scatter_gradient), until pull request 1188.
        Former({"lists_slices": True}, until_month="2021-08"),
    ),
    # The same files; Megatron-DeepSpeed has no releases of its own, so the months of DeepSpeed's count.
    "megatron-deepspeed": (
        Former({"zero2_all_reduces": False}, until_month="2023-12"),
        Former({"reduces_in_backward_from": 2}, until_month="2024-01"),
        Former({"lists_slices": True}, until_month="2021-08"),
    ),
    # accelerate/utils/dataclasses.py: AORecipeKwargs has the switch, on by default, from 1.13 (2026-03).
    "fsdp": (Former({"fp8_gather_recipes": frozenset()}, until_month="2026-03"),),
    # torchtitan/models/llama3: query, key and value are three products up to 0.2.
    "torchtitan": (Former({"fuses_qkv": False}, until="0.3"),),
    # nanotron/parallel/tensor_parallel/functional.py: gathered inputs of column-parallel products stayed saved until
    # tp_recompute_allgather, true by default, came in July 2024.
    "nanotron": (Former({"keeps_gathered_norms": True}, until_month="2024-07"),),
}


def runtime_of(training: Training) -> FrameworkFacts:
    """The facts of the framework at this job's release."""
    return _runtime(training.framework, training.framework_version, training.software_date)


@lru_cache(maxsize=1024)
def _runtime(framework: Framework, version: str, month: str) -> FrameworkFacts:
    found = RUNTIMES[framework]
    for former in FORMER.get(framework, ()):
        if precedes(version, former.until) if former.until else month < former.until_month:
            found = replace(found, **former.facts)  # type: ignore[arg-type]
    return found
