"""The ranks of one trial: which of them hold which layers, heads, tokens and experts. The orders are torchtitan's (`parallel_dims.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from profiler.trial.plan import TrialPlan


@dataclass(frozen=True, slots=True)
class Mesh:
    """All ranks in up to three orders: pipeline outermost and tensor innermost in each."""

    dense: DeviceMesh
    """Dimensions pp, replicate, shard, tp: who holds what of all parameters but the experts'."""
    context: DeviceMesh | None
    """Dimensions pp, batch, cp, tp: who holds which tokens; None where no sequence is split."""
    sparse: DeviceMesh | None
    """Dimensions pp, replicate, shard, ep: who holds which experts; None where every rank holds all of its layers'."""

    @classmethod
    def build(cls, plan: TrialPlan, device: str) -> Mesh:
        """The mesh of a plan, over all ranks of the default process group."""
        # DDP reduces over one dimension, whichever ZeRO stage the optimizer runs at: all replicas are in `shard` with ZeRO 1.
        copies = plan.replicas // plan.shard_size
        dense = init_device_mesh(
            device, (plan.pp, copies, plan.shard_size, plan.tp), mesh_dim_names=("pp", "replicate", "shard", "tp")
        )
        context = sparse = None
        if plan.cp > 1:
            context = init_device_mesh(
                device, (plan.pp, plan.dp, plan.cp, plan.tp), mesh_dim_names=("pp", "batch", "cp", "tp")
            )
        if plan.ep > 1:
            shape = (plan.pp, copies, plan.shard_size * plan.tp // plan.ep, plan.ep)
            sparse = init_device_mesh(device, shape, mesh_dim_names=("pp", "replicate", "shard", "ep"))
        return cls(dense, context, sparse)

    @property
    def stage(self) -> int:
        """This rank's place in the pipeline."""
        return int(self.dense["pp"].get_local_rank())

    def replicas(self, plan: TrialPlan, *, of_experts: bool = False) -> DeviceMesh:
        """The ranks over which FSDP splits and sums: one dimension, or two where groups of ranks are copies of each other."""
        ranks = self.sparse if of_experts else self.dense
        assert ranks is not None
        return ranks["replicate", "shard"] if plan.replicas > plan.shard_size else ranks["shard"]

    def copies(self, plan: TrialPlan) -> DeviceMesh:
        """The ranks over which DDP sums."""
        return self.dense["shard" if plan.zero == 1 else "replicate"]


def own_tokens(plan: TrialPlan, tokens: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch of ids, shape (batch of a replica B, own tokens S / cp), from that of all replicas, (dp * B, S).

    A context parallel rank holds the piece at its place from the head of each sequence and the one at its place from the tail, so that
    causal attention costs all ranks the same (`_HeadTailLoadBalancer` of PyTorch).
    """
    each = tokens.shape[0] // plan.dp
    replica, _ = _place(plan)
    return tokens[replica * each : (replica + 1) * each][:, own_positions(plan, tokens.device)].contiguous()


def own_positions(plan: TrialPlan, device: torch.device) -> torch.Tensor:
    """Places in a sequence of the tokens that this rank holds, shape (S / cp,)."""
    _, place = _place(plan)
    pieces = torch.arange(plan.seq_length, device=device).chunk(2 * plan.cp)
    return torch.cat((pieces[place], pieces[2 * plan.cp - 1 - place])) if plan.cp > 1 else torch.cat(pieces)


def _place(plan: TrialPlan) -> tuple[int, int]:
    """Which replica of the data this rank belongs to, and its place among the ranks that share a sequence."""
    among_replicas: int = dist.get_rank() // plan.tp % plan.replicas
    return divmod(among_replicas, plan.cp)
