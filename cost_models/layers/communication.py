"""Communication inside one layer: tensor and sequence parallelism, context parallelism, expert dispatch. [C-10] [C-11] [C-12]

Every function returns the seconds that stay exposed after overlapping, in forward and backward, per layer and micro-batch.
Exposed time is never more than the link time of its own collectives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import EFA_DIRECT_BYTES_PER_S, PIPELINED_TP_EXPOSED, TP_BACKWARD_HIDDEN, WGRAD_OVERLAP
from cost_models.estimate import FREE, Estimate
from cost_models.hardware.groups import StrategyPlacements
from cost_models.job import Job
from cost_models.layers.casts import shard_bytes
from cost_models.layers.latent_communication import latent_s
from cost_models.layers.sparse_core import chosen_keys
from cost_models.specs.model import LayerKind, Moe
from cost_models.strategies.expert_spread import expected_places
from cost_models.strategies.fields import CpComm, MoeDispatcher
from cost_models.strategies.strategy import Codes, Floats, Strategies

ASYNC_TP_SINCE = "2022-01"
"""Month from which Megatron-LM runs backward collectives beside the weight-gradient product."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of one layer and micro-batch that a term adds to each pass."""

    forward: Floats
    backward: Floats
    tier: Codes


@dataclass(frozen=True, slots=True)
class Exchange(PassSeconds):
    """What the exchange of tokens between experts adds to each pass."""

    hidden: Floats
    """Seconds of both passes that run beside another micro-batch's computation, where there is one."""


def tp_comm(
    job: Job, kind: LayerKind, rows: Strategies, *, tokens: Floats, placements: StrategyPlacements, wgrad_s: Floats,
    dgrad_s: Floats,
) -> PassSeconds:  # fmt: skip
    """Exposed seconds of one layer's tensor-parallel collectives. [C-10] [O-1]

    Without sequence parallelism there is an all-reduce of T*h after attention and one after the MLP, and as many in backward.
    With it, an all-gather precedes and a reduce-scatter follows each block; in backward the saved input is gathered again unless
    the framework kept the gathered copy. Megatron's latent attention gathers other rows (`latent_communication`). A mixture layer
    without shared experts has only attention's pair.

    Args:
        job: model, cluster, training and prices.
        kind: kind of layer.
        rows: shape (U,), as all that follows.
        tokens: tokens of a micro-batch on a context-parallel rank.
        placements: groups of these rows.
        wgrad_s: seconds of the layer's weight gradients, which run beside a backward collective.
        dgrad_s: seconds of its data gradients, beside which saved shards are gathered again.
    """
    if not (rows.tp > 1).any():
        return _nothing(tokens)
    size = tokens * job.model.hidden_size * job.training.compute_bytes
    price = job.calibration.collective_s
    whole = FREE if rows.sequence_parallel.all() else price("all_reduce", size, placement=placements.tp)
    split = rows.sequence_parallel.any()
    each, each_gradient = shard_bytes(job, tokens / rows.tp)
    gathered, gathered_gradient = (tokens * job.model.hidden_size * width for width in (each, each_gradient))
    gather = price("all_gather", gathered, placement=placements.tp) if split else FREE
    gather_back = gather
    # Quantised gradients may travel in two layouts and then take longer than activations; elsewhere one price serves
    # both.
    if split and not np.array_equal(each, each_gradient):
        gather_back = price("all_gather", gathered_gradient, placement=placements.tp)
    scatter = price("reduce_scatter", size, placement=placements.tp) if split else FREE
    blocks = 1.0 if job.model.parallel_block else 2.0
    if kind.is_moe:
        blocks = 1.0 if job.model.moe is None or not job.model.moe.num_shared_experts else 2.0
    blocks -= 2.0 - kind.num_blocks
    pair, pair_back = gather.seconds + scatter.seconds, gather_back.seconds + scatter.seconds
    again = 0.0 if job.framework.keeps_gathered_norms else 1.0
    # PyTorch's functional collectives work along the first dimension; sequence shards lie along the second, so that
    # DTensor copies the whole tensor around every call (torch/distributed/_functional_collectives.py).
    copies = np.zeros_like(size)
    if job.framework.copies_around_gathers:
        copies = np.where(rows.overlap_tp_comm, 0.0, 2.0 * (size + gathered)) / job.calibration.copy_bytes_per_s.value
    split_forward, split_backward = blocks * pair, blocks * (pair_back + again * gather.seconds)
    if job.model.mla is not None and kind.attends and job.latent_down != "whole" and split:
        latent = latent_s(job, job.model.mla, tokens=tokens, tp=placements.tp)
        split_forward = split_forward - gather.seconds + latent.forward
        split_backward = split_backward - (scatter.seconds + again * gather.seconds) + latent.backward
    if job.model.indexer is not None and kind.attends:
        # The indexer's target adds up the heads of all tensor-parallel ranks: an fp32 value for each chosen key. [F-38]
        chosen = chosen_keys(job.model.indexer, job.training.attended_spans)
        target = price("all_reduce", tokens * chosen * 4.0, placement=placements.tp).seconds
        split_forward = split_forward + target
    forward = np.where(rows.sequence_parallel, split_forward, blocks * whole.seconds)
    backward = np.where(rows.sequence_parallel, split_backward, blocks * whole.seconds)
    # The collective of a data gradient needs nothing of the weight gradient, so the two run side by side, as do the second gather
    # of an input and the data gradient. What is hidden is bounded both by the collective's progress beside a product and by how
    # long that product runs; hence the maximum. A row-parallel product needs the whole gradient of its output at once: Megatron
    # gathers it before anything else can run, unless the gather is pipelined with the product.
    if job.framework.overlap_tp_backward and job.training.software_date >= ASYNC_TP_SINCE:
        waits = job.framework.tp_gathers_gradients_first & rows.sequence_parallel & ~rows.overlap_tp_comm
        first = np.where(waits, blocks * gather_back.seconds, 0.0)
        beside = backward - first
        products_s = wgrad_s + np.where(rows.sequence_parallel & (again > 0), dgrad_s, 0.0)
        hidden = first + np.maximum((1 - TP_BACKWARD_HIDDEN.value) * beside, beside - WGRAD_OVERLAP.value * products_s)
        backward = np.where(rows.sequence_parallel | (not job.framework.tp_overlap_needs_split), hidden, backward)
    pipelined = PIPELINED_TP_EXPOSED["symmetric_memory" if job.framework.copies_around_gathers else "userbuffers"].value
    exposed = np.where(rows.overlap_tp_comm, pipelined, 1.0)
    copies = np.where(rows.sequence_parallel, blocks * copies, 0.0)
    tier = np.where(rows.sequence_parallel, np.maximum(gather.tier, scatter.tier), whole.tier)
    return PassSeconds(forward * exposed + copies, backward * exposed + copies, _if_used(tier, rows.tp))


