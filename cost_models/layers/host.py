"""Seconds of the host for one layer: its launches, what stands around it, and how long the device waits for them. [F-4]"""

from __future__ import annotations

from typing import Final

import numpy as np

from cost_models.constants import CHECKPOINT_HOST_S, MEGATRON_LOCAL_OPS, TP_CALL_OPS, TP_CALLS, Constant
from cost_models.hardware.calibrated import HostMode, Scalar, Wrapper
from cost_models.job import Job
from cost_models.layers.adapter_costs import adapter_host_s, adapter_tensors
from cost_models.layers.expert_loop import loop_launches_s
from cost_models.layers.hf_modules import LLAMA_LAYER_TENSORS, host_ratio
from cost_models.layers.host_classes import Around, measured_layer
from cost_models.layers.shapes import parameter_tensors
from cost_models.specs.model import LayerKind
from cost_models.strategies.fields import MoeDispatcher
from cost_models.strategies.strategy import Bools, Floats, Strategies
from cost_models.terms import Tier

FSDP1_UNIT: Final = Constant(
    0.6, "1", 0.4, 1.0,
    "host time of FSDP1's unit around one tensor over that of FSDP2's around a layer: 62 and 64 ms a layer of 15 units with full "
    "recomputation, in the two runs that have them (data/measured_h200/lora_runs.jsonl)",
)  # fmt: skip

_PLAIN: Final = LayerKind(is_moe=False, window=None)

FUSED_ROUTING_OPS: Final = Constant(
    0.46, "1", 0.35, 0.7,
    "operators that experts add to a layer with router and permutation fused, over those without: both parts take 0.68 of what experts "
    "add to forward (data/measured_h200, mixture_host) and issue a fifth of the kernels; not measured",
)  # fmt: skip


def launch_cost(job: Job) -> Scalar:
    """Host seconds per kernel launch, and their tier, in this job's mode: eager, compiled, or captured in CUDA graphs."""
    mode, ratio, looped = host_mode(job), job.framework.host_step_ratio, job.calibration.looped_op_s
    if ratio is not None and mode == "eager":
        return Scalar(looped.value * ratio, max(looped.tier, Tier.INTERPOLATED))
    return job.calibration.host_op_s(mode)


def host_mode(job: Job) -> HostMode:
    """How this job's operations are issued."""
    return "graph" if job.training.cuda_graphs else "compiled" if job.training.compile else "eager"


def reads_routing(job: Job, kind: LayerKind, rows: Strategies) -> Bools | bool:
    """Whether the host waits in this layer's forward for what the router decided; shape (U,) where rows differ in it. [F-4]"""
    if not kind.is_moe or job.training.cuda_graphs:
        return False
    if job.framework.splits_experts_at_loading:
        # transformers/distributed/expert_parallel.py (AllToAllEP._dispatch_tokens): the split sizes become lists of the host.
        # The grouped products of experts that a rank has to itself take their offsets from the device.
        return np.asarray(rows.ep > 1)
    return job.framework.host_reads_routing


def host_waits_s(
    host: tuple[Floats, Floats], device: tuple[Floats, Floats], *, reads: Bools | bool = False
) -> tuple[Floats, Floats]:
    """Seconds that a layer waits for its host, and seconds that repeating its forward adds, shape (U,) each. [F-4] [F-8]

    The host runs ahead from forward into backward, so what it lacks is missed once, over both passes together. Where it has to read
    a result of the layer, it starts the forward's second part when the first is done, and has no lead to lose.

    Args:
        host: seconds to launch forward and backward.
        device: seconds that the device works in forward and backward.
        reads: whether the host waits for a result in forward.
    """
    if not isinstance(reads, bool):
        waiting, leading = (host_waits_s(host, device, reads=each) for each in (True, False))
        return np.where(reads, waiting[0], leading[0]), np.where(reads, waiting[1], leading[1])
    busy = device[0] + device[1]
    if reads:
        forward, backward = np.maximum(host[0], device[0]), np.maximum(host[1], device[1])
        again = np.maximum(host[0] + CHECKPOINT_HOST_S.value, device[0])
        return forward + backward - busy, again
    waits = np.maximum(host[0] + host[1] - busy, 0.0)
    # A recomputed layer launches its forward twice and its backward once; the slower of host and device sets the
    # pace. What the plain layer takes is subtracted, so that a layer that already waits pays only for what is added.
    repeated = np.maximum(2 * host[0] + CHECKPOINT_HOST_S.value + host[1], busy + device[0])
    return waits, repeated - (busy + waits)


