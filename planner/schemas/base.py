"""The base of every contract model: immutable, no unknown fields, no silent conversion, no NaN or Infinity."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ContractModel(BaseModel):
    """A document of the public contract."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Degree = Annotated[int, Field(ge=1, le=1_000_000)]
"""How many ways something is split."""
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
