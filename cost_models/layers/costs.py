"""Seconds of one decoder layer of each kind per micro-batch, as a small dense table over the axes that it depends on.

The table is computed once per batch and gathered; everything else in a step is a sum over layers of it. Array suffixes: J
layer kinds, P parts (LAYER_PARTS), M modules (RECOMPUTE_MODULES), U distinct combinations of LAYER_AXES in the batch, G matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import ELEMENTWISE_SHARE, LATENT_UP_SHARE
from cost_models.hardware.groups import StrategyPlacements, groups, world_key
from cost_models.job import Job
from cost_models.layers.adapter_costs import adapted_s
from cost_models.layers.attention_core import LayerAttention, layer_attention_s
from cost_models.layers.autocast import autocast_s, casts_by_stage
from cost_models.layers.communication import PassSeconds, ep_comm, tp_comm
from cost_models.layers.elementwise import build_of, elementwise_s, row_passes
from cost_models.layers.host import host_waits_s, launch_cost, launch_s, reads_routing
from cost_models.layers.recurrent_communication import layer_cp_comm
from cost_models.layers.recurrent_core import layer_core_s
from cost_models.layers.selective import repeated_copies, separate_norms
from cost_models.layers.shapes import Gemm, layer_gemms
from cost_models.layers.trained import frozen_modules, layers_run_backward
from cost_models.specs.model import LayerKind
from cost_models.strategies.fields import RECOMPUTE_MODULES
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Codes, Floats, Strategies
from cost_models.strategies.tensors import Distinct, combinations_of, distinct, summed

LAYER_AXES = (
    "tp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel", "cp_comm", "moe_dispatcher", "overlap_tp_comm",
    "overlap_moe_all_to_all",
)  # fmt: skip
_SHAPE_AXES = ("tp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel")
"""What the shapes of a layer's matrix products depend on."""
LAYER_PARTS = ("gemm", "attention", "elementwise", "launch", "tp_comm", "cp_comm", "ep_comm")
"""Parts of a layer's own forward and backward. Each is a time term of the same name."""
_WAITS = LAYER_PARTS.index("launch")


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Seconds per layer and micro-batch."""

    cases: Distinct
    parts_JPU: Floats
    """Forward and backward together, by LAYER_PARTS."""
    forward_JU: Floats
    """The device's part of forward. Waiting for the host is left out, since both passes share it."""
    again_JU: Floats
    """What full recomputation of the layer adds: its forward, or what the host needs to launch it again if that
    takes longer."""
    selective_JU: Floats
    """The work that selective recomputation repeats where it goes by the framework's rule."""
    modules_JMU: Floats
    """The work that it repeats for each module that is named."""
    sharded_waits_JU: Floats
    """Additional waiting for the host where parameters are gathered layer by layer."""
    sharded_again_JU: Floats
    """What gathering layer by layer changes of `again_JU`."""
    hooked_waits_JU: Floats
    """Additional waiting for the host where hooks reduce gradients of parameters that stay whole."""
    hooked_again_JU: Floats
    """What these hooks change of `again_JU`."""
    alone_JU: Floats
    """What the layer takes longer where no other micro-batch's computation hides its exchange between experts."""
    tiers_PU: Codes
    """Worst tier over the layer kinds, by LAYER_PARTS."""

    @cached_property
    def whole(self) -> Floats:
        """Seconds of forward and backward, all parts together, shape (J, U)."""
        return np.stack([summed(parts_PU) for parts_PU in self.parts_JPU])


def layer_costs(job: Job, strategies: Strategies, *, worlds: Floats | None = None) -> LayerCosts:
    """The table of layer costs of a batch; `worlds` is its `world_key`, where the caller has it."""
    # Groups that straddle a node or domain sit differently when fewer GPUs are in use, so the world counts as an
    # axis, but only where it changes a placement: `world_key` is the same elsewhere, which keeps the table small.
    axes = (*LAYER_AXES, "zero") if casts_by_stage(job) else LAYER_AXES
    # Few batches have a hierarchy, and the others shall not look for one.
    axes = (*axes, "cp_a2a_size") if strategies.uses("cp_a2a_size") else axes
    cases = combinations_of(strategies, axes, also=world_key(strategies, job.cluster) if worlds is None else worlds)
    assert cases.also is not None
    return LayerCosts(
        cases,
        *kept_columns(job, "layers", cases.rows, axes, lambda rows, _: _columns(job, rows), also=[cases.also]),
    )