def launch_s(job: Job, kind: LayerKind, rows: Strategies, *, around: Around = "nothing") -> tuple[Floats, Floats]:
    """Host seconds to launch one layer's kernels in forward and backward, shape (U,) each. [F-4]

    Args:
        job: model, training and prices.
        kind: kind of layer.
        rows: shape (U,).
        around: what stands around the layer for data parallelism.
    """
    extra = _expert_kernels(job, kind, rows)
    each = launch_cost(job).value
    # Megatron wraps each collective in an autograd function with a buffer and a wait; elsewhere it is one operator.
    call_ops = TP_CALL_OPS.value if job.framework.wraps_tp_calls else 1.0
    call_s = (call_ops - 1.0) * each + job.calibration.collective_call_s(host_mode(job)).value
    if job.framework.wraps_layers and not job.training.cuda_graphs:
        call_s = 0.0  # the layers that DTensor's host time was measured with made their calls
    passes = zip(_dense_s(job, kind, rows, around=around), extra, _calls(job, kind, rows), strict=True)
    forward, backward = (np.asarray(dense + more * each + calls * call_s) for dense, more, calls in passes)
    adapted = adapter_host_s(job, kind, op_s=each)
    if adapted is not None:
        forward, backward = forward + adapted[0], backward + adapted[1]
    if not kind.is_moe:
        return forward, backward
    loop = loop_launches_s(job, rows.ep, op_s=each)
    return forward + loop.forward, backward + loop.backward


def _dense_s(job: Job, kind: LayerKind, rows: Strategies, *, around: Around) -> tuple[Floats, Floats]:
    """Host seconds of a dense layer's forward and backward with what stands around it, shape (U,) each. [F-4]

    A layer of one block has half of them, and a recurrent mixer as many as attention, which was not measured.
    """
    if not kind.is_plain:
        forward, backward = _dense_s(job, _PLAIN, rows, around=around)
        share = 0.5 * (float(kind.attends) + float(kind.recurs) + float(kind.has_mlp))
        return share * forward, share * backward
    each, kernels, own = launch_cost(job).value, kernels_per_layer(job), host_ratio(job)
    measured = measured_layer(job, around=around)
    if measured is None:
        wrapped = _wrapper_s(job, kind, rows, around=around)
        # What stands around the layer does not grow with its operators.
        forward, backward = (np.asarray(count * (own * each + wrapped)) for count in kernels)
        return forward, backward
    bare = measured_layer(job, around="nothing")
    plain = (kernels[0] * each, kernels[1] * each) if bare is None else (bare.forward_s, bare.backward_s)
    split = _split_ratio(job, rows) * job.calibration.looped_op_s.value
    # The measured layer is a Llama layer. What this one has more of, it has inside of what stands around it.
    passes = zip((measured.forward_s, measured.backward_s), plain, kernels, strict=True)
    forward, backward = (np.asarray(whole + (own - 1.0) * alone + count * split) for whole, alone, count in passes)
    return forward, backward


def kernels_per_layer(job: Job) -> tuple[float, float]:
    """Number of operators that the host issues for a plain dense layer, in forward and in backward. [F-4]"""
    if job.has_core_modules:
        return MEGATRON_LOCAL_OPS["forward"].value, MEGATRON_LOCAL_OPS["backward"].value
    return job.framework.kernels_forward, job.framework.kernels_backward


