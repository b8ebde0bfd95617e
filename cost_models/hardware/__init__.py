"""What the hardware does: seconds of products, attention and collectives, from measurements where there are any.

A `Calibration` is what a job is priced with: `load_calibration` finds the documents for a cluster and assembles it.
"""

from cost_models.hardware.calibrated import Calibration, Scalar
from cost_models.hardware.loader import (
    document_of,
    load_calibration,
    parse_document,
    read_document,
    reference_document,
    reference_names,
    shipped_document,
    shipped_names,
)

__all__ = [
    "Calibration",
    "Scalar",
    "document_of",
    "load_calibration",
    "parse_document",
    "read_document",
    "reference_document",
    "reference_names",
    "shipped_document",
    "shipped_names",
]
