"""Measurements of real machines as documents: what is stored and exchanged, how it is fitted, and how far off it may be.

| look for | file |
| --- | --- |
| the document's schema and fits | `document` |
| what is measured: the machine and every kind of sample | `samples` |
| from samples to curves and their residuals | `fit` |
| 80 % half-widths by family and tier | `residuals` |

`cost_models.hardware` turns a document into the `Calibration` that a job is priced with (`hardware.loader`).
"""

from cost_models.calibration.document import SCHEMA_VERSION, CalibrationDocument, CollectiveFit, GemmFit
from cost_models.calibration.fit import fit_collectives, fit_gemms
from cost_models.calibration.residuals import NOMINAL_RESIDUALS
from cost_models.calibration.samples import (
    AttentionSample,
    CollectiveSample,
    Device,
    DeviceState,
    Fingerprint,
    GemmSample,
    Host,
    HostAdamSample,
    MathAttentionSample,
    MemoryFacts,
    MemorySample,
    OverlapSample,
    PairSample,
)

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
