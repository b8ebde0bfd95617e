"""What the interface says of corrections."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.config import JsonDict

from cost_models.inputs.corrections import CorrectionInput
from planner.schemas.base import ContractModel, Flag

EXAMPLE_SWITCH: JsonDict = {"enabled": False}


class LearntCorrection(CorrectionInput):
    """What a tenant's measured runs say of one term, for one framework, model code, GPU, precision and calibration."""


class CorrectionList(ContractModel):
    """All corrections of a tenant."""

    items: list[LearntCorrection]
    """By scope, and within each those of time before those of memory."""


class CorrectionSwitch(ContractModel):
    """Whether a correction is applied."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SWITCH]})

    enabled: Flag
    """False to switch it off."""
