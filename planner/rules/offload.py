"""Rules on what runs beside the computation (overlapped communication) and on what waits in host memory (offload)."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.step.offload import is_offloaded
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Bools, Strategies
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
    return is_offloaded(s)


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
    return job.training.optimizer not in ("adam", "sgd", "sgd-momentum")


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
        "overlap-unsupported", _tp_overlap, "megatron overlaps tensor-parallel communication only with transformer_impl "
        "'transformer-engine', but it is 'local'", "Set transformer_impl to 'transformer-engine', or overlap.tp_comm to false.",
        "megatron/core/extensions/transformer_engine.py (the only reader of tp_comm_overlap)", frameworks=only("megatron"),
        when=lambda job: job.training.transformer_impl == "local", smallest_change="overlap.tp_comm true -> false",
    ),
    # What is overlapped is the all-gather and the reduce-scatter of sequence parallelism, cut into pieces beside the products
    # that use them. Without it there is one all-reduce, which cannot start before its product ends.
    Rule(
        "overlap-unsupported", _tp_overlap_unsplit, "overlap.tp_comm needs sequence parallelism in megatron, but sequence_parallel is false",
        "Set sequence_parallel to true, or overlap.tp_comm to false.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap_unsplit, "overlap.tp_comm needs sequence parallelism (tp_mode REDUCE_SCATTER) in nanotron, but "
        "sequence_parallel is false", "Set sequence_parallel to true, or overlap.tp_comm to false.",
        "nanotron/parallel/tensor_parallel/nn.py (TensorParallelRowLinear refuses async_communication with ALL_REDUCE)",
        frameworks=only("nanotron"), smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap_unsplit, "overlap.tp_comm (async TP) needs sequence parallelism in torchtitan, but "
        "sequence_parallel is false", "Set sequence_parallel to true, or overlap.tp_comm to false.",
        "torch/_inductor/fx_passes/micro_pipeline_tp.py (all-gathers and reduce-scatters alone are rewritten)",
        frameworks=only("torchtitan"), smallest_change="overlap.tp_comm true -> false",
    ),
    # Async TP is a pass of torch.compile that replaces pairs of a collective and a product; eager code has nothing to rewrite.
    Rule(
        "overlap-unsupported", _tp_overlap, "overlap.tp_comm (async TP) needs training.compile in torchtitan, which is false",
        "Set training.compile to true, or overlap.tp_comm to false.", "torchtitan config enable_async_tensor_parallel",
        frameworks=only("torchtitan"), when=lambda job: not job.training.compile,
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap, "{framework} cannot overlap tensor-parallel communication",
        "Set overlap.tp_comm to false.", "no such key in its configuration", frameworks=frameworks_where(lambda facts: not facts.choices.tp_overlap),
        smallest_change="overlap.tp_comm true -> false",
    ),
    # Megatron asserts it: both overlaps work on the same buckets, which exist only where gradients are reduced bucket by bucket.
    Rule(
        "overlap-unsupported", _gather_without_reduce, "overlap.param_gather needs overlap.grad_reduce in megatron, which is false",
        "Set overlap.grad_reduce to true, or overlap.param_gather to false.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.param_gather true -> false",
    ),
    Rule(
        "offload-unsupported", _any_offload, "{framework} can offload neither model states nor activations", "Leave offload out.",
        "no such key in its configuration", frameworks=frameworks_where(lambda facts: not facts.choices.offload),
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "megatron {version} cannot offload the optimizer",
        "Set offload.optimizer_fraction to 0, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12",
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
    ),
    Rule(
        "offload-unsupported", _optimizer_without_zero,
        "megatron can offload only its distributed optimizer (zero 1 or higher), but zero is {zero}",
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
        "megatron {version} offloads the activations of whole layers, which it combines neither with recompute ('{recompute}') nor "
        "with a pipeline (pp {pp})",
        "Set offload.activation_layers to 0, or use core 0.16, which offloads single modules instead.",
        # The newer offloading moves modules of all layers. A number of layers stands for that share of them, which no argument of
        # Megatron's can say: the strategy is priced, and launch files for it are refused.
        f"{_CORE} (cpu_offloading; from core 0.16 on fine_grained_activation_offloading, with neither limit)",
        frameworks=only("megatron"), until="0.16",
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _activation_offload, "torchtitan cannot offload activations",
        "Set offload.activation_layers to 0.", "torchtitan/config/configs.py (no such key)", frameworks=only("torchtitan"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    # What `cpu_checkpointing` moves is the saved input of a checkpointed layer; other activations never pass through its code.
    Rule(
        "offload-unsupported", _activations_not_recomputed,
        "{framework} can offload only the saved inputs of recomputed layers, but recompute is '{recompute}'",
        "Set recompute to 'full', or offload.activation_layers to 0.",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py (cpu_checkpointing)",
        frameworks=only("deepspeed", "megatron-deepspeed"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _optimizer_without_zero,
        "{framework} can offload the optimizer only with zero 1, 2 or 3, but zero is {zero}",
        "Use zero 1, 2 or 3, or set offload.optimizer_fraction to 0.",
        "deepspeed/runtime/zero/config.py (offload_optimizer; the engine builds no ZeRO optimizer at stage 0)",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 1",
    ),
    # A pipeline that trains in bf16 runs DeepSpeed's BF16_Optimizer in place of the ZeRO optimizers, and that one keeps its
    # fp32 copy on the GPU whatever the configuration says.
    Rule(
        "offload-unsupported", _optimizer_pipelined,
        "{framework} cannot offload the optimizer in a pipeline (pp {pp}) that trains in bf16",
        "Set pp to 1, train in fp16, or set offload.optimizer_fraction to 0.",
        "deepspeed/runtime/bf16_optimizer.py keeps its fp32 parameters on the GPU; deepspeedai/DeepSpeed issue 3866, "
        "deepspeedai/Megatron-DeepSpeed issue 369",
        frameworks=only("deepspeed", "megatron-deepspeed"), when=_in_bf16, smallest_change="pp {pp} -> 1",
    ),
    # The ratio (Twin-Flow of DeepSpeed's Offload++) divides the sub-groups of the stage 3 optimizer, which lower stages lack.
    Rule(
        "offload-unsupported", _part_below_three,
        "{framework} can offload a part of the optimizer only with zero 3, but zero is {zero}",
        "Set offload.optimizer_fraction to 1, or use zero 3.",
        "deepspeed/runtime/engine.py (offload_ratio goes to the stage 3 optimizer)",
        frameworks=only("deepspeed", "megatron-deepspeed"),
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 1",
    ),
    Rule(
        "offload-unsupported", _part_of_optimizer, "deepspeed {version} offloads either the whole optimizer or none of it",
        "Set offload.optimizer_fraction to 1, or use version 0.12.4.",
        "deepspeed/runtime/zero/offload_config.py (ratio came with pull request 4636)", frameworks=only("deepspeed"),
        until="0.12.4", smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 1",
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "optimizer '{optimizer}' can update its state only on the GPU",
        "Set training.optimizer to 'adam', or offload.optimizer_fraction to 0.",
        "bitsandbytes/functional.py (the blockwise 8-bit update is a CUDA kernel)", when=_eight_bit,
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
    ),
    # Only stage 3 fetches parameters before each use. Below it every rank computes with a whole copy that must stay on the GPU.
    Rule(
        "offload-unsupported", _parameters_below_three, "offload.parameters needs zero 3, but zero is {zero}",
        "Use zero 3, or set offload.parameters to false.", "deepspeed/runtime/zero/config.py (offload_param)",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 3",
    ),
    # FSDP2 has one switch: CPUOffloadPolicy moves the sharded parameters, and the optimizer updates them where they lie.
    Rule(
        "offload-unsupported", _half_offloaded, "{framework} can offload parameters and the whole optimizer only together",
        "Set offload.optimizer_fraction to 1 and offload.parameters to true, or leave offload out.",
        "torch FSDP2 CPUOffloadPolicy; torchtitan training.enable_cpu_offload", frameworks=frameworks_where(lambda facts: facts.host.takes_whole_optimizer),
    ),
)  # fmt: skip
