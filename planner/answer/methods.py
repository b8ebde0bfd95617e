"""What an evaluation says of how replicas stay together: `mathematics`, `changes` and `exchange` of the contract, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.evaluate import Evaluated
from cost_models.job import Job, PooledJob
from cost_models.layers.trained import trained_parameters
from cost_models.replicas.groups import has_groups, num_groups
from cost_models.replicas.powersgd import layer_elements, model_elements
from cost_models.specs.method import CompressionKind, Method, SyncMethod
from cost_models.step.exchange import volume
from cost_models.step.total import groups_outer
from cost_models.strategies.strategy import Strategies

Document = dict[str, Any]
ACROSS_ISLANDS = "replicas-across-islands"
"""Warning that gradients cross the slow link at every step."""
_BEHIND = "steps of one group do not see the others' until they are brought together"
_SYNC_CHANGES: dict[SyncMethod, tuple[str, str, str]] = {
    "local-sgd": (
        "groups of replicas train by themselves and average their parameters every {sync_every} steps", _BEHIND,
        "Stich 2019 (arXiv 1805.09767)",
    ),
    "diloco": (
        "groups of replicas train by themselves; every {sync_every} steps an outer optimizer applies the mean of their changes", _BEHIND,
        "Douillard et al. 2023 (arXiv 2311.08105)",
    ),
    "gossip": (
        "each replica averages its parameters with neighbours ({topology}) and not with all", "replicas differ from each other at all times",
        "Ying et al. 2021 (arXiv 2110.13363)",
    ),
}  # fmt: skip
_LOW_RANK = (
    "matrices' gradients lose what the factors cannot hold; it is added to the next step's gradients (error feedback)"
)
_SIGNS = "the momentum is exchanged as signs with one scale, its error is fed back, and the variance is frozen"
_COMPRESSION_CHANGES: dict[CompressionKind, tuple[str, str, str]] = {
    "fp16": ("gradients are cast to fp16 before they are summed", "sums have 11 significant bits", "torch default_hooks.fp16_compress_hook"),
    "bf16": ("gradients are cast to bf16 before they are summed", "sums have 8 significant bits", "torch default_hooks.bf16_compress_hook"),
    "powersgd": ("gradients of matrices are exchanged as factors of rank {rank}", _LOW_RANK, "Vogels et al. 2019 (arXiv 1905.13727)"),
    "onebit": ("1-bit Adam after {first_steps} steps", f"{_SIGNS}; DeepSpeed has verified fp16 alone", "Tang et al. 2021 (arXiv 2102.02888)"),
    "zero-one": (
        "0/1 Adam after {first_steps} steps, exchanged every {sync_every} steps", f"{_SIGNS}; between exchanges replicas train alone",
        "Lu et al. 2022 (arXiv 2202.06009)",
    ),
}  # fmt: skip


def method_parts(pooled: PooledJob, evaluated: Evaluated, index: int) -> tuple[Document, Document, list[str]]:
    """The field `exchange` of an evaluation where it has one, what is assumed by contract field, and codes of what qualifies it."""
    job = pooled.jobs[0]
    found: Document = {}
    if job.is_plain or pooled.cluster.lists_pools:
        return found, {}, []
    row = evaluated.strategies.take(np.array([index]))
    found["exchange"] = _exchange(job, row, step_s=float(evaluated.step_time_s[index]))
    compression = job.method.compression
    # The programs' defaults are far apart, and decide what a short run gains.
    says_freeze = compression.kind in ("powersgd", "onebit", "zero-one")
    assumed = (
        {"compression.freeze_steps": compression.first_steps}
        if says_freeze and compression.freeze_steps is None
        else {}
    )
    crosses = not job.method.is_local and job.cluster.islands is not None and float(num_groups(job, row)[0]) > 1
    return found, assumed, [ACROSS_ISLANDS] if crosses else []


# The words name what is done, so that nobody has to look up a method to see what it does to the numbers.
def changes_of_method(method: Method) -> list[dict[str, str]]:
    """Each thing that replicas do otherwise than summing all gradients at every step."""
    sync, compression = method.sync, method.compression
    told = [_SYNC_CHANGES.get(sync.method), _COMPRESSION_CHANGES.get(compression.kind)]
    names = {
        "sync_every": max(sync.sync_every, compression.sync_every), "topology": sync.topology, "rank": compression.rank,
        "first_steps": compression.first_steps,
    }  # fmt: skip
    return [
        {"what": each[0].format_map(names), "effect": each[1], "source": each[2]} for each in told if each is not None
    ]


def _exchange(job: Job, row: Strategies, *, step_s: float) -> Document:
    """The contract's `exchange` of one strategy."""
    elements = float(trained_parameters(job.model, job.training).trainable)
    size = volume(job, elements)
    found: Document = {
        "groups": None, "synchronisation_s": None, "exposed_s": None, "useful_fraction": None,
        "plain_bytes": size.plain, "mean_bytes": size.mean, "volume_ratio": size.ratio, "warm_up_fraction": size.warm_up,
        "matrices": None,
    }  # fmt: skip
    if has_groups(job):
        told = groups_outer(job, row)
        exposed_s = float(told.exposed_s[0])
        found |= {
            "groups": int(told.groups[0]),
            "synchronisation_s": float(told.sync_s[0]),
            "exposed_s": exposed_s,
            "useful_fraction": 1.0 - exposed_s / step_s,
        }
        # Groups exchange parameters, so that volumes of gradients would compare with nothing.
        for name in ("plain_bytes", "mean_bytes", "volume_ratio", "warm_up_fraction"):
            found[name] = None
    if job.method.compression.kind == "powersgd":
        rank = job.method.compression.rank
        layer, whole = layer_elements(job.model, job.model.layer_kinds[-1], rank), model_elements(job.model, rank)
        found["matrices"] = {
            "layer_elements": layer.compressed + layer.whole,
            "layer_sent_elements": layer.sent + layer.whole,
            "elements": whole.compressed,
            "sent_elements": whole.sent,
            "whole_elements": whole.whole,
        }
    if job.method.sync.method in ("gossip", "parameter-server"):
        for name in ("mean_bytes", "volume_ratio", "warm_up_fraction"):
            found[name] = None
    return found
