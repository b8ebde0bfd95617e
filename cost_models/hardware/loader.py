"""Finds, checks and assembles calibrations: which document prices a cluster's compute, and which its network.

Where nothing is named, the reference curves of the GPU are used. Names are looked up among the caller's documents (by id or
name), then the shipped ones, then, where allowed, among files. A document of another GPU is refused rather than stretched.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cost_models.calibration.document import SCHEMA_VERSION, CalibrationDocument
from cost_models.calibration.fit import fit_collectives
from cost_models.calibration.residuals import residuals_of
from cost_models.errors import CalibrationError
from cost_models.hardware.attention_samples import attention_ratios
from cost_models.hardware.beside import beside_of
from cost_models.hardware.build_links import build_links
from cost_models.hardware.calibrated import Calibration
from cost_models.hardware.products import products_of
from cost_models.hardware.surfaces import precision_surfaces, surface_of, sustained_clock, waiting_clock
from cost_models.specs.cluster import Cluster, Gpu

_REFERENCE = Path(__file__).parent.parent / "reference"
_MAX_FILE_BYTES = 64 * 2**20


def parse_document(text: str, *, origin: str = "the calibration") -> CalibrationDocument:
    """The document in a file's or request's text, its digest checked.

    Raises:
        CalibrationError: the text is no JSON (truncated), of a newer schema, has a wrong field, or does not match its id (edited).
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CalibrationError(
            f"{origin} is not complete JSON: {error}",
            hint="The file is truncated or not a calibration; write it again.",
        ) from error
    if not isinstance(content, dict):
        raise CalibrationError(
            f"{origin} is not a JSON object", hint="Give a file that `meshwright profile run` wrote."
        )
    return document_of(content, origin=origin)


def document_of(content: Mapping[str, Any], *, origin: str = "the calibration") -> CalibrationDocument:
    """The document in parsed JSON; a missing id is computed, a wrong one refused.

    Raises:
        CalibrationError: as `parse_document`.
    """
    version = content.get("schema_version")
    # True equals 1 in Python and would pass the schema's check, but its JSON, and thus its digest, differ.
    if isinstance(version, bool):
        raise CalibrationError(
            f"{origin} is not a calibration: /schema_version is {version}; it must be a whole number",
            hint=f"Set it to {SCHEMA_VERSION}.",
            context={"pointer": "/schema_version"},
        )
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CalibrationError(
            f"{origin} has schema version {version}; this release reads up to {SCHEMA_VERSION}",
            hint="Update meshwright, or measure again with this release.",
        )
    stated = content.get("id")
    try:
        document = CalibrationDocument.model_validate({k: v for k, v in content.items() if k != "id"})
    except ValidationError as error:
        first = error.errors()[0]
        place = "/" + "/".join(str(part) for part in first["loc"])
        raise CalibrationError(
            f"{origin} is not a calibration: {place}: {first['msg']}",
            hint="Measure again, or correct that field.",
            context={"pointer": place, "count": error.error_count()},
        ) from error
    if stated is not None and stated != document.id:
        raise CalibrationError(
            f"{origin} does not match its id {str(stated)[:12]}: its content was edited",
            hint="Calibrations never change: measure again, or remove the id, which makes it a new document.",
        )
    return document


