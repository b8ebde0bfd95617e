"""Rules on what runs beside the computation: overlapped communication, and what waits on the host."""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.strategy import Bools, Recompute, Strategies
from planner.rules.rule import Rule, only

_CORE = "megatron/core/transformer/transformer_config.py"
_ARGUMENTS = "megatron/training/arguments.py"


def _tp_overlap_unsplit(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_tp_comm & (s.tp > 1) & ~s.sequence_parallel)


def _tp_overlap(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_tp_comm & (s.tp > 1))


def _gather_without_reduce(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_param_gather & ~s.overlap_grad_reduce)


def _any_offload(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) | s.offload_parameters | (s.offload_activation_layers > 0))


def _optimizer_offload(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_optimizer_fraction > 0)


def _parameter_offload(_job: Job, s: Strategies) -> Bools:
    return s.offload_parameters


def _activation_offload_mixed(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_activation_layers > 0) & ((s.recompute != Recompute.NONE) | (s.pp > 1)))


def _parameters_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_parameters & (s.zero < 3))


def _half_offloaded(_job: Job, s: Strategies) -> Bools:
    together = s.offload_parameters == (s.offload_optimizer_fraction == 1)
    partly = (s.offload_optimizer_fraction > 0) & (s.offload_optimizer_fraction < 1)
    return np.asarray(partly | ~together)


OFFLOAD_RULES: tuple[Rule, ...] = (
    Rule(
        "overlap-unsupported", _tp_overlap_unsplit, "overlap.tp_comm needs sequence parallelism in megatron",
        "Switch sequence_parallel on, or overlap.tp_comm off.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap, "overlap.tp_comm (async TP) needs training.compile in torchtitan",
        "Set training.compile to true, or overlap.tp_comm off.", "torchtitan config enable_async_tensor_parallel",
        frameworks=only("torchtitan"), when=lambda job: not job.training.compile,
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap, "{framework} cannot overlap tensor-parallel communication",
        "Switch overlap.tp_comm off.", "no such key in its configuration", frameworks=only("megatron-deepspeed", "fsdp"),
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _gather_without_reduce, "overlap.param_gather needs overlap.grad_reduce in megatron",
        "Switch overlap.grad_reduce on, or overlap.param_gather off.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.param_gather true -> false",
    ),
    Rule(
        "offload-unsupported", _any_offload, "nanotron offloads nothing", "Leave offload out.",
        "no such key in its configuration", frameworks=only("nanotron"),
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "megatron {version} cannot offload the optimizer",
        "Set offload.optimizer_fraction to 0, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12",
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
    ),
    Rule(
        "offload-unsupported", _parameter_offload, "megatron cannot offload parameters",
        "Set offload.parameters to false.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="offload.parameters true -> false",
    ),
    Rule(
        "offload-unsupported", _activation_offload_mixed,
        "activation offload excludes recompute ({recompute}) and pipelines (pp {pp}) in megatron",
        "Set offload.activation_layers to 0.", f"{_CORE} (cpu_offloading)", frameworks=only("megatron"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _parameters_below_three, "offload.parameters needs zero 3, not {zero}",
        "Use zero 3, or keep parameters on the GPU.", "deepspeed/runtime/zero/config.py (offload_param)",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "offload-unsupported", _half_offloaded, "{framework} offloads parameters and the whole optimizer together or neither",
        "Set optimizer_fraction 1 with parameters true, or leave offload out.",
        "torch FSDP2 CPUOffloadPolicy; torchtitan training.enable_cpu_offload", frameworks=only("torchtitan", "fsdp"),
    ),
)  # fmt: skip
