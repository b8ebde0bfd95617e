"""What measured runs teach the cost models: a factor for each named term, kept only where it predicts runs that it has not seen.

| look for | file |
| --- | --- |
| what was measured, what was learnt, and for which framework, modules and GPU | `records` |
| how factors change a step and its range, or the memory of a stage | `applied` |
| the factors that explain measured runs best, with a prior | `estimate` |
| which factors predict runs that were left out, and how much ranges tighten | `fit` |
"""

from cost_models.corrections.applied import NO_CORRECTIONS, Corrected, CorrectionSet, InForce, corrected
from cost_models.corrections.fit import fit_corrections
from cost_models.corrections.records import Correction, Measured, Scope

__all__ = [
    "NO_CORRECTIONS",
    "Corrected",
    "Correction",
    "CorrectionSet",
    "InForce",
    "Measured",
    "Scope",
    "corrected",
    "fit_corrections",
]
