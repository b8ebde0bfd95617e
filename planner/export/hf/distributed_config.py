"""transformers' DistributedConfig, which splits a model while it is loaded: FSDP2, expert and tensor parallelism around one another.

Source: transformers/distributed/configuration_utils.py, fsdp.py and trainer.py of 5.23 and 5.24. Earlier releases either have no
`ep_size` (before 5.19) or reduce the gradients of every micro-batch and know no replicas (before 5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.frameworks.fsdp import EXPERT_PARALLEL_SINCE
from cost_models.frameworks.releases import precedes
from planner.export.hf import fsdp
from planner.export.quantities import Quantities
from planner.export.settings import Settings
from planner.export.spellings import peeked, whole

KEY: Final = "distributed_config"
"""The section of `train.json` that the script hands to `from_pretrained`."""
RELEASE: Final = "5.23"
_EXPERTS, _SHARDS, _REPLICAS, _TENSORS = "ep_size", "fsdp_size", "dp_replicate_size", "tp_size"
_OFFLOAD, _MIXED = "fsdp_cpu_offload", "fsdp_mixed_precision"
_WHY: Final = "DistributedConfig, which splits experts, has no such setting"


def is_needed(q: Quantities) -> bool:
    """Whether a plan splits experts over ranks, which no configuration of accelerate does."""
    return q.plan.job.training.framework == "fsdp" and q.peek("ep") is not None and q.peek("ep") > 1


def said(q: Quantities) -> dict[str, Any]:
    """The keys of DistributedConfig, with the types that the script loads the model in.

    Raises:
        FieldNotExpressibleError: the release has none, or it cannot be told a field.
    """
    if precedes(q.version, RELEASE):
        raise q.refusal(
            "ep", why=f"its DistributedConfig splits experts under FSDP2 from {RELEASE} on", nearest={"ep": 1}
        )
    shared = q["zero_shard_size"]
    for field, only in (("zero", 3), ("cp", 1), ("pp", 1), ("vpp", 1), ("etp", 1), ("sequence_parallel", False)):
        q.only(field, [only], why=_WHY)
    q.implied("moe_dispatcher", "alltoall", why="tokens are exchanged by all-to-all in training (AutoEP)")
    for field in ("overlap.grad_reduce", "overlap.param_gather"):
        q.only(field, [True], why="FSDP2 always overlaps it")
    for field in ("overlap.tp_comm", "overlap.p2p", "overlap.moe_all_to_all"):
        q.only(field, [False], why=_WHY)
    for field in ("recompute_method", "recompute_num_layers", "recompute_per_stage"):
        q.only(field, [None, ()], why="the Trainer recomputes every layer or none", nearest={field: None})
    if q["layers_per_stage"]:
        q["schedule"]
    q.only("offload.activation_layers", [0], why=_WHY)
    parameters = bool(q["offload.parameters"])
    moved = {"offload.optimizer_fraction": float(parameters)}
    q.only(
        "offload.optimizer_fraction", list(moved.values()), why="fsdp_cpu_offload moves both together", nearest=moved
    )
    # Every size is written, also those of 1: the class fills in others where it is told a part of them.
    section = {
        _EXPERTS: q["ep"], _SHARDS: shared, _REPLICAS: q["dp"] // shared, _TENSORS: q["tp"], _OFFLOAD: parameters,
    }  # fmt: skip
    stored, is_mixed = _types(q)
    return {fsdp.DTYPE: stored, KEY: {**section, _MIXED: is_mixed}}


def _types(q: Quantities) -> tuple[str, bool]:
    """The type that the script loads the model in, and whether FSDP2 casts it."""
    # MixedPrecisionPolicy is made with bf16 and fp32 and takes nothing else (fsdp.py, _get_fsdp_policy_kwargs).
    is_mixed = q.peek("training.param_dtype") == "fp32" and q.peek("training.precision") != "fp32"
    if is_mixed:
        q.only("training.grad_reduce_dtype", ["fp32"], why="fsdp_mixed_precision reduces gradients in fp32")
    _, document = fsdp.said_types(q, precisions=("bf16",), why="fsdp_mixed_precision computes in bf16")
    return document[fsdp.DTYPE], is_mixed


def read(settings: Settings) -> Mapping[str, Any]:
    """The fields that the section says; empty where there is none, or it splits nothing."""
    experts = whole(settings, f"{KEY}.{_EXPERTS}", "ep")
    if experts is None:
        return {}
    shards, replicas = (whole(settings, f"{KEY}.{key}", "dp", "zero_shard_size") for key in (_SHARDS, _REPLICAS))
    found: dict[str, Any] = {"ep": experts, "zero": 3, "training.software_date": EXPERT_PARALLEL_SINCE}
    if shards is not None:
        found |= {"zero_shard_size": shards, "dp": shards * (replicas or 1)}
    # Ranks that split one layer's products see the same sequences without splitting them: there is no sequence parallelism yet.
    found["tp"] = whole(settings, f"{KEY}.{_TENSORS}", "tp") or 1
    if found["tp"] > 1:
        found["sequence_parallel"] = False
    offloads = settings.value(f"{KEY}.{_OFFLOAD}", "offload.parameters", "offload.optimizer_fraction")
    if isinstance(offloads, bool):
        found |= {"offload.parameters": offloads, "offload.optimizer_fraction": float(offloads)}
    if peeked(settings, f"{KEY}.{_MIXED}") is True:
        settings.take(f"{KEY}.{_MIXED}", "training.precision", "training.grad_reduce_dtype")
        found |= {"training.precision": "bf16", "training.param_dtype": "fp32", "training.grad_reduce_dtype": "fp32"}
    else:
        settings.take(f"{KEY}.{_MIXED}", "training.precision")
    return found