def cp_comm(
    job: Job, rows: Strategies, *, tokens: Floats, placements: StrategyPlacements, attention_s: tuple[Floats, Floats]
) -> PassSeconds:
    """Exposed seconds of exchanging one layer's keys and values over context-parallel ranks. [C-11]

    Ring (p2p): cp - 1 steps, each hidden behind one step of attention; in backward the gradients of keys and values travel along.
    All-to-all: queries, keys, values and the output change between sequence-sharded and head-sharded. All-gather: keys and values
    are gathered and their gradients reduce-scattered, with nothing to hide behind. Both levels (a2a+p2p): heads are traded among
    `cp_a2a_size` neighbours, whose groups form a ring.

    Args:
        job: model, cluster, training and prices.
        rows: shape (U,), as all that follows.
        tokens: tokens of a micro-batch on a context-parallel rank.
        placements: groups of these rows.
        attention_s: seconds of the attention core, forward and backward.
    """
    if not (rows.cp > 1).any():
        return _nothing(tokens)
    price = job.calibration.collective_s
    kv_bytes, swapped = exchanged_bytes(job, rows, tokens)
    steps = np.maximum(rows.cp - 1.0, 0.0)
    used = set(rows.cp_comm.tolist())
    hop = price("send_recv", kv_bytes, placement=placements.cp) if CpComm.P2P in used else FREE
    forward_attention, backward_attention = attention_s
    # The first step attends to the rank's own keys while the next ones arrive, so cp steps of attention hide cp - 1
    # exchanges. Backward moves keys and values as well as their gradients, twice as much.
    ring_forward = steps * np.maximum(hop.seconds - forward_attention / rows.cp, 0.0)
    ring_backward = steps * np.maximum(2.0 * hop.seconds - backward_attention / rows.cp, 0.0)
    a2a = price("all_to_all", swapped, placement=placements.cp) if CpComm.A2A in used else FREE
    by_gather = CpComm.ALLGATHER in used
    gather = price("all_gather", kv_bytes * rows.cp, placement=placements.cp) if by_gather else FREE
    scatter = price("reduce_scatter", kv_bytes * rows.cp, placement=placements.cp) if by_gather else FREE
    kinds: list[NDArray[np.bool_]] = [rows.cp_comm == CpComm.P2P, rows.cp_comm == CpComm.A2A]
    forward = np.select(kinds, [ring_forward, a2a.seconds], gather.seconds)
    backward = np.select(kinds, [ring_backward, a2a.seconds], gather.seconds + scatter.seconds)
    tier = np.select(kinds, [hop.tier, a2a.tier], np.maximum(gather.tier, scatter.tier)).astype(np.int8)
    if CpComm.A2A_P2P in used:
        both, levels = rows.cp_comm == CpComm.A2A_P2P, _two_levels(job, rows, tokens, placements, attention_s)
        forward, backward = np.where(both, levels.forward, forward), np.where(both, levels.backward, backward)
        tier = np.where(both, levels.tier, tier).astype(np.int8)
    return PassSeconds(forward, backward, _if_used(tier, rows.cp))


