"""A calibration as tables for people, and as a cluster specification that uses it. Human units appear only here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cost_models import presets
from cost_models.calibration import CalibrationDocument, CollectiveFit, GemmSample
from cost_models.hardware.bus import bus_factor
from cost_models.units import GB, GIB, MICRO, TERA
from profiler.fit import MAX_AGE, moment_of

SHOWN_BYTES = (2.0**13, 2.0**20, 2.0**24, 2.0**28, 2.0**30)
# Products of a millisecond and more run at the clock of the power limit, as those of a training step do; short ones run faster.
_LONG_S = 1e-3
# The table of collectives is the widest; a console narrower than it would cut its cells off.
_WIDTH = 150


def print_report(document: CalibrationDocument) -> None:
    """Prints everything of a document on stdout."""
    console = Console(width=_WIDTH, soft_wrap=False, highlight=False)
    for line in headline(document):
        console.print(line, markup=False)
    for table in tables(document):
        console.print(table)
    for note in document.notes:
        console.print(f"note: {note}", markup=False)


def headline(document: CalibrationDocument) -> list[str]:
    """What was measured, on what, when."""
    machine = document.fingerprint
    age = datetime.now(UTC) - moment_of(document)
    old = f", too old to be merged: the limit is {MAX_AGE.days} days" if age > MAX_AGE else ""
    software = [("driver", machine.driver), ("torch", machine.torch), ("CUDA", machine.cuda), ("NCCL", machine.nccl)]
    where = f"{machine.num_nodes} x {machine.gpus_per_node} {machine.gpu}, {machine.interconnect}, NVLS {machine.nvls}"
    lines = [
        f"{document.name} ({document.kind}), id {document.id}",
        f"{where}, measured {document.created_at} ({age.days} days ago{old})",
        ", ".join(f"{name} {value}" for name, value in software if value) + (f"; {machine.cpu}" if machine.cpu else ""),
    ]
    if machine.environment:
        lines.append("environment: " + " ".join(f"{k}={v}" for k, v in machine.environment.items()))
    return [line for line in lines if line]


def tables(document: CalibrationDocument) -> list[Table]:
    """One table for each part that the document has."""
    made = (
        _products(document), _collectives(document), _attention(document), _memory(document), _host(document),
        _devices(document),
    )  # fmt: skip
    return [table for table in made if table is not None]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def product_tflops(sample: GemmSample) -> float:
    """TFLOP/s of one product: 10^12 operations per second."""
    return 2.0 * sample.batch * sample.m * sample.n * sample.k / sample.time_s / TERA


def _products(document: CalibrationDocument) -> Table | None:
    groups: dict[str, list[GemmSample]] = defaultdict(list)
    for s in document.gemm:
        kind: str = s.layout if s.batch == 1 else "batched"
        groups[f"{kind} {s.dtype}{' into fp32' if s.output_dtype == 'fp32' else ''}"].append(s)
    if not groups:
        return None
    residual = {fit.dtype: fit.residual_fraction for fit in document.gemm_fits}
    table = _table(
        "Matrix products, TFLOP/s", "kind", "shapes", "median", "1 ms and longer", "best", "spread", "residual"
    )
    for label, samples in sorted(groups.items()):
        rates = sorted(product_tflops(s) for s in samples)
        long = [product_tflops(s) for s in samples if s.time_s >= _LONG_S]
        error = residual.get(samples[0].dtype) if label.startswith("forward") else None
        table.add_row(
            label, str(len(samples)), f"{median(rates):.0f}", f"{median(long):.0f}" if long else "-",
            f"{rates[-1]:.0f}", f"{100 * median(s.spread_fraction for s in samples):.1f} %",
            "-" if error is None else f"{100 * error:.1f} %",
        )  # fmt: skip
    return table


def bus_gb_per_s(fit: CollectiveFit, place: int) -> float:
    """Bus bandwidth of one point of a curve in GB/s, by the definition of nccl-tests."""
    factor = float(bus_factor(fit.op, fit.ranks))  # type: ignore[arg-type]  # a number broadcasts
    return factor * fit.size_bytes[place] / fit.time_s[place] / GB


def _collectives(document: CalibrationDocument) -> Table | None:
    if not document.collective_fits:
        return None
    sizes = [size_text(size) for size in SHOWN_BYTES]
    table = _table(
        "Collectives, bus bandwidth in GB/s; x nodes, stride, groups at once", "operation", "group",
        *sizes, "smallest, us", "range", "residual",
    )  # fmt: skip
    order = sorted(document.collective_fits, key=lambda f: (f.op, -f.ranks, f.stride, f.concurrent_groups))
    for fit in order:
        cells = []
        for size in SHOWN_BYTES:
            near = [i for i, s in enumerate(fit.size_bytes) if abs(s / size - 1.0) < 0.01]
            cells.append(f"{bus_gb_per_s(fit, near[0]):.1f}" if near else "-")
        group = f"{fit.ranks_per_node} x {fit.ranks // fit.ranks_per_node}"
        group += f" s{fit.stride}" if fit.stride > 1 else ""
        group += f" c{fit.concurrent_groups}" if fit.concurrent_groups > 1 else ""
        span = f"{size_text(fit.size_bytes[0])}-{size_text(fit.size_bytes[-1])}"
        table.add_row(
            fit.op, group, *cells, f"{fit.time_s[0] / MICRO:.0f}", span, f"{100 * fit.residual_fraction:.1f} %"
        )
    return table


def size_text(size_bytes: float) -> str:
    """A size in whole binary units, such as 16M."""
    for unit, name in ((GIB, "G"), (2.0**20, "M"), (2.0**10, "K")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.0f}{name}"
    return f"{size_bytes:.0f}"


def _attention(document: CalibrationDocument) -> Table | None:
    if not document.attention:
        return None
    table = _table("Causal attention, TFLOP/s of the visible half", "kernel", "head", "length", "forward", "backward")
    groups: dict[tuple[str, int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for s in document.attention:
        flops = s.sequences * s.heads * s.q_length * s.kv_length * (s.d_qk + s.d_v)
        # Backward runs five products for the two of forward: it computes the scores again (FlashAttention-2, section 4.1).
        factor = 1.0 if s.direction == "forward" else 2.5
        groups[s.kernel, s.d_qk, s.q_length][s.direction].append(factor * flops / s.time_s / TERA)
    for (kernel, width, length), rates in sorted(groups.items()):
        cells = [f"{median(rates[way]):.0f}" if rates[way] else "-" for way in ("forward", "backward")]
        table.add_row(kernel, str(width), str(length), *cells)
    return table


def _memory(document: CalibrationDocument) -> Table | None:
    rows = [
        (s.kind.replace("_", " "), f"{size_text(s.size_bytes)}: {s.bytes_per_s / GB:.0f} GB/s")
        for s in document.memory_bandwidth
    ]
    facts = document.memory
    named = (
        ("capacity", facts.capacity_bytes), ("context", facts.context_bytes), ("communicator", facts.communicator_bytes),
        ("neighbour", facts.p2p_neighbour_bytes),
    )  # fmt: skip
    rows += [(name, f"{value / GIB:.2f} GiB") for name, value in named if value is not None]
    if facts.allocator_slack_fraction is not None:
        rows.append(("allocator slack", f"{100 * facts.allocator_slack_fraction:.1f} %"))
    return _pairs("Memory", rows)


def _host(document: CalibrationDocument) -> Table | None:
    rows = [
        (name.removesuffix("_s").replace("_", " "), f"{value / MICRO:.1f} us")
        for name, value in document.host.model_dump(exclude_none=True, exclude={"layers"}).items()
    ]
    rows += [
        (
            f"layer, {name.replace('-', ' ')}: forward, backward",
            f"{layer.forward_s / MICRO:.0f} us, {layer.backward_s / MICRO:.0f} us (± {100 * layer.spread:.0f} %)",
        )
        for name, layer in sorted(document.host.layers.items())
    ]
    rows += [
        (
            f"{s.op} {size_text(s.size_bytes)} beside {s.m}^3: product, collective",
            f"{100 * s.compute_slowdown_fraction:.0f} %, {100 * s.communication_slowdown_fraction:.0f} % longer",
        )
        for s in document.overlap
    ]
    rows += [
        (f"Adam on the host, {s.ranks} ranks of {s.threads} threads", f"{s.bytes_per_s / GB:.0f} GB/s")
        for s in document.host_adam
    ]
    return _pairs("Host and overlap", rows)


def _devices(document: CalibrationDocument) -> Table | None:
    if not document.devices:
        return None
    table = _table("Devices under load", "rank", "clock MHz", "power W", "temperature", "slowed by", "ECC errors")
    for d in document.devices:
        table.add_row(
            str(d.rank), _span(d.sm_clock_hz, 1e6), _span(d.power_w, 1.0), _span(d.temperature_celsius, 1.0),
            ", ".join(d.throttle) or "-", "-" if d.ecc_uncorrected is None else str(d.ecc_uncorrected),
        )  # fmt: skip
    return table


def _span(values: tuple[float, float] | None, unit: float) -> str:
    return "-" if values is None else f"{values[0] / unit:.0f}-{values[1] / unit:.0f}"


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table | None:
    if not rows:
        return None
    table = _table(title, "what", "value")
    for row in rows:
        table.add_row(*row)
    return table


# --- cluster ----------------------------------------------------------------------------------------------------------


def cluster_of(document: CalibrationDocument, *, num_nodes: int | None, reference: str) -> dict[str, Any]:
    """A cluster specification of the measured machine that is priced with this document.

    Args:
        document: the calibration.
        num_nodes: nodes of the cluster; the measured ones where None.
        reference: what names the document: a file, a shipped name or an id.
    """
    machine, device = document.fingerprint, document.device
    cluster: dict[str, Any] = {
        "num_nodes": num_nodes or machine.num_nodes, "gpus_per_node": machine.gpus_per_node, "calibration": reference,
    }  # fmt: skip
    if machine.gpu in presets.names("gpus"):
        return {"gpu": machine.gpu, **cluster}
    memory = document.memory.capacity_bytes or 16 * GIB
    gpu = {
        "name": machine.gpu, "memory_gib": memory / GIB,
        "peak_tflops": {name: peak / TERA for name, peak in device.peak_flops_per_s.items()},
        "memory_bandwidth_gb_per_s": device.memory_bytes_per_s / GB, "pcie_gb_per_s": device.link_bytes_per_s / GB,
        "generation": device.generation, "num_sms": device.num_sms,
    }  # fmt: skip
    # The measurement already contains whatever lies between the sockets of this node, so no boundary is added to it.
    return {"gpu": gpu, "intra_node": "pcie", "pcie": {"gpus_per_socket": machine.gpus_per_node}, **cluster}
