"""How the modules of a trial are split: tensor and sequence parallelism, recomputation, compilation, data parallelism, in this order.

The order and the plans are torchtitan's (`torchtitan/models/llama3/infra/parallelize.py`), so that what is measured is what users run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from profiler.trial.modules import Chunk
from profiler.trial.plan import TrialPlan


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of one trial: pipeline outermost, tensor innermost."""

    whole: DeviceMesh

    @classmethod
    def build(cls, plan: TrialPlan, device: str) -> Mesh:
        """A mesh over all ranks."""
        replicas = plan.dp // plan.zero_shard_size
        shape = (plan.pp, replicas, plan.zero_shard_size, plan.tp)
        return cls(init_device_mesh(device, shape, mesh_dim_names=("pp", "replicate", "shard", "tp")))

    def __getitem__(self, name: Any) -> DeviceMesh:
        return self.whole[name]


def split(chunk: Chunk, plan: TrialPlan, mesh: Mesh) -> nn.Module:
    """The chunk, split as the plan says; its parameters are still on the meta device."""
    if plan.tp > 1:
        _over_tensor_ranks(chunk, mesh["tp"], sequence_parallel=plan.sequence_parallel)
    for name, layer in list(chunk.layers.items()):
        made: Any = layer
        if plan.recompute == "full":
            made = checkpoint_wrapper(made, preserve_rng_state=False)
        if plan.compile:
            made = torch.compile(made, fullgraph=True)
        chunk.layers[name] = made
    if plan.dp > 1 and plan.zero >= 2:
        _over_shards(chunk, plan, mesh)
    return chunk


def replicated(chunk: nn.Module, plan: TrialPlan, mesh: Mesh) -> nn.Module:
    """The chunk with gradients summed over its replicas; zero 2 and 3 have no replicas of this kind."""
    if plan.dp > 1 and plan.zero < 2:
        replicate(chunk, device_mesh=mesh["replicate" if plan.zero == 0 else "shard"], bucket_cap_mb=100)
    return chunk


def _over_shards(chunk: Chunk, plan: TrialPlan, mesh: Mesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ranks = mesh["replicate", "shard"] if plan.dp > plan.zero_shard_size else mesh["shard"]
    frees = plan.zero == 3
    # A pipeline keeps what it has gathered: gathering for each micro-batch again would cost more than the schedule can hide.
    after = frees and plan.pp == 1
    for layer in chunk.layers.values():
        fully_shard(layer, mesh=ranks, mp_policy=policy, reshard_after_forward=after)
    if not _is_tied(chunk):
        if chunk.embedding is not None:
            fully_shard(chunk.embedding, mesh=ranks, mp_policy=policy, reshard_after_forward=after)
        if chunk.head is not None:
            # Their gradients come first: freeing them after the forward would gather them again at once.
            fully_shard([chunk.norm, chunk.head], mesh=ranks, mp_policy=policy, reshard_after_forward=False)
    fully_shard(chunk, mesh=ranks, mp_policy=policy, reshard_after_forward=after)


def _over_tensor_ranks(chunk: Chunk, ranks: DeviceMesh, *, sequence_parallel: bool) -> None:
    between = Shard(1) if sequence_parallel else Replicate()
    if chunk.embedding is not None:
        parallelize_module(
            chunk,
            ranks,
            {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)},
        )
    if chunk.head is not None:
        ends: dict[str, Any] = {
            "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
        }
        if sequence_parallel:
            ends["norm"] = SequenceParallel()
        parallelize_module(chunk, ranks, ends)
    for layer in chunk.layers.values():
        parallelize_module(layer, ranks, _of_layer(layer, between, sequence_parallel=sequence_parallel))


def _of_layer(layer: Any, between: Any, *, sequence_parallel: bool) -> dict[str, Any]:
    styles: dict[str, Any] = {
        "attention": PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(Replicate(), None)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=between),
        "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        "mlp.w1": ColwiseParallel(),
        "mlp.w2": RowwiseParallel(output_layouts=between),
    }
    if layer.mlp.w3 is not None:
        styles["mlp.w3"] = ColwiseParallel()
    if layer.attention.q_norm is not None:
        # Each rank norms its own heads with the same weights, whose gradients are summed over the ranks.
        by_head = SequenceParallel(sequence_dim=2, use_local_output=True)
        styles |= {"attention.q_norm": by_head, "attention.k_norm": by_head}
    if sequence_parallel:
        styles |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    return styles


def _is_tied(chunk: Chunk) -> bool:
    return chunk.embedding is not None and chunk.head is not None and chunk.head.weight is chunk.embedding.weight