def _expert_kernels(job: Job, kind: LayerKind, rows: Strategies) -> tuple[Floats, Floats]:
    """Launches that router, dispatch and experts add to one layer's forward and backward, shape (U,) each. [F-4]"""
    if not kind.is_moe:
        return np.zeros(len(rows)), np.zeros(len(rows))
    # What ranks that share experts add are the splits of an all-to-all and their copy to the host, which flex's kernels need not.
    # Where the width of an expert is split like that of any other product, etp adds no exchange.
    sharing = rows.ep if job.framework.splits_experts_at_loading else rows.ep * rows.etp
    splits = (sharing > 1) & (rows.moe_dispatcher != MoeDispatcher.FLEX)
    shared = splits.astype(np.float64)
    own, exchange = job.framework.moe_extra_kernels, job.framework.exchange_kernels
    left = FUSED_ROUTING_OPS.value if job.fuses_routing else 1.0
    return left * own[0] + shared * exchange[0], left * own[1] + shared * exchange[1]


def _calls(job: Job, kind: LayerKind, rows: Strategies) -> tuple[Floats, Floats]:
    """Number of tensor parallelism's collective calls in one layer's forward and backward, shape (U,) each. [F-4]"""
    moe = job.model.moe
    # Routed experts exchange tokens instead; one block of the layer is left.
    blocks = 0.5 if kind.is_moe and moe is not None and not moe.num_shared_experts else 1.0
    blocks -= 1.0 - 0.5 * kind.num_blocks
    whole, split = np.where(rows.tp > 1, blocks, 0.0), rows.sequence_parallel
    forward = whole * np.where(split, TP_CALLS["forward_sp"].value, TP_CALLS["forward"].value)
    return forward, whole * np.where(split, TP_CALLS["backward_sp"].value, TP_CALLS["forward"].value)


def _zero3_ratio(job: Job, kind: LayerKind) -> float:
    """Host time of a layer under stage 3's hooks over that of a plain one, which grows with the tensors they are around. [F-4]"""
    tensors = (parameter_tensors(job, kind) + adapter_tensors(job, kind)) / LLAMA_LAYER_TENSORS.value
    return 1.0 + (job.framework.zero3_host_ratio - 1.0) * tensors


def _units(job: Job, kind: LayerKind) -> float:
    """FSDP's units around a layer, in host time of FSDP2's: one, and more where only FSDP1 can shard the base. [F-13]

    fully_shard cannot take bitsandbytes' weights apart. Under FSDP1 all weights of a unit are trained or none, so that peft's policy
    (peft/utils/other.py, fsdp_auto_wrap_policy) wraps every trained module alone.
    """
    adapter = job.training.adapter
    alone = adapter is not None and adapter.quantized_base != "none" and job.framework.wraps_layers
    return 1.0 + alone * FSDP1_UNIT.value * adapter_tensors(job, kind)


def _wrapper_s(job: Job, kind: LayerKind, rows: Strategies, *, around: Around) -> Floats:
    """Host seconds that FSDP2, DTensor and hooks add for each kernel of the plain layer, shape (U,). [F-4]

    They were measured in loops and are taken as such: the factor from a loop to a step was not measured for wrapped layers.
    """
    if job.training.cuda_graphs:
        return np.zeros(len(rows))
    facts, ratio, compiled = job.framework, job.calibration.wrapped_layer_ratio, job.training.compile
    added = np.full(len(rows), facts.hooked_host_ratio - 1.0 if around == "hooked" else 0.0)
    if around == "sharded":
        sharded = ratio("sharded", compiled=compiled).value if facts.wraps_layers else _zero3_ratio(job, kind)
        added += (sharded - 1.0) * _units(job, kind)
    return np.asarray((added + _split_ratio(job, rows)) * job.calibration.looped_op_s.value)


def _split_ratio(job: Job, rows: Strategies) -> Floats:
    """What DTensor adds to a plain layer's host time, over that time, shape (U,). [F-4]"""
    if not job.framework.wraps_layers:
        return np.zeros(len(rows))
    kinds: tuple[Wrapper, Wrapper] = ("tensor_parallel", "sequence_parallel")
    whole, split = (
        job.calibration.wrapped_layer_ratio(each, compiled=job.training.compile).value - 1.0 for each in kinds
    )
    return np.where(rows.tp > 1, np.where(rows.sequence_parallel, split, whole), 0.0)
