"""Measurements of real machines as documents: what is stored and exchanged, how it is fitted, and how far off it may be.

`cost_models.hardware` turns a document into the `Calibration` that a job is priced with.
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
from cost_models.calibration.residuals import NOMINAL_RESIDUALS

__all__ = [
    "NOMINAL_RESIDUALS",
    "SCHEMA_VERSION",
    "AttentionSample",
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
    "fit_collectives",
    "fit_gemms",
]
