"""Compiles data/reference into the calibrations that ship inside the package. Run it from the root of the repository.

It reads the public GEMM and collective tables and our own 4xH100 profile, and never data/reference/share_alike, whose licence
would extend to the package. Curves that break a physical limit are left out and named. Equal inputs give equal output.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from cost_models import presets
from cost_models.calibration import (
    CalibrationDocument,
    CollectiveSample,
    Device,
    Fingerprint,
    GemmSample,
    Host,
    fit_collectives,
    fit_gemms,
)
from cost_models.units import GB, MICRO, TERA

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "data" / "reference"
TARGET = ROOT / "cost_models" / "reference"
# A constant and not today's date: the same inputs must give the same documents, whose ids are their digests.
COMPILED_AT = "2026-11-27"
REFERENCE_GPUS = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S-48GB")
PCIE_GPUS = ("L40S-48GB",)
COLLECTIVE_SOURCES = ("aiconfigurator", "SimuMax")
"""Sources in order of preference. A later one only adds sizes that the earlier ones lack."""
LINK_TOLERANCE = 1.1
"""A point-to-point bandwidth above this multiple of the link's data sheet is a mistake in its table."""
AICONFIGURATOR = "aiconfigurator (github.com/ai-dynamo/aiconfigurator)"


def device_of(gpu: str, *, pcie: bool) -> Device:
    """Data-sheet facts of a GPU preset, base units."""
    spec = presets.load("gpus", gpu).spec
    link = spec["pcie_gb_per_s"] if pcie else spec["nvlink_gb_per_s"]
    return Device(
        generation=spec["generation"],
        peak_flops_per_s={name: value * TERA for name, value in spec["peak_tflops"].items()},
        memory_bytes_per_s=spec["memory_bandwidth_gb_per_s"] * GB,
        link_bytes_per_s=link * GB,
        num_sms=spec["num_sms"],
        power_limit_w=float(spec["power_limit_w"]),
    )