def _two_levels(
    job: Job, rows: Strategies, tokens: Floats, placements: StrategyPlacements, attention_s: tuple[Floats, Floats]
) -> PassSeconds:
    """Exposed seconds where heads are traded among neighbours and keys and values go around a ring of their groups. [C-11]

    A rank then has `cp_a2a_size` times the tokens and as many times fewer heads, so that a hop of the ring is as large as without.
    Transformer Engine saves the output behind its all-to-all, and trades it once more in backward, beside its gradient.
    """
    price = job.calibration.collective_s
    kv_bytes, swapped = exchanged_bytes(job, rows, tokens)
    model, ring = job.model, rows.cp / rows.cp_a2a_size
    value_width = model.mla.v_head_dim if model.mla is not None else model.q_size / model.num_attention_heads
    output = tokens * model.num_attention_heads * value_width / rows.tp * job.training.compute_bytes
    # Nothing runs beside the all-to-alls: attention needs all tokens of its heads before it begins, and the output projection all heads
    # of its tokens behind it.
    trade = price("all_to_all", swapped, placement=placements.cp_a2a)
    trade_back = price("all_to_all", swapped + output, placement=placements.cp_a2a)
    hop = price("send_recv", kv_bytes, placement=placements.cp_ring)
    steps, (attention_forward, attention_backward) = np.maximum(ring - 1.0, 0.0), attention_s
    return PassSeconds(
        trade.seconds + steps * np.maximum(hop.seconds - attention_forward / ring, 0.0),
        trade_back.seconds + steps * np.maximum(2.0 * hop.seconds - attention_backward / ring, 0.0),
        np.maximum(trade.tier, hop.tier).astype(np.int8),
    )


def exchanged_bytes(job: Job, rows: Strategies, tokens: Floats) -> tuple[Floats, Floats]:
    """Bytes of one rank's keys and values, and of all that changes places between sequence- and head-sharded, shape (U,) each.
    [C-11]

    Args:
        job: model and types.
        rows: shape (U,).
        tokens: tokens of a micro-batch on a context-parallel rank.
    """
    model, e = job.model, job.training.compute_bytes
    if model.mla is not None and model.mla.indexer is not None:
        # Keys and values are one latent with the rotated part, and the indexer has one key; queries stay where they are.
        shared = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim + model.mla.indexer.head_dim
        return tokens * shared * e, tokens * shared * e
    if model.mla is not None:
        kv_width = (
            model.num_attention_heads * (model.q_size / model.num_attention_heads + model.mla.v_head_dim) / rows.tp
        )
        out_width = model.num_attention_heads * model.mla.v_head_dim / rows.tp
    else:
        kv_width = 2.0 * model.kv_size / np.minimum(rows.tp, model.num_key_value_heads)
        out_width = model.q_size / rows.tp
    return tokens * kv_width * e, tokens * (model.q_size / rows.tp + kv_width + out_width) * e


