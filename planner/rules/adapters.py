"""Rules on adapters beside a frozen base, and on how that base can be split."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule

_PEFT = frameworks_where(lambda facts: bool(facts.choices.quantized_bases))
"""Frameworks whose adapters are peft's, around Hugging Face's modules."""
_PEFT_OVER_SHARDS = _PEFT & frameworks_where(lambda facts: facts.memory.zero2_shards_parameters)
"""Those whose parameters are FSDP's."""


def _split_by_tensor(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.tp > 1)


def _pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.pp > 1)


def _base_sharded(job: Job, s: Strategies) -> Bools:
    first = 2 if job.framework.memory.zero2_shards_parameters else 3
    return np.asarray((s.zero >= first) & (s.zero_shard_size > 1))


def _context_over_replicas(job: Job, s: Strategies) -> Bools:
    first = 2 if job.framework.memory.zero2_shards_parameters else 3
    return np.asarray((s.cp > 1) & (s.zero < first))


def _context(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.cp > 1)


def _quantised(job: Job) -> bool:
    adapter = job.training.adapter
    return adapter is not None and adapter.quantized_base != "none"


def _any_adapter(job: Job) -> bool:
    return job.training.adapter is not None


def _unshardable_base(job: Job) -> bool:
    adapter = job.training.adapter
    if adapter is None or adapter.quantized_base == "none":
        return False
    return adapter.quantized_base not in job.framework.choices.sharded_bases


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule(
        "adapter-unsupported", _split_by_tensor, "{framework} cannot combine peft's adapters with tensor parallelism (tp {tp})",
        "Set tp to 1 and shard with zero 3{or_adapted}.",
        "peft/tuners/lora/layer.py: an adapter is made of whole linear layers beside the base's", frameworks=_PEFT,
        when=_any_adapter, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "adapter-unsupported", _pipelined, "{framework} cannot combine peft's adapters with a pipeline (pp {pp})",
        "Set pp to 1 and shard with zero 3{or_adapted}.", "deepspeed/runtime/pipe/module.py takes a list of its own layers",
        frameworks=_PEFT, when=_any_adapter, smallest_change="pp {pp} -> 1",
    ),
    # Its gradients are reduced over the ranks of a sequence as FSDP2's shards are; without FSDP2 nobody reduces them.
    Rule(
        "context-parallel-unsupported", _context_over_replicas,
        "{framework} cannot combine context parallelism with whole parameters on every rank beside peft's adapters (cp {cp}, zero {zero})",
        "Set zero to 3, or cp to 1.", "accelerate/parallelism_config.py (dp_shard_cp is the mesh dimension that FSDP shards over)",
        frameworks=_PEFT_OVER_SHARDS, when=_any_adapter, smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "context-parallel-unsupported", _context,
        "{framework} cannot combine context parallelism with a base that is quantised to {quantized_base} (cp {cp})",
        "Set cp to 1.", "accelerate/parallelism_config.py wants FSDP2, which cannot shard bitsandbytes' weights",
        frameworks=_PEFT_OVER_SHARDS, when=_quantised, smallest_change="cp {cp} -> 1",
    ),
    # 8-bit weights carry their scales in an object that neither DeepSpeed nor FSDP takes apart.
    Rule(
        "quantized-base-unsupported", _base_sharded, "{framework} cannot shard a base that is quantised to {quantized_base} (zero {zero})",
        "Use quantized_base 'nf4', or a zero stage that keeps parameters whole.",
        "bitsandbytes/nn/modules.py (Int8Params; quant_storage is Linear4bit's alone)", frameworks=_PEFT, when=_unshardable_base,
        smallest_change="zero {zero} -> 0",
    ),
)  # fmt: skip
