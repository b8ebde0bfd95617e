"""Calibrations that come in: checked, named by their digest, and stored for `auto` to find, whichever call has brought them."""

from __future__ import annotations

from app.service.api.examples.requests import example_calibrations
from app.service.db.calibrations import CalibrationStore
from cost_models.calibration import CalibrationDocument
from cost_models.errors import CalibrationError, InvalidInputError, Problem
from cost_models.hardware import document_of


def parsed_calibration(content: object, *, pointer: str = "") -> CalibrationDocument:
    """The calibration that somebody sent; `pointer` is its place in the body.

    Raises:
        InvalidInputError: it is not one, or one that breaks a rule.
    """
    if not isinstance(content, dict):
        raise InvalidInputError(
            [Problem(pointer, "a calibration is a JSON object", "Send the file that `meshwright profile run` wrote.")]
        )
    try:
        return document_of(content, origin="the body")
    except CalibrationError as error:
        inside = str(error.context.get("pointer", ""))
        raise InvalidInputError([Problem(pointer + inside, error.message, error.hint, error.code)]) from error


def store_calibration(
    calibrations: CalibrationStore, tenant: str, document: CalibrationDocument, *, is_limited: bool = True
) -> str:
    """Stores the calibration and returns its text as it is sent.

    Raises:
        QuotaError: `is_limited`, and the tenant has no room for it.
    """
    text = document.file_text()
    place = document.fingerprint
    # Whoever tries the documentation's examples stores invented numbers. Without a node shape `auto` never prices a plan with them.
    per_node = None if document.id in example_calibrations() else place.gpus_per_node
    calibrations.add(tenant, document.id, document=text, gpu=place.gpu, gpus_per_node=per_node, is_limited=is_limited)
    return text
