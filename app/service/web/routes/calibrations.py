"""The pages of calibrations: the tenant's own and those that are shipped, each with its curves."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse

from app.errors import NotFoundError
from app.service.api.dependencies import Here, Place, cursor_of
from app.service.api.examples.requests import example_calibrations
from app.service.web.figures.calibration import (
    bus_bytes_per_s,
    collective_figures,
    collectives_of,
    gemm_figures,
    size_text,
)
from app.service.web.rendering import page
from app.service.web.routes.agents import agents_shown, jobs_shown
from app.service.web.visitors import Visitor
from app.service.web.words import parted, when
from cost_models.calibration import CalibrationDocument
from cost_models.hardware import parse_document, shipped_document, shipped_names
from cost_models.units import GB, MICRO

router = APIRouter(prefix="/calibrations", include_in_schema=False)
_ON_A_PAGE = 20


@router.api_route("", methods=["GET", "HEAD"])
def list_calibrations(visitor: Visitor, service: Here, place: Place) -> HTMLResponse:
    """The tenant's calibrations, newest first, and the shipped ones."""
    rows = service.calibrations.page(visitor.tenant, limit=_ON_A_PAGE, after=place)
    listed = [{"id": r.id, "gpu": r.gpu, "per_node": r.gpus_per_node, "created": when(r.created_at)} for r in rows]
    own, examples = parted(listed, lambda each: each["id"] in example_calibrations())
    more = cursor_of(rows[-1].created_at, rows[-1].id) if len(rows) == _ON_A_PAGE else None
    shipped = [document for name in shipped_names() if (document := shipped_document(name)) is not None]
    return page(
        "calibrations",
        title="Calibrations",
        own=own,
        examples=examples,
        more=more,
        shipped=shipped,
        agents=agents_shown(service, visitor.tenant),
        jobs=jobs_shown(service, visitor.tenant),
    )


@router.api_route("/{name}", methods=["GET", "HEAD"])
def show_calibration(name: Annotated[str, Path(max_length=120)], visitor: Visitor, service: Here) -> HTMLResponse:
    """One calibration: the machine, its curves, and how far off they may be."""
    # Shipped names come first, as they do where a request names one; ids are digests and never collide with them.
    document = shipped_document(name)
    is_own = document is None
    if document is None:
        try:
            document = parse_document(service.calibrations.document(visitor.tenant, name))
        except NotFoundError as error:
            hint = "The page /calibrations lists yours and those that are shipped."
            raise NotFoundError(f"there is no calibration {name}", hint=hint) from error
    return page(
        "calibration",
        title=document.name,
        document=document,
        is_own=is_own,
        is_example=document.id in example_calibrations(),
        reference=document.id if is_own else name,
        machine=_machine(document),
        collectives=collective_figures(document),
        products=gemm_figures(document),
        curves=[_curve(fit) for fit in collectives_of(document)],
        residuals=document.gemm_fits,
        samples=_counts(document),
    )


def _machine(document: CalibrationDocument) -> list[tuple[str, str]]:
    """The machine and the software that the numbers belong to."""
    told = document.fingerprint
    rows = [
        ("GPU", f"{told.gpu} ({told.gpu_reported})" if told.gpu_reported else told.gpu),
        ("Nodes", f"{told.num_nodes} of {told.gpus_per_node} GPUs"),
        ("Link in the node", f"{told.interconnect}, NVLS {told.nvls}"),
        ("Processor", told.cpu),
        ("Driver", told.driver),
        ("CUDA", told.cuda),
        ("NCCL", _release(told.nccl)),
        ("PyTorch", told.torch),
        *sorted(told.environment.items()),
        ("Measured", document.created_at),
        ("Load", "short runs at a boosted clock" if document.load == "burst" else "sustained"),
        ("Source", document.source),
        ("Licence", document.licence),
    ]
    return [(name, value) for name, value in rows if value]


def _release(text: str) -> str:
    """A release with dots. Early documents hold the text of a tuple, with dots between its characters."""
    return ".".join(re.findall(r"\d+", text.replace(".", ""))) if text.startswith("(") else text


def _curve(fit: Any) -> dict[str, Any]:
    rates = bus_bytes_per_s(fit)
    return {
        "op": fit.op.replace("_", " "),
        "ranks": fit.ranks,
        "per_node": fit.ranks_per_node,
        "stride": fit.stride,
        "groups": fit.concurrent_groups,
        "from": size_text(fit.size_bytes[0]),
        "to": size_text(fit.size_bytes[-1]),
        "smallest": f"{fit.time_s[0] / MICRO:,.0f} µs",
        "highest": f"{max(rates) / GB:,.1f} GB/s",
        "residual": f"{fit.residual_fraction:.1%}",
    }


def _counts(document: CalibrationDocument) -> list[tuple[str, int]]:
    """How many samples of each kind the document holds."""
    kinds = (
        ("matrix products", document.gemm),
        ("collectives", document.collectives),
        ("fused attention", document.attention),
        ("unfused attention", document.math_attention),
        ("products beside collectives", document.overlap),
        ("pairs of ranks", document.pairs),
        ("memory bandwidth", document.memory_bandwidth),
        ("Adam on the host", document.host_adam),
    )
    return [(name, len(samples)) for name, samples in kinds if samples]