def read_document(path: Path) -> CalibrationDocument:
    """The document in a file.

    Raises:
        CalibrationError: the file cannot be read or is too large, or as `parse_document`.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise CalibrationError(
                f"{path} is larger than any calibration", hint="Give the file that `meshwright profile run` wrote."
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path} cannot be read: {error}", hint="Check the path.") from error
    return parse_document(text, origin=str(path))


def shipped_names() -> tuple[str, ...]:
    """Names of the calibrations that this distribution ships, sorted. None of them is a default."""
    return tuple(sorted(path.stem for path in (_REFERENCE / "named").glob("*.json")))


def reference_names() -> tuple[str, ...]:
    """GPUs with public reference curves, sorted."""
    return tuple(sorted(path.stem for path in _REFERENCE.glob("*.json")))


@lru_cache(maxsize=32)
def _packaged(name: str) -> CalibrationDocument | None:
    for path in (_REFERENCE / f"{name}.json", _REFERENCE / "named" / f"{name}.json"):
        if path.is_file():
            return read_document(path)
    return None


def shipped_document(name: str) -> CalibrationDocument | None:
    """The shipped calibration or reference curves of that name; None where there are none."""
    return _packaged(name) if name in shipped_names() or name in reference_names() else None


def reference_document(gpu: Gpu) -> CalibrationDocument | None:
    """Public curves of this GPU, or of the one that it borrows from; None where there are none."""
    name = gpu.reference or gpu.name
    return _packaged(name) if name in reference_names() else None


def load_calibration(
    cluster: Cluster, *, extra: Mapping[str, CalibrationDocument] | None = None, allow_files: bool = False
) -> Calibration:
    """The prices of a cluster's operations.

    Args:
        cluster: `cluster.calibration` names up to two documents. The first prices compute, and the network too where it is alone;
            the second prices the network.
        extra: documents of the caller by id and name (a tenant's uploads, "auto").
        allow_files: whether a name may be a path, as on the command line.

    Raises:
        CalibrationError: a document is unknown, damaged or of another GPU, or more than two are named.
    """
    names = cluster.calibration
    if len(names) > 2:
        raise CalibrationError(
            f"{len(names)} calibrations are named; at most two can be used",
            hint="Name one for compute and, if you have another for the network, that one second.",
        )
    # The reference is loaded even where documents are named: a profile bends its table and does not replace it.
    reference = reference_document(cluster.gpu)
    found = [_fitted(_found(name, extra or {}, allow_files=allow_files)) for name in names]
    # Only the document that prices compute must be of this GPU; a second one prices the network alone.
    for document in found[:1]:
        _check_gpu(document, cluster.gpu)
    compute = found[0] if found else reference
    # The last document named that measured any collective prices the network: a second document is given for just
    # that.
    network = next((d for d in reversed(found) if d.collective_fits), reference)
    shown = [document for document in (compute, network if network is not compute else None) if document is not None]
    # What the driver offered one process on the user's own machine replaces the preset's figure.
    if compute is not None and compute.kind == "measured" and compute.fingerprint.gpu == cluster.gpu.name:
        cluster = replace(cluster, measured_memory_bytes=compute.memory.capacity_bytes)
    surface = surface_of(compute, reference, cluster.gpu)
    clock, waiting = (clock_of(cluster.gpu, compute or reference) for clock_of in (sustained_clock, waiting_clock))
    return Calibration(
        cluster=cluster,
        name=" + ".join(d.name for d in shown) or "nominal",
        id=shown[0].id if len(shown) == 1 else hashlib.sha256("".join(d.id for d in shown).encode()).hexdigest(),
        compute=compute,
        network=network,
        surface=surface,
        precision_surfaces=precision_surfaces(compute, reference, cluster.gpu),
        links=build_links(cluster, network),
        sustained_clock=clock,
        waiting_clock=waiting,
        attention_ratios=attention_ratios(compute) if compute is not None else {},
        products=products_of(compute),
        # Overlap samples time a product and a collective together, so either document may hold them; compute's come
        # first.
        beside=beside_of(next((d for d in (compute, network) if d is not None and d.overlap), None)),
        residuals=residuals_of(compute, network),
    )


def _found(name: str, extra: Mapping[str, CalibrationDocument], *, allow_files: bool) -> CalibrationDocument:
    if name in extra:
        return extra[name]
    if name in shipped_names() or name in reference_names():
        document = _packaged(name)
        assert document is not None
        return document
    if allow_files and Path(name).is_file():
        return read_document(Path(name))
    if name == "auto":
        raise CalibrationError(
            "calibration 'auto' means a tenant's newest calibration, which only a service knows",
            hint="Name a shipped calibration or a file, or plan with --server.",
            context={"name": name},
        )
    known = [*extra, *shipped_names(), *reference_names()]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    if allow_files:
        hint += " No file has that path either."
    raise CalibrationError(f"there is no calibration {name!r}", hint=hint, context={"name": name})


def _fitted(document: CalibrationDocument) -> CalibrationDocument:
    """The document with fits computed from its samples, where it was stored without any; its id stays that of what was
    stored.
    """
    if document.collective_fits or not document.collectives:
        return document
    fitted = document.model_copy(update={"collective_fits": fit_collectives(document.collectives)})
    # `id` is a cached property over the content: computed again it would be another digest, and the calibration that a
    # plan names could not be found again.
    fitted.__dict__["id"] = document.id
    return fitted


def _check_gpu(document: CalibrationDocument, gpu: Gpu) -> None:
    measured = document.fingerprint.gpu
    if measured not in {gpu.name, gpu.reference}:
        raise CalibrationError(
            f"calibration {document.name!r} was measured on {measured}, but the cluster has {gpu.name}",
            hint="Name a calibration of this GPU, or leave the calibration out to use the GPU's reference data.",
            context={"calibration": document.id, "measured_on": measured, "gpu": gpu.name},
        )
