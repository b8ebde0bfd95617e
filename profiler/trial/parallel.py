"""How the modules of a trial are split: tensors, experts and sequences, recomputation, compilation, data parallelism, in this order.

The order and the plans are torchtitan's (`torchtitan/models/llama4/infra/parallelize.py`), so that what is measured is what users run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from profiler.trial.experts import Mixture
from profiler.trial.mesh import Mesh
from profiler.trial.modules import Chunk
from profiler.trial.plan import TrialPlan
from profiler.trial.recompute import recomputed_in_part, recomputed_whole

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def split(chunk: Chunk, plan: TrialPlan, mesh: Mesh) -> nn.Module:
    """The chunk, split as the plan says; its parameters are still on the meta device."""
    if plan.tp > 1:
        _over_tensor_ranks(chunk, mesh.dense["tp"])
        chunk.tie()
    for layer in chunk.layers.values():
        if isinstance(layer.mlp, Mixture):
            _over_expert_ranks(layer.mlp, plan, mesh)
    if mesh.context is not None:
        # Only here, since it reaches into parts of PyTorch that are not public.
        from profiler.trial.context import over_context_ranks

        over_context_ranks(chunk, mesh.context["cp"], plan)
    for place, (name, layer) in enumerate(list(chunk.layers.items())):
        made: Any = layer
        if plan.recompute != "none" and (plan.recompute_layers is None or place < plan.recompute_layers):
            inside = plan.uses_fsdp and plan.ep > 1 and isinstance(layer.mlp, Mixture)
            made = (
                recomputed_whole(layer)
                if plan.recompute == "full"
                else recomputed_in_part(layer, gathers_inside=inside)
            )
        chunk.layers[name] = _compiled(made, layer) if plan.compile else made
    if plan.uses_fsdp:
        _over_shards(chunk, plan, mesh)
    return chunk


def replicated(chunk: nn.Module, plan: TrialPlan, mesh: Mesh) -> nn.Module:
    """The chunk with gradients summed over its replicas where FSDP does not do it."""
    if plan.replicas == 1 or plan.uses_fsdp:
        return chunk
    replicate(chunk, device_mesh=mesh.copies(plan), bucket_cap_mb=100)
    return chunk


def _compiled(made: Any, layer: Any) -> Any:
    """A compiled layer; of one with experts, which wait for sizes on the host, the parts around them."""
    if not isinstance(layer.mlp, Mixture):
        return torch.compile(made, fullgraph=True)
    for parent in (layer, layer.mlp):
        for name, part in list(parent.named_children()):
            if part not in (layer.mlp, layer.mlp.experts):
                setattr(parent, name, torch.compile(part, fullgraph=True))
    return made


def _over_shards(chunk: Chunk, plan: TrialPlan, mesh: Mesh) -> None:
    compute = None if plan.precision == plan.param_dtype else _DTYPES[plan.precision]
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=_DTYPES[plan.reduce_dtype])
    # A pipeline keeps what it has gathered: gathering for each micro-batch again would cost more than the schedule can hide.
    after = plan.zero == 3 and plan.pp == 1
    options: dict[str, Any] = {"mesh": mesh.replicas(plan), "mp_policy": policy}
    for layer in chunk.layers.values():
        if plan.ep > 1 and isinstance(layer.mlp, Mixture):
            _experts_over_shards(layer.mlp, plan, mesh, options | {"reshard_after_forward": after})
        fully_shard(layer, **options, reshard_after_forward=after)
    if not chunk.is_tied:
        if chunk.embedding is not None:
            fully_shard(chunk.embedding, **options, reshard_after_forward=after)
        if chunk.head is not None:
            # Their gradients come first: freeing them after the forward would gather them again at once.
            fully_shard([chunk.norm, chunk.head], **options, reshard_after_forward=False)
    fully_shard(chunk, **options, reshard_after_forward=after)
    if plan.ep > 1:
        _name_what_comes_next(chunk)


def _name_what_comes_next(chunk: Chunk) -> None:
    """Tells FSDP what to gather next. It would find out by itself, but for the waits on the host that experts bring (torchtitan)."""
    layers: list[list[Any]] = [
        [layer, layer.mlp.experts] if isinstance(layer.mlp, Mixture) else [layer] for layer in chunk.layers.values()
    ]
    before: list[list[Any]] = [] if chunk.is_tied or chunk.embedding is None else [[chunk.embedding]]
    behind: list[list[Any]] = [] if chunk.is_tied or chunk.head is None else [[chunk.norm, chunk.head]]
    units = before + layers + behind
    for this, following in pairwise(units):
        this[0].set_modules_to_forward_prefetch(following)
        following[-1 if following in behind else 0].set_modules_to_backward_prefetch(this)


def _experts_over_shards(mixture: Mixture, plan: TrialPlan, mesh: Mesh, options: Mapping[str, Any]) -> None:
    """Shards the experts of each expert parallel rank over the ranks that hold the same ones."""
    ranks = mesh.replicas(plan, of_experts=True)
    shards = ranks["shard"].size() if ranks.ndim > 1 else ranks.size()
    # Where there are more ranks than experts, a shard is a slice of each expert.
    sliced = shards * plan.ep > mixture.num_experts
    made: Any = fully_shard(
        mixture.experts, **{**options, "mesh": ranks}, shard_placement_fn=(lambda _: Shard(1)) if sliced else None
    )
    # A rank's experts have seen the tokens of all ranks they serve, so that the mean is over more ranks than the sum runs over.
    made.set_gradient_divide_factor(float(plan.replicas))
    if ranks.device_type == "cpu" and shards > 1:
        # gloo multiplies no sum on its way; a single shard is divided without one.
        made.set_force_sum_reduction_for_comms(enable=True)


def _over_expert_ranks(mixture: Mixture, plan: TrialPlan, mesh: Mesh) -> None:
    """Spreads experts over expert parallel ranks, or without these their widths over the tensor parallel ones."""
    if mesh.sparse is not None:
        mixture.experts.ranks = mesh.sparse["ep"].get_group()
        mixture.part = (mesh.dense["tp"].get_local_rank(), plan.tp)
        _distribute(mixture.experts, mesh.sparse["ep"], {"w1": Shard(0), "w2": Shard(0), "w3": Shard(0)})
    elif plan.tp > 1:
        _distribute(mixture.experts, mesh.dense["tp"], {"w1": Shard(1), "w2": Shard(2), "w3": Shard(1)})


def _distribute(module: nn.Module, ranks: DeviceMesh, placements: Mapping[str, Placement]) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        spread = distribute_tensor(parameter, ranks, [placements[name]])
        module.register_parameter(name, nn.Parameter(spread))


def _over_tensor_ranks(chunk: Chunk, ranks: DeviceMesh) -> None:
    # Norms and residuals are split along the sequence.
    between = Shard(1)
    if chunk.embedding is not None:
        parallelize_module(
            chunk,
            ranks,
            {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)},
        )
    if chunk.head is not None:
        ends = {
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(chunk, ranks, ends)
    for layer in chunk.layers.values():
        parallelize_module(layer, ranks, _of_layer(layer, between))
        if isinstance(layer.mlp, Mixture):
            distribute_module(layer.mlp.router, ranks)
            if layer.mlp.shared_gate is not None:
                distribute_module(layer.mlp.shared_gate, ranks)


def _of_layer(layer: Any, between: Any) -> dict[str, Any]:
    styles: dict[str, Any] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(Replicate(), None)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=between),
        "mlp_norm": SequenceParallel(),
    }
    if isinstance(layer.mlp, Mixture):
        styles["mlp"] = PrepareModuleInputOutput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),), output_layouts=(Partial(),),
            desired_output_layouts=(between,),
        )  # fmt: skip
        dense, prefix, out = layer.mlp.shared, "mlp.shared", Partial()
    else:
        styles["mlp"] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        dense, prefix, out = layer.mlp, "mlp", between
    if dense is not None:
        styles |= {f"{prefix}.w1": ColwiseParallel(), f"{prefix}.w2": RowwiseParallel(output_layouts=out)}
        if dense.w3 is not None:
            styles[f"{prefix}.w3"] = ColwiseParallel()
    if layer.attention.q_norm is not None:
        # Each rank norms its own heads with the same weights, whose gradients are summed over the ranks.
        by_head = SequenceParallel(sequence_dim=2, use_local_output=True)
        styles |= {"attention.q_norm": by_head, "attention.k_norm": by_head}
    return styles
