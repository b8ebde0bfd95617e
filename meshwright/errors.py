"""The errors that the functions of `meshwright` raise, all of them a `MeshwrightError` with `code`, `message`, `hint` and `context`."""

from cost_models.errors import (
    CalibrationError,
    InvalidInputError,
    MeasurementError,
    MeshwrightError,
    NotExpressibleError,
    NotModelledError,
    Problem,
    SearchBudgetError,
)

__all__ = [
    "CalibrationError",
    "InvalidInputError",
    "MeasurementError",
    "MeshwrightError",
    "NotExpressibleError",
    "NotModelledError",
    "Problem",
    "SearchBudgetError",
]
