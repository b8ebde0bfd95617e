"""What a cluster can do, as the cost models ask for it: seconds and rates, each with its tier.

A `Calibration` is built once per job from the documents that the cluster names (or from the reference curves of its GPU) and
never changes. It knows hardware only; how a framework uses it is for other modules to say.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import Host, HostLayer
from cost_models.constants import (
    COMPILED_DTENSOR_HOST_RATIO,
    COMPILED_HOST_RATIO,
    DTENSOR_HOST_RATIO,
    EAGER_LAYER_OPS,
    ELEMENTWISE_KERNEL_S,
    GRAPH_HOST_RATIO,
    HOST_CORE_STREAM_BYTES_PER_S,
    HOST_STEP_RATIO,
    MEMORY_EFFICIENCY,
    SHARDED_HOST_RATIO,
    SUSTAINED_CLOCK,
)
from cost_models.errors import CalibrationError
from cost_models.estimate import Estimate
from cost_models.hardware import collectives, gemm
from cost_models.hardware.attention_kernels import Direction
from cost_models.hardware.attention_samples import AttentionRatios
from cost_models.hardware.beside import Beside
from cost_models.hardware.efficiency import precision_efficiency
from cost_models.hardware.gemm import GemmSurface, Kind
from cost_models.hardware.host_constants import BARE_OP_RATIO, HOST_LOOP_OP_S
from cost_models.hardware.placement import Placement
from cost_models.hardware.products import Products, rate_of
from cost_models.operations import Op
from cost_models.specs.cluster import Cluster
from cost_models.specs.training import AttentionKernel
from cost_models.terms import Tier

Floats = NDArray[np.float64]
HostMode = Literal["eager", "compiled", "graph"]
Wrapper = Literal["sharded", "tensor_parallel", "sequence_parallel"]
"""What PyTorch wraps around a layer: FSDP2, or DTensor tensor parallelism with the sequence whole or split."""

_INPUT_BYTES = {"bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 4.0, "fp8": 1.0, "nvfp4": 0.5625}
_OUTPUT_BYTES = {"bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 4.0, "fp8": 2.0, "nvfp4": 2.0}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number with its tier."""

    value: float
    tier: Tier