def ep_comm(
    job: Job, kind: LayerKind, rows: Strategies, *, tokens: Floats, placements: StrategyPlacements, expert_s: Floats
) -> Exchange:
    """Exposed seconds of dispatching and combining the tokens of one mixture layer. [C-12]

    All-to-all: every rank sends each of its tokens/tp tokens top_k times and receives the results; backward does the same.
    All-gather: every rank of the group sees all tokens, and the results are reduce-scattered. Tensor-parallel experts gather
    their group's rows first. Flex sends a token once to each node and from there to ranks (`_flex_s`), expert tensor-parallel
    ranks included. With `overlap.moe_all_to_all` the expert work of another micro-batch hides the exchange, where there is one
    beside it (`step.pipeline.unpaired_fraction`).

    Args:
        job: model, cluster, training and prices.
        kind: kind of layer; a dense one costs nothing here.
        rows: shape (U,), as all that follows.
        tokens: tokens of a micro-batch on a context-parallel rank.
        placements: groups of these rows.
        expert_s: seconds of the routed experts' forward.
    """
    if not kind.is_moe or job.model.moe is None or not (rows.ep * rows.etp > 1).any():
        none = _nothing(tokens)
        return Exchange(none.forward, none.backward, none.tier, none.forward)
    price, width = job.calibration.collective_s, job.model.hidden_size * job.training.compute_bytes
    local = tokens / rows.tp
    routed = local * job.routed_copies * width
    a2a = price("all_to_all", routed, placement=placements.ep)
    exchange_s = np.maximum(a2a.seconds, _direct_s(job, routed, placements))
    whole = local * rows.ep * width
    gather = price("all_gather", whole, placement=placements.ep)
    scatter = price("reduce_scatter", whole, placement=placements.ep)
    spread = routed * rows.etp
    etp_gather = price("all_gather", spread, placement=placements.etp)
    etp_scatter = price("reduce_scatter", spread, placement=placements.etp)
    by_gather, by_node = (rows.moe_dispatcher == code for code in (MoeDispatcher.ALLGATHER, MoeDispatcher.FLEX))
    one_way = np.where(by_gather, gather.seconds + scatter.seconds, 2.0 * exchange_s)
    one_way = one_way + etp_gather.seconds + etp_scatter.seconds
    tier = np.where(by_gather, gather.tier, a2a.tier).astype(np.int8)
    tier = np.maximum(_if_used(tier, rows.ep), _if_used(etp_gather.tier, rows.etp))
    if job.framework.splits_experts_at_loading and ((rows.ep > 1) & (rows.tp > 1)).any():
        # Each pass gathers once: forward the results of the ranks' shares, backward the gradients of their inputs.
        whole_again = price("all_gather", tokens * width, placement=placements.tp)
        one_way = one_way + np.where(rows.ep > 1, whole_again.seconds, 0.0)
        tier = np.maximum(tier, _if_used(whole_again.tier, np.where(rows.ep > 1, rows.tp, 1.0)))
    if by_node.any():
        each = _flex_s(job, job.model.moe, rows, token_bytes=local * width, placements=placements)
        one_way = np.where(by_node, 2.0 * each.seconds, one_way)
        tier = np.where(by_node, each.tier, tier).astype(np.int8)
    hidden = np.where(rows.overlap_moe_all_to_all, expert_s, 0.0)
    forward = np.maximum(one_way - hidden, 0.0)
    # The experts' backward does data and weight gradients, twice the work of their forward, and hides that much more.
    backward = np.maximum(one_way - 2.0 * hidden, 0.0)
    return Exchange(forward, backward, tier, hidden=2.0 * one_way - forward - backward)


def _direct_s(job: Job, routed: Floats, placements: StrategyPlacements) -> Floats:
    """Seconds that NCCL's messages from each rank to each other take at least to leave their node, shape (U,). [C-3]"""
    group = placements.ep
    if job.cluster.network.fabric != "efa":
        return np.zeros_like(routed)
    return np.asarray(routed * (1.0 - group.per_island / group.ranks) / EFA_DIRECT_BYTES_PER_S.value)


def _flex_s(job: Job, moe: Moe, rows: Strategies, *, token_bytes: Floats, placements: StrategyPlacements) -> Estimate:
    """Seconds of one dispatch, or one combine, by kernels that send a token once to each node that needs it. [C-18]

        max(all-to-all of T m h e over the nodes, all-to-all of T r h e inside one)

    m is the expected number of different nodes (NVLink domains, where these are larger) and r that of different ranks that hold
    one of a token's experts. Both legs carry bf16 in training, since the frameworks pass activations on as they are.

    Args:
        job: prices of the links.
        moe: how many experts a token has, out of which.
        rows: shape (N,).
        token_bytes: bytes of all tokens that a rank dispatches, each counted once, shape (N,).
        placements: groups of these rows.
    """
    price, group = job.calibration.collective_s, placements.etp_ep
    ranks = expected_places(moe, rows.ep) * rows.etp
    inside = price("all_to_all", token_bytes * ranks, placement=group.inside_islands())
    if not (group.islands > 1).any():
        return inside
    rails = group.one_per_island()
    places = np.minimum(group.islands, rows.ep)  # an expert whose ranks span several nodes needs its tokens on each
    islands = expected_places(moe, places) * group.islands / places
    wire = price("all_to_all", token_bytes * islands, placement=rails)
    # The two legs are assumed to run side by side (C-18), so that the longer one counts.
    return Estimate(np.maximum(inside.seconds, wire.seconds), np.maximum(inside.tier, wire.tier))


def _nothing(tokens: Floats) -> PassSeconds:
    zero = np.zeros_like(tokens)
    return PassSeconds(zero, zero, np.zeros(len(tokens), np.int8))


def _if_used(tier: NDArray[np.int8], degree: Floats) -> Codes:
    """The tier where the group has more than one member; a group of one communicates nothing and is as good as measured."""
    return np.where(degree > 1, tier, 0).astype(np.int8)
