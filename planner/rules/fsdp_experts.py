"""Rules on experts that transformers splits over the ranks of PyTorch's FSDP2 (`DistributedConfig.ep_size`).

Accelerate, which sets up everything else of the framework `fsdp`, has no such degree and leaves a model alone that transformers
has split, so that what is accelerate's own cannot stand beside it: context parallelism, FSDP2 without resharding, whole replicas.
"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, indivisible

_FSDP = frameworks_where(lambda facts: facts.splits_experts_at_loading)
_CONFIG = "transformers/distributed/configuration_utils.py"


def _experts_used(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.ep > 1)


def _etp(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.etp > 1))


def _exchanges(job: Job) -> bool:
    return job.model.moe is not None and bool(job.framework.choices.dispatchers)


def _exchanges_nothing(job: Job) -> bool:
    return job.model.moe is not None and not job.framework.choices.dispatchers


def _other_modules(job: Job) -> bool:
    return _exchanges(job) and job.training.model_impl != "transformers"


def _adapted(job: Job) -> bool:
    return _exchanges(job) and job.training.adapter is not None


def _not_resharded(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.zero != 3))


def _with_context(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.cp > 1))


def _tensor_sequences(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.tp > 1) & s.sequence_parallel)


def _no_multiple_of_tp(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & indivisible(s.ep, s.tp))


FSDP_EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        "expert-tensor-parallel-unsupported", _etp, "{framework} cannot combine ep {ep} with etp {etp}: its ranks hold whole experts",
        "Set etp to 1.", f"{_CONFIG} (efsdp_size)", frameworks=_FSDP, when=_exchanges,
        smallest_change="etp {etp} -> 1",
    ),
    # 5.19 to 5.22 have ep_size too, but reduce the gradients of every micro-batch and cannot replicate the whole.
    Rule(
        "expert-parallel-unsupported", _experts_used,
        "{framework} has expert parallelism by transformers 5.23 of November 2026, which is newer than this job's software (ep {ep})",
        "Set ep to 1, set training.software_date to 2026-11 or later if transformers 5.23 is installed{or_another}.",
        f"{_CONFIG} (ep_size); accelerate/parallelism_config.py has no such degree",
        frameworks=_FSDP, when=_exchanges_nothing, smallest_change="ep {ep} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _experts_used, "ep {ep} needs PyTorch 2.8 or later in {framework}, not {version}",
        "Use framework_version 2.8 or later, or set ep to 1.", "transformers/distributed/mixin.py (prepare_distribute_model)",
        frameworks=_FSDP, until="2.8", when=_exchanges, smallest_change="ep {ep} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _experts_used,
        "ep {ep} needs training.model_impl 'transformers' in {framework}: Liger's patches replace the forward of experts, which "
        "exchanges the tokens, and a plain PyTorch loop has none",
        "Set training.model_impl to 'transformers', or ep to 1.",
        "liger_kernel/transformers/monkey_patch.py (_patch_swiglu_module of mlp.experts)",
        frameworks=_FSDP, when=_other_modules, smallest_change="ep {ep} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _not_resharded,
        "ep {ep} needs zero 3 in {framework}: transformers gathers parameters again in backward wherever it splits experts (zero {zero})",
        "Use zero 3, or set ep to 1.", "transformers/distributed/fsdp.py (fully_shard with reshard_after_forward=True)",
        frameworks=_FSDP, when=_exchanges, smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "expert-parallel-unsupported", _with_context, "{framework} cannot combine ep {ep} with context parallelism (cp {cp})",
        "Set cp or ep to 1{or_another}.", f"{_CONFIG} has no such degree",
        frameworks=_FSDP, when=_exchanges, smallest_change="cp {cp} -> 1",
    ),
    # Accelerate's tensor parallelism, which has sequence parallelism, finds no module left to split.
    Rule(
        "expert-parallel-unsupported", _tensor_sequences,
        "{framework} cannot combine ep {ep}, tp {tp} and sequence parallelism, which transformers' DistributedConfig does not have yet",
        "Set sequence_parallel to false, or set tp or ep to 1.",
        f"{_CONFIG} (enable_sequence_parallel: not wired up)",
        frameworks=_FSDP, when=_exchanges, smallest_change="sequence_parallel true -> false",
    ),
    Rule(
        "expert-ranks-not-divisible", _no_multiple_of_tp, "ep {ep} must be a multiple of tp {tp} in {framework}",
        "Raise ep, or lower tp.", f"{_CONFIG} (_validate_mesh_config)",
        frameworks=_FSDP, when=_exchanges, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _experts_used,
        "ep {ep} beside an adapter is not modelled in {framework}: how peft places adapters on a model that transformers has split "
        "was not checked", "Set ep to 1, or train without training.adapter.",
        "transformers/integrations/peft.py (adapters over DTensor's tensor parallelism alone)",
        frameworks=_FSDP, when=_adapted, smallest_change="ep {ep} -> 1",
    ),
)  # fmt: skip