def _columns(job: Job, rows: Strategies) -> Columns:
    """The arrays of `LayerCosts` for these combinations, in the order of its fields."""
    placements = groups(rows, job.cluster)
    layers = [_one_kind(job, kind, rows, placements) for kind in job.model.distinct_kinds]
    return (
        np.stack([np.stack([f + b for f, b in zip(x.forward, x.backward, strict=True)]) for x in layers]),
        np.stack([x.device_forward for x in layers]),
        np.stack([x.again for x in layers]),
        np.stack([x.selective for x in layers]),
        np.stack([x.modules for x in layers]),
        np.stack([x.sharded[0] for x in layers]),
        np.stack([x.sharded[1] for x in layers]),
        np.stack([x.hooked[0] for x in layers]),
        np.stack([x.hooked[1] for x in layers]),
        np.stack([x.alone for x in layers]),
        np.max([np.stack(x.tiers) for x in layers], axis=0).astype(np.int8),
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    forward: list[Floats]
    backward: list[Floats]
    tiers: list[Codes]
    selective: Floats
    modules: Floats
    again: Floats
    device_forward: Floats
    sharded: tuple[Floats, Floats]
    hooked: tuple[Floats, Floats]
    alone: Floats


def _one_kind(job: Job, kind: LayerKind, rows: Strategies, placements: StrategyPlacements) -> _Layer:
    """Costs of one layer of this kind for these combinations of axes."""
    tokens = rows.rank_tokens(job.training.seq_length)
    products = _products(job, kind, rows)
    matmul = products.seconds
    attention = layer_attention_s(job, kind, rows)
    element_forward, element_backward = elementwise_s(
        job,
        kind,
        tokens=tokens,
        tp=rows.tp,
        sequence_parallel=rows.sequence_parallel,
        passes=row_passes(job, kind, rows),
    )
    cast = autocast_s(job, kind, rows, tokens=tokens)
    if cast is not None:
        element_forward, element_backward = element_forward + cast[0], element_backward + cast[1]
    adapted = adapted_s(job, kind, rows, tokens=tokens)
    if adapted is not None:
        element_forward, element_backward = element_forward + adapted.forward_s, element_backward + adapted.backward_s
    tp = tp_comm(job, kind, rows, tokens=tokens, placements=placements, wgrad_s=matmul.wgrad_s, dgrad_s=matmul.dgrad_s)
    cp = layer_cp_comm(
        job, kind, rows, tokens=tokens, placements=placements, attention_s=(attention.forward_s, attention.backward_s)
    )
    ep = ep_comm(job, kind, rows, tokens=tokens, placements=placements, expert_s=matmul.routed_forward_s)
    # What Megatron repeats of attention's core does not concern a recurrence, which is priced beside it.
    mixing = attention if not kind.recurs else attention.with_more(layer_core_s(job, rows))
    forward = [matmul.forward_s, mixing.forward_s, element_forward, tp.forward, cp.forward, ep.forward]
    backward = [
        matmul.dgrad_s + matmul.wgrad_s, mixing.backward_s, element_backward, tp.backward, cp.backward, ep.backward
    ]  # fmt: skip
    device = summed(forward), summed(backward)
    reads = reads_routing(job, kind, rows)
    waits, again = host_waits_s(launch_s(job, kind, rows), device, reads=reads)
    whole = device[0] + device[1] + waits
    # Of what is no longer hidden, a layer that waits for its host feels only what exceeds that wait.
    alone = np.maximum(device[0] + device[1] + ep.hidden - whole, 0.0)
    sharded, hooked = (
        host_waits_s(launch_s(job, kind, rows, around=each), device, reads=reads) for each in ("sharded", "hooked")
    )
    # Waiting for the host belongs to neither pass. It is booked under forward, in its place among LAYER_PARTS.
    forward.insert(_WAITS, waits)
    backward.insert(_WAITS, np.zeros_like(waits))
    selective = _selective_s(job, rows, products, attention=attention, elementwise=element_forward, tp=tp)
    modules = _modules_s(job, kind, matmul=matmul, attention=attention, elementwise=element_forward, exchange=ep)
    bandwidth = np.full(len(rows), job.calibration.memory_bytes_per_s_effective.tier, np.int8)
    host = np.full(len(rows), launch_cost(job).tier, np.int8)
    if job.framework.wraps_layers:
        wrapped = job.calibration.wrapped_layer_ratio("sequence_parallel", compiled=job.training.compile)
        host = np.where(rows.tp > 1, np.maximum(host, wrapped.tier), host)
    tiers = [matmul.tier, mixing.tier, bandwidth, host, tp.tier, cp.tier, ep.tier]
    found = _Layer(
        forward,
        backward,
        tiers,
        selective,
        modules,
        again,
        device[0],
        (sharded[0] - waits, sharded[1] - again),
        (hooked[0] - waits, hooked[1] - again),
        alone,
    )
    return found if layers_run_backward(job.model, job.training) else _forward_alone(job, kind, rows, found)


def _forward_alone(job: Job, kind: LayerKind, rows: Strategies, layer: _Layer) -> _Layer:
    """The costs of a layer through which no gradient flows: nothing runs backward, nothing is repeated. [F-13]"""
    nothing = np.zeros(len(rows))
    waits, sharded, hooked = (
        np.maximum(launch_s(job, kind, rows, around=each)[0] - layer.device_forward, 0.0)
        for each in ("nothing", "sharded", "hooked")
    )
    forward = [*layer.forward[:_WAITS], waits, *layer.forward[_WAITS + 1 :]]
    return _Layer(
        forward, [nothing] * len(forward), layer.tiers, nothing, np.zeros_like(layer.modules), nothing,
        layer.device_forward, (sharded - waits, nothing), (hooked - waits, nothing), nothing,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MatmulSeconds:
    """Seconds of a layer's matrix products, shape (U,) each."""

    forward_s: Floats
    dgrad_s: Floats
    wgrad_s: Floats
    routed_forward_s: Floats
    """The routed experts' part of forward."""
    by_module_s: dict[str, Floats]
    """Forward seconds by the module's name in recomputation lists."""
    each_forward_GU: Floats
    """Forward seconds of each product with all its launches."""
    tier: Codes

    def at(self, index: NDArray[np.int64]) -> MatmulSeconds:
        """The seconds of the combinations at these positions."""
        return MatmulSeconds(
            self.forward_s[index],
            self.dgrad_s[index],
            self.wgrad_s[index],
            self.routed_forward_s[index],
            {name: seconds[index] for name, seconds in self.by_module_s.items()},
            self.each_forward_GU[:, index],
            self.tier[index],
        )


@dataclass(frozen=True, slots=True)
class _Products:
    """A layer's matrix products."""

    seconds: MatmulSeconds
    repeated_GU: Floats
    """Share of each product's launches that PyTorch's policy by operator repeats."""


def _products(job: Job, kind: LayerKind, rows: Strategies) -> _Products:
    """The matrix products of one layer of this kind for these combinations of axes."""
    # How tokens are exchanged changes no product, so rows that differ in nothing else share their pricing.
    shapes = distinct(rows, _SHAPE_AXES)
    some = shapes.rows
    sp = np.where(some.sequence_parallel, some.tp, 1.0)
    tokens = some.rank_tokens(job.training.seq_length)
    gemms = layer_gemms(job, kind, tokens=tokens, tp=some.tp, ep=some.ep, etp=some.etp, sp=sp)
    shares = [times / gemm.repeats for gemm, times in zip(gemms, repeated_copies(gemms), strict=True)]
    return _Products(matmul_s(job, gemms).at(shapes.inverse), np.stack(shares)[:, shapes.inverse])


def matmul_s(job: Job, gemms: list[Gemm], *, precision: str | None = None) -> MatmulSeconds:
    """Seconds of all three passes of these G products. [F-1]

    Args:
        job: model, training and prices.
        gemms: the products, shapes of (U,).
        precision: that of the products; the job's own by default. Router weights stay in bf16 under fp8 and nvfp4.
    """
    chosen = precision or job.training.precision
    passes_3GU = np.zeros((3, len(gemms), len(gemms[0].m)))
    tier = np.zeros(len(gemms[0].m), np.int8)
    # Frameworks keep the router in higher precision: small errors of its scores would change which experts are
    # chosen.
    exact = np.array([gemm.module == "router" and chosen in ("fp8", "nvfp4") for gemm in gemms])
    for which, name in ((~exact, chosen), (exact, "bf16")):
        some = [gemm for gemm, mine in zip(gemms, which, strict=True) if mine]
        if some:
            m, n, k, batch, repeats = (
                np.array([getattr(gemm, axis) for gemm in some]) for axis in ("m", "n", "k", "batch", "repeats")
            )
            estimate = job.calibration.gemm_passes_s(m, n, k, precision=name, batch=batch)
            passes_3GU[:, which] = repeats * estimate.seconds
            tier = np.maximum(tier, estimate.tier.max(axis=(0, 1)))
    frozen = frozen_modules(job.model, job.training)
    if frozen:  # the data gradient is still needed by what lies in front
        passes_3GU[2, np.array([gemm.module in frozen for gemm in gemms])] = 0.0
    forward_GU = passes_3GU[0]
    by_module: dict[str, Floats] = {}
    for gemm, seconds in zip(gemms, forward_GU, strict=True):
        by_module[gemm.module] = by_module.get(gemm.module, 0.0) + seconds
    forward, dgrad, wgrad = (summed(each_GU) for each_GU in passes_3GU)
    routed = by_module.get("moe", np.zeros_like(forward))
    return MatmulSeconds(forward, dgrad, wgrad, routed, by_module, forward_GU, tier)


def _selective_s(
    job: Job,
    rows: Strategies,
    products: _Products,
    *,
    attention: LayerAttention,
    elementwise: Floats,
    tp: PassSeconds,
) -> Floats:
    """Seconds of forward work that `recompute: selective` repeats in one layer by the framework's rule (`frameworks.facts`), where
    no modules are named; shape (U,). [F-8]
    """
    framework = job.framework
    by_rule = framework.selective_repeats_attention * attention.forward_s
    by_rule = by_rule + framework.selective_repeats_elementwise * elementwise
    if framework.selective_alternates:
        for share, forward_s in zip(products.repeated_GU, products.seconds.each_forward_GU, strict=True):
            by_rule = by_rule + share * forward_s
        # The policy saves the outputs of reduce-scatters and repeats the all-gathers: half of forward's collectives.
        by_rule = by_rule + np.where(rows.sequence_parallel, 0.5 * tp.forward, 0.0)
    return by_rule


def _modules_s(
    job: Job,
    kind: LayerKind,
    *,
    matmul: MatmulSeconds,
    attention: LayerAttention,
    elementwise: Floats,
    exchange: PassSeconds,
) -> Floats:
    """Seconds of forward work that each of Megatron's RECOMPUTE_MODULES repeats in one layer, shape (M, U). [F-8]"""
    none = np.zeros_like(elementwise)
    fused = build_of(job).norm
    norms, activation = (ELEMENTWISE_SHARE[part, fused].value for part in ("norms", "activation"))
    routed, shared = (matmul.by_module_s.get(name, none) for name in ("moe", "shared_experts"))
    modules = {
        "core_attn": attention.forward_s,
        "mlp": matmul.by_module_s.get("mlp", none) + activation * elementwise,
        # Only norms that are modules of their own can be repeated alone: none, one or both of a layer's two.
        "layernorm": 0.5 * separate_norms(job, kind) * norms * elementwise,
        # The whole mixture layer runs again: shared experts, dispatch and combine included.
        "moe": routed + shared + activation * elementwise + exchange.forward if kind.is_moe else none,
        "moe_act": activation * elementwise,
        "shared_experts": shared,
        "mla_up_proj": LATENT_UP_SHARE.value * matmul.by_module_s.get("attention", none) if job.model.mla else none,
    }
    return np.stack([modules[name] for name in RECOMPUTE_MODULES])
