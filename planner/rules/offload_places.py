"""Rules on where offloaded state lies, what runs beside its update, and which modules' activations are sent to the host."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.frameworks.deepspeed import ZENFLOW_SINCE
from cost_models.frameworks.megatron import OFFLOAD_FRACTION_SINCE, OFFLOAD_MODULES_SINCE
from cost_models.job import Job
from cost_models.specs.training import Framework
from cost_models.strategies.fields import OFFLOAD_MODULES, OffloadDevice, OptimizerOverlap
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, version_stated

_CODE = "offload-unsupported"
_DEVICE, _PARAMETERS, _OVERLAP = "offload_optimizer_device", "offload_parameter_device", "offload_optimizer_overlap"
_MODULES, _FRACTION = "offload_activation_modules", "offload_activation_fraction"
_OFFLOAD_CONFIG = "deepspeed/runtime/zero/offload_config.py"
_CORE = "megatron/core/transformer/transformer_config.py"
_ON_DRIVES = frameworks_where(lambda facts: OffloadDevice.NVME in facts.choices.offload_places)
_IN_MEMORY = frameworks_where(lambda facts: OffloadDevice.NVME not in facts.choices.offload_places)
_BY_MODULE = frameworks_where(lambda facts: facts.choices.offload_modules)
_ZENFLOW = frameworks_where(lambda facts: OptimizerOverlap.ZENFLOW in facts.choices.offload_overlaps)


def _without(overlap: OptimizerOverlap) -> frozenset[Framework]:
    return frameworks_where(lambda facts: overlap not in facts.choices.offload_overlaps)


_EXPERT_BITS = sum(1 << OFFLOAD_MODULES.index(name) for name in ("expert_fc1", "moe_act"))
_CORE_BIT, _PROJECTION_BIT = (1 << OFFLOAD_MODULES.index(name) for name in ("core_attn", "attn_proj"))


def _optimizer_on_drives(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_optimizer_device == OffloadDevice.NVME)


def _parameters_on_drives(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_parameter_device == OffloadDevice.NVME)


def _nothing_on_drives(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_device == OffloadDevice.NVME) & (s.offload_optimizer_fraction == 0))


def _no_parameters_on_drives(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_parameter_device == OffloadDevice.NVME) & ~s.offload_parameters)


def _drives_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_device == OffloadDevice.NVME) & (s.zero != 3))


def _no_drives(job: Job) -> bool:
    return job.cluster.nvme is None


def _overlaps_nothing(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_overlap != OptimizerOverlap.NONE) & (s.offload_optimizer_fraction == 0))


def _pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_optimizer_overlap == OptimizerOverlap.PIPELINED)


def _pipelined_in_memory(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_pipelined(_job, s) & (s.offload_optimizer_device != OffloadDevice.NVME))


def _zenflow(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_optimizer_overlap == OptimizerOverlap.ZENFLOW)


def _zenflow_on_drives(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_zenflow(_job, s) & (s.offload_optimizer_device == OffloadDevice.NVME))


def _zenflow_accumulates(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_zenflow(_job, s) & (s.num_micro_batches > 1))


def _modules(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_activation_modules != 0)


def _modules_and_layers(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_activation_modules != 0) & (s.offload_activation_layers > 0))


def _projection_alone(_job: Job, s: Strategies) -> Bools:
    chosen = s.offload_activation_modules
    return np.asarray((chosen & _PROJECTION_BIT != 0) & (chosen & _CORE_BIT == 0))


def _expert_modules(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_activation_modules & _EXPERT_BITS != 0)


def _part_of_nothing(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_activation_fraction < 1.0) & (s.offload_activation_modules == 0))


def _part_of_modules(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_activation_fraction < 1.0)


OFFLOAD_PLACE_RULES: tuple[Rule, ...] = (
    Rule(
        _CODE, _optimizer_on_drives, "{framework} cannot keep optimizer state on NVMe drives", "Set offload.optimizer_device to 'cpu'.",
        "no such key in its configuration", frameworks=_IN_MEMORY, rare=_DEVICE,
        smallest_change="offload.optimizer_device 'nvme' -> 'cpu'",
    ),
    Rule(
        _CODE, _parameters_on_drives, "{framework} cannot keep parameters on NVMe drives", "Set offload.parameter_device to 'cpu'.",
        "no such key in its configuration", frameworks=_IN_MEMORY, rare=_PARAMETERS,
        smallest_change="offload.parameter_device 'nvme' -> 'cpu'",
    ),
    Rule(
        _CODE, _nothing_on_drives, "offload.optimizer_device is 'nvme', but offload.optimizer_fraction is 0",
        "Set offload.optimizer_fraction to 1, or leave offload.optimizer_device out.", f"{_OFFLOAD_CONFIG} (device)", rare=_DEVICE,
        smallest_change="offload.optimizer_fraction 0 -> 1",
    ),
    Rule(
        _CODE, _no_parameters_on_drives, "offload.parameter_device is 'nvme', but offload.parameters is false",
        "Set offload.parameters to true, or leave offload.parameter_device out.", f"{_OFFLOAD_CONFIG} (device)", rare=_PARAMETERS,
        smallest_change="offload.parameters false -> true",
    ),
    # The swapper is the stage 3 optimizer's; at stages 1 and 2 the engine would leave the state on the GPU.
    Rule(
        _CODE, _drives_below_three, "{framework} keeps optimizer state on NVMe drives only with zero 3, but zero is {zero}",
        "Use zero 3, or set offload.optimizer_device to 'cpu'.",
        "deepspeed/runtime/zero/stage3.py (swap_optimizer); engine.py (zero_cpu_offload knows the cpu alone)", frameworks=_ON_DRIVES,
        rare=_DEVICE, smallest_change="zero {zero} -> 3",
    ),
    # Drives differ more between sites than anything else of a node, so that none are assumed.
    Rule(
        _CODE, _optimizer_on_drives, "offload.optimizer_device is 'nvme', but the cluster states no drives",
        "Add cluster.nvme with read_gb_per_s and write_gb_per_s of a node.", f"{_OFFLOAD_CONFIG} (nvme_path)", when=_no_drives, rare=_DEVICE,
    ),
    Rule(
        _CODE, _parameters_on_drives, "offload.parameter_device is 'nvme', but the cluster states no drives",
        "Add cluster.nvme with read_gb_per_s and write_gb_per_s of a node.", f"{_OFFLOAD_CONFIG} (nvme_path)", when=_no_drives,
        rare=_PARAMETERS,
    ),
    Rule(
        _CODE, _overlaps_nothing, "offload.optimizer_overlap is {offload_optimizer_overlap!r}, but offload.optimizer_fraction is 0",
        "Set offload.optimizer_fraction to 1, or leave offload.optimizer_overlap out.", f"{_OFFLOAD_CONFIG}", rare=_OVERLAP,
        smallest_change="offload.optimizer_overlap {offload_optimizer_overlap!r} -> 'none'",
    ),
    Rule(
        _CODE, _pipelined, "{framework} does not pipeline the update of offloaded optimizer state",
        "Set offload.optimizer_overlap to 'none'.", "no such key in its configuration",
        frameworks=_without(OptimizerOverlap.PIPELINED), rare=_OVERLAP,
        smallest_change="offload.optimizer_overlap 'pipelined' -> 'none'",
    ),
    # In host memory there is nothing to read or write, so that the two switches are ignored.
    Rule(
        _CODE, _pipelined_in_memory, "{framework} pipelines reading, updating and writing only for state on NVMe drives, but "
        "offload.optimizer_device is {offload_optimizer_device!r}", "Set offload.optimizer_device to 'nvme', or offload.optimizer_overlap to 'none'.",
        f"{_OFFLOAD_CONFIG} (pipeline_read, pipeline_write: used in ZeRO-Infinity)", frameworks=_ON_DRIVES, rare=_OVERLAP,
        smallest_change="offload.optimizer_overlap 'pipelined' -> 'none'",
    ),
    Rule(
        _CODE, _zenflow, "{framework} does not have ZenFlow", "Set offload.optimizer_overlap to 'none'.",
        "deepspeed/runtime/zenflow is DeepSpeed's alone", frameworks=_without(OptimizerOverlap.ZENFLOW),
        rare=_OVERLAP, smallest_change="offload.optimizer_overlap 'zenflow' -> 'none'",
    ),
    Rule(
        _CODE, _zenflow, f"{{framework}} {{version}} may not have ZenFlow, which is in the packages from {ZENFLOW_SINCE} on",
        f"Set offload.optimizer_overlap to 'none', or use version {ZENFLOW_SINCE}.", "deepspeed/runtime/zenflow", frameworks=_ZENFLOW,
        until=ZENFLOW_SINCE, when=version_stated, rare=_OVERLAP, smallest_change="offload.optimizer_overlap 'zenflow' -> 'none'",
    ),
    Rule(
        _CODE, _zenflow_on_drives, "ZenFlow keeps optimizer state in host memory, but offload.optimizer_device is 'nvme'",
        "Set offload.optimizer_device to 'cpu', or offload.optimizer_overlap to 'pipelined'.",
        "deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py, engine_stage3.py (no swapper)", frameworks=_ZENFLOW, rare=_OVERLAP,
        smallest_change="offload.optimizer_device 'nvme' -> 'cpu'",
    ),
    # Its update interval takes the place of gradient accumulation: a batch of several micro-batches would be cut into other ones.
    Rule(
        _CODE, _zenflow_accumulates, "ZenFlow puts its update interval in the place of gradient accumulation: a step must be one micro-batch, but there are {num_micro_batches}",
        "Raise micro_batch_size or dp, or lower global_batch_size, until num_micro_batches is 1.",
        "deepspeed/runtime/zenflow/engine.py (gradient_accumulation_steps = update_interval)", frameworks=_ZENFLOW, rare=_OVERLAP,
        smallest_change="num_micro_batches {num_micro_batches} -> 1",
    ),
    Rule(
        _CODE, _modules, "{framework} cannot offload the activations of single modules", "Leave offload.activation_modules out.",
        "no such key in its configuration", frameworks=frameworks_where(lambda facts: not facts.choices.offload_modules), rare=_MODULES,
    ),
    Rule(
        _CODE, _modules, f"{{framework}} {{version}} cannot offload the activations of single modules, which came with core {OFFLOAD_MODULES_SINCE}",
        f"Leave offload.activation_modules out, or use core {OFFLOAD_MODULES_SINCE}.", f"{_CORE} (offload_modules)", frameworks=_BY_MODULE,
        until=OFFLOAD_MODULES_SINCE, when=version_stated, rare=_MODULES,
    ),
    Rule(
        _CODE, _modules, "{framework} offloads the activations of single modules only with transformer_impl 'transformer-engine', but it is 'local'",
        "Set transformer_impl to 'transformer-engine', or leave offload.activation_modules out.", "megatron/training/arguments.py",
        frameworks=_BY_MODULE, when=lambda job: job.training.transformer_impl == "local", rare=_MODULES,
    ),
    # Both move what autograd saves, one by hooks around layers, the other by hooks around modules.
    Rule(
        _CODE, _modules_and_layers, "{framework} offloads either the activations of layers (offload.activation_layers "
        "{offload_activation_layers}) or those of modules", "Leave offload.activation_layers or offload.activation_modules out.",
        f"{_CORE} (fine_grained_activation_offloading cannot be enabled with cpu_offloading)", frameworks=_BY_MODULE, rare=_MODULES,
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    # The input of the output projection is the output of the attention core, so that one cannot go without the other.
    Rule(
        _CODE, _projection_alone, "offload.activation_modules names attn_proj without core_attn, whose output attn_proj reads",
        "Add core_attn, or leave attn_proj out.", f"{_CORE} (attn_proj cannot be set to offload_modules alone)", frameworks=_BY_MODULE,
        rare=_MODULES,
    ),
    Rule(
        _CODE, _expert_modules, "offload.activation_modules names modules of experts, but the model has no experts",
        "Leave expert_fc1 and moe_act out.", "megatron/core/transformer/moe/experts.py (their only reader)", frameworks=_BY_MODULE,
        when=lambda job: job.model.moe is None, rare=_MODULES,
    ),
    Rule(
        _CODE, _part_of_nothing, "offload.activation_fraction is {offload_activation_fraction}, but offload.activation_modules names no module",
        "Name modules, or leave offload.activation_fraction out.", f"{_CORE} (activation_offload_fraction)", rare=_FRACTION,
        smallest_change="offload.activation_fraction {offload_activation_fraction} -> 1",
    ),
    Rule(
        _CODE, _part_of_modules, f"{{framework}} {{version}} offloads all of a module's activations; a fraction came with core {OFFLOAD_FRACTION_SINCE}",
        f"Set offload.activation_fraction to 1, or use core {OFFLOAD_FRACTION_SINCE}.", f"{_CORE} (activation_offload_fraction)",
        frameworks=_BY_MODULE, until=OFFLOAD_FRACTION_SINCE, when=version_stated, rare=_FRACTION,
        smallest_change="offload.activation_fraction {offload_activation_fraction} -> 1",
    ),
)  # fmt: skip
