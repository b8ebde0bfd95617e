"""Measurements of real machines and what they make the cost models believe.

A `CalibrationDocument` is what is stored and exchanged; a `Calibration` is what a job is priced with.
"""

from cost_models.calibration.document import (
    SCHEMA_VERSION,
    AttentionSample,
    CalibrationDocument,
    CollectiveFit,
    CollectiveSample,
    Device,
    DeviceState,
    Fingerprint,
    GemmFit,
    GemmSample,
    Host,
    HostAdamSample,
    MathAttentionSample,
    MemoryFacts,
    MemorySample,
    OverlapSample,
    PairSample,
)
from cost_models.calibration.fit import fit_collectives, fit_gemms
from cost_models.calibration.loader import (
    document_of,
    load_calibration,
    parse_document,
    read_document,
    reference_document,
    reference_names,
    shipped_document,
    shipped_names,
)
from cost_models.calibration.residuals import NOMINAL_RESIDUALS
from cost_models.calibration.runtime import Calibration, Scalar

__all__ = [
    "NOMINAL_RESIDUALS",
    "SCHEMA_VERSION",
    "AttentionSample",
    "Calibration",
    "CalibrationDocument",
    "CollectiveFit",
    "CollectiveSample",
    "Device",
    "DeviceState",
    "Fingerprint",
    "GemmFit",
    "GemmSample",
    "Host",
    "HostAdamSample",
    "MathAttentionSample",
    "MemoryFacts",
    "MemorySample",
    "OverlapSample",
    "PairSample",
    "Scalar",
    "document_of",
    "fit_collectives",
    "fit_gemms",
    "load_calibration",
    "parse_document",
    "read_document",
    "reference_document",
    "reference_names",
    "shipped_document",
    "shipped_names",
]
