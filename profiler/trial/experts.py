"""A mixture of experts in plain PyTorch: the operations of torchtitan's `models/moe/moe.py`, with tokens that choose their experts.

Shapes: T tokens, K experts of each token, E experts, H hidden, I width of an expert. Under tensor parallelism the input is a
replicated tensor whose gradients are partial sums; the output is a partial sum, too. Under expert parallelism a rank holds E / ep experts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd, wait_tensor
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from cost_models.specs.model import Model, Moe

# Grouped products want groups of a multiple of 16 bytes: 8 tokens in bf16.
_ALIGNMENT = 8


class Router(nn.Module):  # type: ignore[misc]
    """Which experts each token goes to, and with which weights."""

    def __init__(self, model: Model, moe: Moe) -> None:
        super().__init__()
        self.moe = moe
        self.gate = nn.Linear(model.hidden_size, moe.num_experts, bias=moe.router_bias)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Weights in fp32 that sum to 1, and numbers of experts, both of shape (T, K), of tokens (T, H)."""
        bias = None if self.gate.bias is None else _whole(self.gate.bias)
        scores = functional.softmax(functional.linear(tokens, _whole(self.gate.weight), bias).float(), dim=-1)
        chosen = torch.topk(self._allowed(scores), k=self.moe.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, chosen)
        return weights / weights.sum(dim=-1, keepdim=True), chosen

    def _allowed(self, scores: Tensor) -> Tensor:
        """Scores, at minus infinity outside of the groups whose two best experts have the most together."""
        groups, kept = self.moe.num_groups, self.moe.topk_groups
        if groups <= 1 or kept >= groups:
            return scores
        by_group = scores.view(scores.shape[0], groups, -1)
        best = by_group.topk(2, dim=-1).values.sum(dim=-1).topk(kept, dim=-1, sorted=False).indices
        outside = torch.ones_like(by_group[..., 0], dtype=torch.bool).scatter(1, best, value=False)
        return by_group.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(1)


class Experts(nn.Module):  # type: ignore[misc]
    """The routed experts of a layer, with all their matrices in three parameters."""

    def __init__(self, model: Model, moe: Moe) -> None:
        super().__init__()
        wide, narrow = moe.expert_intermediate_size, model.hidden_size
        self.w1 = nn.Parameter(torch.empty(moe.num_experts, wide, narrow))
        self.w3 = nn.Parameter(torch.empty(moe.num_experts, wide, narrow)) if model.gated_mlp else None
        self.w2 = nn.Parameter(torch.empty(moe.num_experts, narrow, wide))
        self.ranks: dist.ProcessGroup | None = None
        """The ranks that the experts are spread over; None where each has all of them."""

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of rows (R, H) that are sorted by expert, as they came.

        Args:
            rows: tokens, a row for each expert that one goes to.
            counts: rows of each of the E experts, shape (E,).
        """
        if self.ranks is None:
            return self._padded(rows, counts.view(1, -1))
        # As in torchtitan the sizes come to the host, which waits for them.
        arriving = wait_tensor(all_to_all_single(counts, None, None, self.ranks)).view(self.ranks.size(), -1)
        sent, got = (each.sum(dim=1).tolist() for each in (counts.view(self.ranks.size(), -1), arriving))
        there = all_to_all_single_autograd(rows, got, sent, self.ranks)
        return all_to_all_single_autograd(self._padded(there, arriving), sent, got, self.ranks)

    def _padded(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The same for rows of one or several senders: `counts` has shape (senders, own experts)."""
        sources, sizes = slots(counts, rows.shape[0])
        with_zeros = torch.vstack((rows, rows.new_zeros(rows.shape[-1])))
        made = self._products(with_zeros[sources], sizes)
        return _at(sources, made, rows=with_zeros.shape[0])[:-1]

    def _products(self, rows: Tensor, sizes: Tensor) -> Tensor:
        w1, w2, w3 = (None if each is None else _local(each) for each in (self.w1, self.w2, self.w3))
        first = _product(rows, w1, sizes)
        hidden = functional.gelu(first) if w3 is None else functional.silu(first) * _product(rows, w3, sizes)
        return _product(hidden, w2, sizes).type_as(rows)


