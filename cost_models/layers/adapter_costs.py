"""Seconds and launches that adapters add to a layer: thin products, sums, casts, and a quantised base's weights made wide again. [F-13]

A product with an inner or outer width of a few dozen reads and writes wide tensors and computes next to nothing, so that its time is
bytes over bandwidth. All of it is counted with the layer's elementwise kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.constants import ELEMENTWISE_KERNEL_S, Constant
from cost_models.frameworks import memory_traits
from cost_models.job import Job
from cost_models.layers.hf_modules import CHAIN_SHARE
from cost_models.layers.linears import layer_linears, names_for
from cost_models.layers.trained import adapted_linears
from cost_models.specs.model import LayerKind
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats, Strategies

_OPERATORS: Final = {
    "forward": Constant(
        7.0, "ops", 5.0, 12.0,
        "peft's modules, two products, scaling, sum: 64-token steps of LoRA on seven modules take 5.7 ms a layer and on four 4.1, over a "
        "profile's operator of a loop (Llama-3.1-8B, H200, data/measured_h200/lora_runs.jsonl); torch counts 10 of a layer's 77",
    ),
    "backward": Constant(
        11.0, "ops", 8.0, 18.0,
        "the same: four products, scaling, sum of two data gradients, two accumulations; torch counts 20 of a layer's 142",
    ),
    "frozen": Constant(3.0, "ops", 2.0, 4.0, "a frozen linear layer's weight gradient, which torch counts as 43 of a layer's 142 for seven"),
    "quantised forward": Constant(
        6.0, "ops", 2.0, 10.0,
        "bitsandbytes' module, autograd function and two dequantisations: 64-token steps of QLoRA take 0.8 to 5 ms a layer more than LoRA's "
        "with full recomputation and 1 to 2.5 without (the same file)",
    ),
    "quantised backward": Constant(2.0, "ops", 0.0, 6.0, "the same"),
}  # fmt: skip
_CAST_BYTES: Final = 12.0
"""A tensor widened to fp32 and narrowed again: read 2, write 4, read 4, write 2."""
_NF4_READ: Final = 0.516
"""Bytes of a weight in NF4 with its scales."""
_DORA_BYTES: Final = (36.0, 72.0)
"""Bytes per output in forward and backward beyond LoRA's: the magnitude is fp32, so that its two products, their sum and the cast back
are (peft/tuners/lora/dora.py). They broadcast and change types, so that they run at the rate of such chains."""
_DORA_WEIGHT_BYTES: Final = 30.0
"""Bytes per weight to form the norm of W + BA: BA written 2, widened 6, scaled 8, added to W 10, squared and summed 4 (dora.py)."""
_DORA_EYE_BYTES: Final = 12.0
"""Bytes per element of the identity of the inputs' size that A and B multiply to form BA: written 4, narrowed 6, read 2 (dora.py)."""


@dataclass(frozen=True, slots=True)
class AdapterSeconds:
    """Seconds of one layer, shape (U,) each."""

    forward_s: Floats
    backward_s: Floats


def adapted_s(job: Job, kind: LayerKind, rows: Strategies, *, tokens: Floats) -> AdapterSeconds | None:
    """Seconds that adapters and a quantised base add to a layer; None where there is no adapter. [F-13]

    Args:
        job: whose adapter it is.
        kind: kind of layer.
        rows: combinations of axes, shape (U,).
        tokens: tokens of one micro-batch on a rank.
    """
    adapter = job.training.adapter
    if adapter is None:
        return None
    adapted = adapted_linears(job.model, adapter, kind)
    e, rate = job.training.compute_bytes, job.calibration.memory_bytes_per_s_effective.value
    inputs, outputs = (float(sum(getattr(x, side) for x in adapted)) for side in ("inputs", "outputs"))
    quantised = adapter.quantized_base != "none"
    traits = memory_traits(job.training)
    wide = BYTES_PER[job.training.param_dtype] > e and traits.casts_replicated_parameters and not quantised
    casts = np.where((rows.zero == 0) & wide, _CAST_BYTES, 0.0)
    dropped = (2 * e + 1.0) * inputs if adapter.dropout > 0 else 0.0
    # A reads the input; B writes the output, which is scaled (read, write) and added to the base's (two reads, one write).
    forward = (e + casts) * inputs + 6 * e * outputs + dropped
    # The output's gradient is scaled and read by both of B's gradients; A's read the input and write its gradient, which is added.
    backward = (5 * e + casts) * inputs + 4 * e * outputs + dropped
    if quantised:  # peft/tuners/lora/bnb.py clones the base's output
        forward = forward + 2 * e * outputs
    forward, backward = forward * tokens, backward * tokens
    if adapter.dora:
        weights = sum(_DORA_WEIGHT_BYTES * x.inputs * x.outputs + _DORA_EYE_BYTES * x.inputs**2 for x in adapted)
        forward = forward + (_DORA_BYTES[0] * outputs * tokens + weights) / CHAIN_SHARE.value
        backward = backward + _DORA_BYTES[1] * outputs * tokens / CHAIN_SHARE.value
    if quantised:  # bitsandbytes/autograd/_functions.py (MatMul4Bit): once in forward and once for the data gradient
        linears = layer_linears(job.model, kind, names_for(job.model, adapter.target_modules))
        widened = (_NF4_READ + e) * sum(x.inputs * x.outputs for x in linears)
        forward, backward = forward + widened, backward + widened
    kernels = ELEMENTWISE_KERNEL_S.value * len(adapted)
    return AdapterSeconds(
        np.asarray(forward / rows.tp / rate + 4.0 * kernels), np.asarray(backward / rows.tp / rate + 7.0 * kernels)
    )


def adapter_host_s(job: Job, kind: LayerKind, *, op_s: float) -> tuple[float, float] | None:
    """Seconds that the host takes longer for a layer with adapters, forward and backward; None where there is none. [F-13]

    Args:
        job: whose adapter it is.
        kind: kind of layer.
        op_s: seconds of one operator of the layer itself, whose weight gradients are left out. Adapters' operators were counted by
            a profile's loop, and eager ones are priced by it.
    """
    adapter = job.training.adapter
    if adapter is None:
        return None
    eager = not (job.training.compile or job.training.cuda_graphs)
    own_s = job.calibration.looped_op_s.value if eager else op_s
    adapted = len(adapted_linears(job.model, adapter, kind))
    frozen = len(layer_linears(job.model, kind, names_for(job.model, adapter.target_modules)))
    quantised = frozen * (adapter.quantized_base != "none")
    forward, backward = (
        (_OPERATORS[name].value * adapted + _OPERATORS[f"quantised {name}"].value * quantised) * own_s
        for name in ("forward", "backward")
    )
    return forward, backward - _OPERATORS["frozen"].value * frozen * op_s


def adapter_tensors(job: Job, kind: LayerKind) -> int:
    """Parameter tensors of a layer's adapters: A and B, and DoRA's magnitude."""
    adapter = job.training.adapter
    return 0 if adapter is None else (2 + adapter.dora) * len(adapted_linears(job.model, adapter, kind))
