"""Rules on what runs beside the computation: overlapped communication, and what waits on the host."""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Recompute, Strategies
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


def _optimizer_without_zero(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) & (s.zero == 0))


def _part_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) & (s.offload_optimizer_fraction < 1) & (s.zero < 3))


def _part_of_optimizer(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) & (s.offload_optimizer_fraction < 1))


def _optimizer_pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) & (s.pp > 1))


def _in_bf16(job: Job) -> bool:
    return job.training.compute_bytes == 2.0 and job.training.precision != "fp16"


def _eight_bit(job: Job) -> bool:
    return job.training.optimizer == "adam-8bit"


def _activation_offload(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_activation_layers > 0)


def _activations_not_recomputed(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_activation_layers > 0) & (s.recompute != Recompute.FULL))


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
        "overlap-unsupported", _tp_overlap, "overlap.tp_comm needs transformer_impl 'transformer-engine' in megatron: its own "
        "layers have no such exchange", "Set transformer_impl to 'transformer-engine', or overlap.tp_comm off.",
        "megatron/core/extensions/transformer_engine.py (the only reader of tp_comm_overlap)", frameworks=only("megatron"),
        when=lambda job: job.training.transformer_impl == "local", smallest_change="overlap.tp_comm true -> false",
    ),
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
        "offload-unsupported", _any_offload, "nanotron offloads neither states nor activations", "Leave offload out.",
        "no such key in its configuration", frameworks=only("nanotron"),
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "megatron {version} cannot offload the optimizer",
        "Set offload.optimizer_fraction to 0, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12",
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
    ),
    Rule(
        "offload-unsupported", _optimizer_without_zero,
        "megatron offloads its distributed optimizer alone, but zero is {zero}",
        "Use zero 1, or set offload.optimizer_fraction to 0.",
        f"{_ARGUMENTS} (--optimizer-cpu-offload needs --use-precision-aware-optimizer); "
        "megatron/core/optimizer/optimizer_config.py (which needs the distributed optimizer)",
        frameworks=only("megatron"), smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "offload-unsupported", _parameter_offload, "megatron cannot offload parameters",
        "Set offload.parameters to false.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="offload.parameters true -> false",
    ),
    Rule(
        "offload-unsupported", _activation_offload_mixed,
        "megatron {version} offloads whole layers, which excludes recompute ({recompute}) and pipelines (pp {pp})",
        "Set offload.activation_layers to 0, or use core 0.16, which offloads by module.",
        f"{_CORE} (cpu_offloading; from core 0.16 on fine_grained_activation_offloading, with neither limit)",
        frameworks=only("megatron"), until="0.16",
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _activation_offload, "torchtitan offloads no activations",
        "Set offload.activation_layers to 0.", "torchtitan/config/configs.py (no such key)", frameworks=only("torchtitan"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _activations_not_recomputed,
        "{framework} offloads the inputs of recomputed layers alone, but recompute is {recompute}",
        "Set recompute to 'full', or offload.activation_layers to 0.",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py (cpu_checkpointing)",
        frameworks=only("deepspeed", "megatron-deepspeed"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _optimizer_without_zero,
        "{framework} offloads the optimizer inside ZeRO 1 to 3 alone, but zero is {zero}",
        "Use zero 1, 2 or 3, or set offload.optimizer_fraction to 0.",
        "deepspeed/runtime/zero/config.py (offload_optimizer; the engine builds no ZeRO optimizer at stage 0)",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "offload-unsupported", _optimizer_pipelined,
        "{framework} cannot offload the optimizer of a pipeline (pp {pp}) that trains in bf16",
        "Set pp to 1, train in fp16, or set offload.optimizer_fraction to 0.",
        "deepspeed/runtime/bf16_optimizer.py keeps its fp32 parameters on the GPU; deepspeedai/DeepSpeed issue 3866, "
        "deepspeedai/Megatron-DeepSpeed issue 369",
        frameworks=only("deepspeed", "megatron-deepspeed"), when=_in_bf16, smallest_change="pp {pp} -> 1",
    ),
    Rule(
        "offload-unsupported", _part_below_three,
        "{framework} offloads a part of the optimizer with zero 3 alone, not with zero {zero}",
        "Set offload.optimizer_fraction to 1, or use zero 3.",
        "deepspeed/runtime/engine.py (offload_ratio goes to the stage 3 optimizer)",
        frameworks=only("deepspeed", "megatron-deepspeed"),
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 1",
    ),
    Rule(
        "offload-unsupported", _part_of_optimizer, "deepspeed {version} offloads the whole optimizer or nothing of it",
        "Set offload.optimizer_fraction to 1, or use 0.12.4.",
        "deepspeed/runtime/zero/offload_config.py (ratio came with pull request 4636)", frameworks=only("deepspeed"),
        until="0.12.4", smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 1",
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "an 8-bit Adam updates its state on the GPU alone",
        "Set training.optimizer to 'adam', or offload.optimizer_fraction to 0.",
        "bitsandbytes/functional.py (the blockwise 8-bit update is a CUDA kernel)", when=_eight_bit,
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
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