class Mixture(nn.Module):  # type: ignore[misc]
    """The MLP of a layer with experts: routed ones, and shared ones beside them."""

    def __init__(self, model: Model, shared: nn.Module | None) -> None:
        super().__init__()
        assert model.moe is not None
        self.top_k, self.num_experts = model.moe.top_k, model.moe.num_experts
        self.router = Router(model, model.moe)
        self.experts = Experts(model, model.moe)
        self.shared = shared
        gated = shared is not None and model.moe.shared_expert_gate
        self.shared_gate = nn.Linear(model.hidden_size, 1, bias=False) if gated else None
        self.part = (0, 1)
        """This rank's place among the tensor parallel ranks that route different tokens, and their number."""

    def forward(self, x: Tensor) -> Tensor:
        whole = _whole(x)
        tokens = whole.reshape(-1, whole.shape[-1])
        weights, chosen = self.router(tokens)
        place, parts = self.part
        each = tokens.shape[0] // parts
        own = chosen[place * each : (place + 1) * each].reshape(-1)
        counts = torch.histc(own.float(), bins=self.num_experts, min=0, max=self.num_experts).long()
        # Rows of the tokens' copies, sorted by expert.
        order = torch.argsort(own, stable=True) + place * each * self.top_k
        routed = self.experts(tokens[order // self.top_k], counts)
        # Between dispatch and sum, so that its products run beside the way back of the tokens.
        beside = None if self.shared is None else self._shared(x, tokens)
        by_token = _at(order, routed, rows=tokens.shape[0] * self.top_k)
        weighed = torch.bmm(weights.unsqueeze(1), by_token.view(-1, self.top_k, routed.shape[-1]).float()).squeeze(1)
        summed = weighed.to(routed.dtype)
        return (summed if beside is None else summed + beside).view(whole.shape)

    def _shared(self, x: Tensor, tokens: Tensor) -> Tensor:
        assert self.shared is not None
        made = self.shared(x).reshape(tokens.shape)
        if self.shared_gate is None:
            return made
        return made * functional.linear(tokens, _whole(self.shared_gate.weight)).sigmoid()


def slots(counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Where the rows of padded groups come from, and the sizes of these groups, without asking the device for a number.

    Rows arrive by sender, and a sender's rows by expert. Groups are by expert, each padded to a multiple of 8 rows.

    Args:
        counts: rows from each sender for each expert, shape (senders, E).
        rows: number of all rows, R.

    Returns:
        For each of at most R + 8 E slots the row that it takes, R for the row of zeros behind the last; and the group sizes, shape (E,).
    """
    experts = counts.shape[1]
    sizes = counts.sum(dim=0)
    padded = (sizes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    # Segments in the order of the slots: all senders of the first expert, its padding, and so on.
    lengths = torch.vstack((counts, padded - sizes)).T.reshape(-1)
    begins_at = torch.cumsum(counts.reshape(-1), 0).view_as(counts) - counts
    begins_at = torch.vstack((begins_at, torch.full_like(sizes, rows))).T.reshape(-1)
    ends = torch.cumsum(lengths, 0)
    number = -(-(rows + experts * _ALIGNMENT) // _ALIGNMENT) * _ALIGNMENT
    slot = torch.arange(number, device=counts.device)
    segment = torch.searchsorted(ends, slot, right=True).clamp(max=len(lengths) - 1)
    is_padding = (segment % (counts.shape[0] + 1) == counts.shape[0]) | (slot >= ends[-1])
    return torch.where(is_padding, rows, begins_at[segment] + slot - (ends - lengths)[segment]), padded


def _product(rows: Tensor, weights: Any, sizes: Tensor) -> Tensor:
    """Products of groups of rows with a matrix each: in one kernel where GPUs have it, which is in bf16."""
    autocast = torch.is_autocast_enabled(rows.device.type)
    if rows.is_cuda and (autocast or rows.dtype == torch.bfloat16):
        ends = torch.cumsum(sizes, dim=0, dtype=torch.int32)
        return torch._grouped_mm(rows.bfloat16(), weights.bfloat16().transpose(-2, -1), offs=ends)  # noqa: SLF001
    filled = int(sizes.sum())
    groups = rows[:filled].split(sizes.tolist())
    made = [group @ weight.T for group, weight in zip(groups, weights, strict=True)]
    # Slots behind the last group are nobody's.
    return torch.cat((*made, made[0].new_zeros(rows.shape[0] - filled, weights.shape[1])))


def _at(places: Tensor, made: Tensor, *, rows: int) -> Tensor:
    """Rows (R, H) at their places among so many, zeros elsewhere. `index_copy` would keep the rows for its backward."""
    placed = made.new_zeros(rows, made.shape[-1])
    placed[places] = made
    return placed


def _whole(tensor: Tensor) -> Tensor:
    """A replicated tensor's values, of whose gradient each tensor parallel rank computes a part of the sum."""
    return tensor.to_local(grad_placements=[Partial()]) if isinstance(tensor, DTensor) else tensor


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