@dataclass(frozen=True, slots=True)
class Drives:
    """Rates of a node's NVMe drives, all of its ranks together."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    tier: Tier


@dataclass(frozen=True, eq=False)
class Calibration:
    """Prices of operations on one cluster."""

    cluster: Cluster
    name: str
    """Names of the documents, joined by " + "; `nominal` where there is no document."""
    id: str
    """Digest of the document, or of both; it changes whenever a price may change."""
    compute: CalibrationDocument | None
    network: CalibrationDocument | None
    surface: GemmSurface
    precision_surfaces: Mapping[str, GemmSurface]
    """Surfaces of those precisions whose peak has another ratio to the reference GPU's than bf16's peak has."""
    links: collectives.Links
    sustained_clock: float
    """Sustained over data-sheet speed of everything bound by the multiply units that has no samples of its own."""
    waiting_clock: float
    """Sustained over data-sheet speed of what the multiply units wait for."""
    attention_ratios: Mapping[tuple[AttentionKernel, Direction], AttentionRatios]
    """Measured over modelled seconds of attention, by keys and head width. [F-2]"""
    products: Products
    """What was measured of batched products and of products that accumulate."""
    beside: Mapping[Op, Beside]
    """What each collective and a computation beside it cost each other."""
    residuals: Mapping[tuple[str, Tier], float]
    """Relative half-width of the 80 % interval, by (family, tier)."""

    @cached_property
    def price_key(self) -> tuple[Hashable, ...]:
        """Equal for calibrations that price alike every strategy for which both clusters have the GPUs."""
        return (self.id, *self.cluster.kind_of_nodes)

    @property
    def fingerprint(self) -> Mapping[str, object]:
        """Machine and software that the compute samples were measured with; empty without samples."""
        return {} if self.compute is None else self.compute.fingerprint.model_dump(exclude_defaults=True)

    @property
    def is_profiled(self) -> bool:
        """Whether compute was measured on a machine of the cluster's kind, so that what its machines have in common is known."""
        compute = self.compute
        return compute is not None and compute.kind == "measured" and compute.fingerprint.gpu == self.cluster.gpu.name

    @property
    def clock_half_width(self) -> float:
        """80 % half-width of the clock that all products share; 0 where a profile has it in its samples. [T-3]"""
        clock = SUSTAINED_CLOCK[self.cluster.gpu.generation]
        return 0.0 if self.is_profiled else math.log(clock.high / clock.low) / 2.0

    # fp16 stands in for a missing bf16 peak (Volta): formulas ask for bf16 where any two-byte type is meant.
    def peak_flops_per_s(self, precision: str) -> float:
        """Dense data-sheet peak of a precision.

        Raises:
            CalibrationError: the GPU has no such arithmetic.
        """
        peaks = self.cluster.gpu.peak_flops_per_s
        peak = peaks.get(precision) or (peaks.get("fp16") if precision == "bf16" else None)
        if peak is None:
            known = ", ".join(sorted(peaks))
            raise CalibrationError(
                f"{self.cluster.gpu.name} has no {precision} peak", hint=f"It has: {known}.", context={"known": known}
            )
        return peak

    def gemm_s(
        self, m: Floats | float, n: Floats | float, k: Floats | float, *,
        precision: str, kind: Kind = "forward", batch: Floats | float = 1.0,
    ) -> Estimate:  # fmt: skip
        """Seconds of a matrix product (m, k) x (k, n) on one GPU; see `cost_models.hardware.gemm.gemm_s`."""
        result = gemm.gemm_s(
            np.asarray(m, dtype=np.float64), np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64),
            kind=kind, batch=batch, precision=precision, **self._gemm_rates(precision),
        )  # fmt: skip
        return self._as_borrowed(result, precision)

    def gemm_passes_s(self, m: Floats, n: Floats, k: Floats, *, precision: str, batch: Floats) -> Estimate:
        """Seconds of forward, data gradient and weight gradient, shape (3, ...); (m, n, k) is the forward's."""
        passes = gemm.gemm_passes_s(m, n, k, batch=batch, precision=precision, **self._gemm_rates(precision))
        return self._as_borrowed(passes, precision)

    def fastest_gemm_flops_per_s(self, precision: str) -> float:
        """Operations per second that no product exceeds at any shape: the highest share of the surface times the peak.

        Searches bound the time of products from below with it, so it must not miss a factor that may raise a price's rate: gradient
        layouts and grouped products can be faster than the forward layout's surface.
        """
        rates = self._gemm_rates(precision)
        surface = rates["surface"]
        ratio = max(1.0, *surface.kind_ratio.values()) if surface.kind_ratio else 1.0
        ratio *= max(1.0, surface.grouped_ratio)
        return float(rates["peak_flops_per_s"] * surface.share_MNK.max() * ratio)

    def _gemm_rates(self, precision: str) -> dict[str, Any]:
        nominal = precision_efficiency(self.cluster.gpu.generation, precision)
        efficiency = self.surface.precision_ratio.get(precision, nominal)
        return {
            "surface": self.precision_surfaces.get(precision, self.surface),
            "peak_flops_per_s": self.peak_flops_per_s(precision) * efficiency,
            "memory_bytes_per_s": self.cluster.gpu.memory_bytes_per_s,
            "input_bytes": _INPUT_BYTES[precision],
            "output_bytes": _OUTPUT_BYTES[precision],
        }

    def _as_borrowed(self, result: Estimate, precision: str) -> Estimate:
        """The estimate, at best extrapolated where a precision without samples of its own borrows bf16's shares."""
        borrowed = precision not in {"bf16", "fp16"} and precision not in self.surface.precision_ratio
        return Estimate(result.seconds, np.maximum(result.tier, np.int8(Tier.EXTRAPOLATED))) if borrowed else result

    def collective_s(self, op: Op, size_bytes: Floats | float, *, placement: Placement) -> Estimate:
        """Seconds of a collective on each placed group; `size_bytes` is nccl-tests' total. See
        `hardware.collectives.collective_s`.
        """
        return collectives.collective_s(op, size_bytes, placement=placement, links=self.links)

    @property
    def memory_bytes_per_s_effective(self) -> Scalar:
        """Bytes per second that streaming kernels of a layer's size reach, reads plus writes."""
        # Elementwise kernels are what is priced with this rate; a plain copy comes nearest where a profile has no
        # samples of them.
        return self._rate("elementwise") or self._rate("copy") or self._nominal_rate

    @property
    def copy_bytes_per_s(self) -> Scalar:
        """Bytes per second of copies of whole tensors, reads plus writes."""
        return self._rate("copy") or self.memory_bytes_per_s_effective

    @property
    def update_bytes_per_s(self) -> Scalar:
        """Bytes per second of a fused optimizer's update, reads plus writes. [F-10]"""
        return self._rate("optimizer") or self.memory_bytes_per_s_effective

    @property
    def _nominal_rate(self) -> Scalar:
        return Scalar(self.cluster.gpu.memory_bytes_per_s * MEMORY_EFFICIENCY.value, Tier.NOMINAL)

    def _rate(self, kind: str) -> Scalar | None:
        if self.compute is None:
            return None
        gpu = self.cluster.gpu
        rate = rate_of(self.compute, kind, gpu=gpu)
        # Another GPU's rate is scaled by the data sheets, which assumes that both reach the same share of their
        # bandwidth.
        tier = Tier.MEASURED if self.compute.fingerprint.gpu == gpu.name else Tier.EXTRAPOLATED
        return None if rate is None else Scalar(rate, tier)

    def elementwise_s(self, moved_bytes: Floats | float, *, kernels: Floats | float = 0.0) -> Estimate:
        """Seconds of streaming kernels that read and write `moved_bytes` in all."""
        rate = self.memory_bytes_per_s_effective
        seconds = np.asarray(moved_bytes, dtype=np.float64) / rate.value + ELEMENTWISE_KERNEL_S.value * np.asarray(
            kernels
        )
        return Estimate(seconds, np.full(seconds.shape, np.int8(rate.tier)))

    @property
    def _host(self) -> Host | None:
        return None if self.compute is None else self.compute.host

    @property
    def host_layers(self) -> Mapping[str, HostLayer]:
        """Host seconds of layers by class, where a profile measured them. [F-4]"""
        return {} if self._host is None else self._host.layers

    @property
    def bare_op_s(self) -> Scalar:
        """CPU seconds to issue one tensor operation outside of modules and autograd, as an optimizer's step does. [F-10]"""
        if self._host is not None and self._host.raw_op_s is not None:
            # A measured loop becomes a step by a ratio of other machines, hence interpolated and not measured.
            return Scalar(self._host.raw_op_s * HOST_STEP_RATIO.value, Tier.INTERPOLATED)
        layer = self.host_op_s()
        return Scalar(layer.value * BARE_OP_RATIO.value, layer.tier)

    def collective_call_s(self, mode: HostMode = "eager") -> Scalar:
        """CPU seconds of one collective's own call in a training step. [F-4]

        A call inside a CUDA graph is replayed like any other operation.
        """
        if mode != "graph" and self._host is not None and self._host.collective_call_s is not None:
            return Scalar(self._host.collective_call_s * HOST_STEP_RATIO.value, Tier.INTERPOLATED)
        return self.host_op_s(mode)

    @property
    def looped_op_s(self) -> Scalar:
        """CPU seconds to issue one eager operation in a loop, which is what profiles measure. [F-4]"""
        host = self._host
        if host is not None and host.eager_op_s is not None:
            return Scalar(host.eager_op_s, Tier.MEASURED)
        # A profile may have timed only a whole layer; its operators are counted in EAGER_LAYER_OPS.
        if host is not None and host.eager_layer_s is not None:
            return Scalar(host.eager_layer_s / EAGER_LAYER_OPS.value, Tier.INTERPOLATED)
        return Scalar(HOST_LOOP_OP_S[self.cluster.gpu.generation].value, Tier.NOMINAL)

    def host_op_s(self, mode: HostMode = "eager") -> Scalar:
        """CPU seconds to issue one operation of a training step. [F-4]

        A captured graph takes the same time in a loop and in a step, so no ratio applies to it.
        """
        host, looped = self._host, self.looped_op_s
        eager = Scalar(looped.value * HOST_STEP_RATIO.value, max(looped.tier, Tier.INTERPOLATED))
        if mode == "eager":
            return eager
        if mode == "graph":
            if host is not None and host.graph_op_s is not None:
                return Scalar(host.graph_op_s, Tier.MEASURED)
            return Scalar(eager.value * GRAPH_HOST_RATIO.value, max(eager.tier, Tier.EXTRAPOLATED))
        if host is not None and host.compiled_op_s is not None:
            return Scalar(host.compiled_op_s * HOST_STEP_RATIO.value, Tier.INTERPOLATED)
        return Scalar(eager.value * COMPILED_HOST_RATIO.value, max(eager.tier, Tier.EXTRAPOLATED))

    def wrapped_layer_ratio(self, wrapper: Wrapper, *, compiled: bool = False) -> Scalar:
        """Host time of a wrapped layer over that of the plain eager layer. [F-4]

        For a compiled layer it is 1 plus what the wrapper adds to the compiled layer, over the plain eager one: that is how the step
        model counts, in operators of the plain layer.
        """
        host = self._host
        sharded = wrapper == "sharded"
        if host is not None and host.plain_layer_s is not None:
            split = host.sequence_parallel_layer_s or host.tensor_parallel_layer_s
            if wrapper == "tensor_parallel":
                split = host.tensor_parallel_layer_s or split
            wrapped = host.sharded_layer_s if sharded else split
            if compiled:
                wrapped = host.compiled_sharded_layer_s if sharded else host.compiled_sequence_parallel_layer_s
            alone = host.compiled_layer_s if compiled else host.plain_layer_s
            if wrapped is not None and alone is not None:
                # A wrapper cannot make a layer cheaper: a negative difference is noise of two measurements.
                return Scalar(1.0 + max(wrapped - alone, 0.0) / host.plain_layer_s, Tier.MEASURED)
        ratio = SHARDED_HOST_RATIO if sharded else COMPILED_DTENSOR_HOST_RATIO if compiled else DTENSOR_HOST_RATIO
        return Scalar(ratio.value, Tier.NOMINAL)

    @property
    def host_link_bytes_per_s(self) -> Scalar:
        """Bytes per second between host and device memory in one direction."""
        own = None if self.compute is None else rate_of(self.compute, "host_to_device", "device_to_host", gpu=None)
        if own is not None:
            return Scalar(own, Tier.MEASURED)
        link = self.cluster.host_link_bytes_per_s or self.cluster.gpu.pcie_bytes_per_s
        return Scalar(link * MEMORY_EFFICIENCY.value, Tier.NOMINAL)

    @property
    def host_link_both_ways(self) -> Scalar:
        """Bytes per second between host and device memory while both directions are in use, both counted.

        Where that was not measured neither direction is taken to slow the other down.
        """
        own = None if self.compute is None else rate_of(self.compute, "host_both_ways", gpu=None)
        one = self.host_link_bytes_per_s
        return Scalar(2.0 * one.value, one.tier) if own is None else Scalar(own, Tier.MEASURED)

    @property
    def nvme(self) -> Drives | None:
        """Rates of a node's drives, measured or as stated; None where the cluster states none."""
        stated = self.cluster.nvme
        if stated is None:
            return None
        own = [
            None if self.compute is None else rate_of(self.compute, kind, gpu=None)
            for kind in ("nvme_read", "nvme_write")
        ]
        # One measured direction alone would mix two machines' drives.
        read, write = own
        if read is None or write is None:
            return Drives(stated.read_bytes_per_s, stated.write_bytes_per_s, Tier.NOMINAL)
        return Drives(read, write, Tier.MEASURED)

    @property
    def host_adam_bytes_per_s(self) -> Scalar:
        """Bytes per second of memory traffic when a node's processors update parameters, all ranks together. [C-16]"""
        samples = () if self.compute is None else self.compute.host_adam
        if samples:
            return Scalar(median(s.bytes_per_s for s in samples), Tier.MEASURED)
        # torchrun gives every rank of several one thread, so the node's rate is that many single threads (C-16).
        nominal = self.cluster.gpus_per_node * HOST_CORE_STREAM_BYTES_PER_S.value
        return Scalar(self.cluster.host_adam_bytes_per_s or nominal, Tier.NOMINAL)

    def residual(self, family: str, tier: Tier) -> float:
        """Half-width of the 80 % interval of one term, relative to the term.

        Args:
            family: a key of `calibration.residuals.NOMINAL_RESIDUALS`.
            tier: how the term came about.
        """
        return self.residuals[family, tier]