def read_csv(name: str) -> list[dict[str, str]]:
    with (SOURCE / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def collective_samples(gpu: str, rows: list[dict[str, str]], device: Device) -> list[CollectiveSample]:
    """Rows of this GPU: per operation and ranks the preferred source, then larger sizes of the next."""
    by_source: dict[str, list[CollectiveSample]] = defaultdict(list)
    impossible: dict[str, int] = defaultdict(int)
    for row in rows:
        source = next((name for name in COLLECTIVE_SOURCES if row["source"].startswith(name)), None)
        # Some sources list settings without a time or a size.
        if source is None or row["gpu"] != gpu or not row["size_bytes"] or not row["time_us"]:
            continue
        sample = CollectiveSample.model_validate(
            {
                "op": row["op"], "size_bytes": float(row["size_bytes"]), "ranks": int(row["ranks"]),
                "ranks_per_node": int(row["ranks"]), "time_s": float(row["time_us"]) * MICRO,
            }
        )  # fmt: skip
        rate = sample.size_bytes / sample.time_s
        impossible[source] += sample.op == "send_recv" and rate > LINK_TOLERANCE * device.link_bytes_per_s
        by_source[source].append(sample)
    for source, count in impossible.items():
        # One such row discredits the whole curve of its source: whatever was measured, it was not this link.
        if count:
            print(f"{gpu}: send_recv of {source} left out, {count} of its rows are faster than the link")
            by_source[source] = [s for s in by_source[source] if s.op != "send_recv"]
    kept = by_source[COLLECTIVE_SOURCES[0]]
    for source in COLLECTIVE_SOURCES[1:]:
        largest: dict[tuple[str, int], float] = defaultdict(float)
        for s in kept:
            largest[s.op, s.ranks] = max(largest[s.op, s.ranks], s.size_bytes)
        # Never between the sizes of the preferred source: a curve of two measurements would have steps that no link has.
        kept = kept + [s for s in by_source[source] if s.size_bytes > largest[s.op, s.ranks]]
    return kept


def reference_document(gpu: str, gemm: list[dict[str, str]], collectives: list[dict[str, str]]) -> CalibrationDocument:
    """Public curves of one GPU."""
    device = device_of(gpu, pcie=gpu in PCIE_GPUS)
    samples = [
        GemmSample(m=int(r["m"]), n=int(r["n"]), k=int(r["k"]), time_s=float(r["time_us"]) * MICRO)
        for r in gemm
        if r["gpu"] == gpu
    ]
    # Only the fits of collectives ship, since the tables have thousands of points; products ship as samples, which the cost models
    # look up by their neighbours.
    shared = collective_samples(gpu, collectives, device)
    fit = fit_gemms(samples, peak_flops_per_s=device.peak_flops_per_s["bf16"])
    assert fit is not None
    return CalibrationDocument(
        schema_version=1,
        name=f"{gpu} reference",
        kind="reference",
        fingerprint=Fingerprint(gpu=gpu, interconnect="pcie" if gpu in PCIE_GPUS else "nvswitch", gpus_per_node=8),
        device=device,
        created_at=COMPILED_AT,
        source=f"{AICONFIGURATOR}; SimuMax (github.com/MooreThreads/SimuMax) above 512 MiB where it has points",
        licence="Apache-2.0",
        # The public tables time short runs, whose clock is higher than that of hours of training.
        load="burst",
        gemm=tuple(samples),
        collective_fits=fit_collectives(shared),
        gemm_fits=(fit,),
    )


def profile_document(profile: dict[str, Any], *, name: str) -> CalibrationDocument:
    """Our own measurement of one machine."""
    device = device_of("H100-SXM-80GB", pcie=False)
    gemm = [GemmSample(m=r["m"], n=r["n"], k=r["k"], dtype=r["dtype"], time_s=r["time_s"]) for r in profile["gemm"]]
    collectives = [
        CollectiveSample(
            op="send_recv" if r["op"] == "sendrecv" else r["op"],
            size_bytes=float(r["bytes"]),
            ranks=r["ranks"],
            ranks_per_node=r["ranks"],
            time_s=r["time_s"],
        )
        for r in profile["collectives"]
    ]
    host, settings = profile["host"], profile["settings"]
    fit = fit_gemms(gemm, peak_flops_per_s=device.peak_flops_per_s["bf16"])
    assert fit is not None
    return CalibrationDocument(
        schema_version=1,
        name=name,
        kind="measured",
        fingerprint=Fingerprint(
            gpu="H100-SXM-80GB",
            gpu_reported=profile["gpu"],
            driver=settings["driver"],
            torch=profile["torch"],
            cuda=settings["cuda"],
            nccl=".".join(str(part) for part in profile["nccl"]),
            cpu=host["cpu"],
            nvls="off",
            gpus_per_node=profile["world"],
        ),
        device=device,
        created_at=COMPILED_AT,
        source="meshwright authors, data/reference/h100x4_profile.json",
        licence="Apache-2.0",
        load="sustained",
        gemm=tuple(gemm),
        collectives=tuple(collectives),
        host=Host(
            raw_op_s=host["eager_elementwise_op_us"] * MICRO,
            eager_layer_s=host["transformer_encoder_layer_forward_backward_us"] * MICRO,
        ),
        collective_fits=fit_collectives(collectives),
        gemm_fits=(fit,),
        notes=(settings["timing"], f"data: {settings['data']}; links: {settings['links']}"),
    )


def main() -> None:
    """Writes every document; prints size, id and curve residuals."""
    gemm, collectives = read_csv("gemm_bf16.csv"), read_csv("nccl_curves.csv")
    documents = {TARGET / f"{gpu}.json": reference_document(gpu, gemm, collectives) for gpu in REFERENCE_GPUS}
    profile = json.loads((SOURCE / "h100x4_profile.json").read_text(encoding="utf-8"))
    named = "h100x4-nvls-off-2026"
    documents[TARGET / "named" / f"{named}.json"] = profile_document(profile, name=named)
    for path, document in documents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.file_text(), encoding="utf-8")
        worst = max(document.collective_fits, key=lambda fit: fit.residual_fraction)
        print(
            f"{path.relative_to(ROOT)}  {path.stat().st_size} bytes  id {document.id[:12]}  "
            f"gemm residual {document.gemm_fits[0].residual_fraction:.3f}  "
            f"worst curve {worst.op} x{worst.ranks} {worst.residual_fraction:.3f}"
        )


if __name__ == "__main__":
    main()
