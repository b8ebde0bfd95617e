"""The base of every contract model: immutable, without unknown fields, silent conversions, NaN or Infinity.

A field that is misspelled or silently converted would plan another job than the user meant, so both are refused.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cost_models.inputs import fields


class ContractModel(BaseModel):
    """A document of the public contract."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


Degree = Annotated[fields.Count, Field(le=10_000_000)]
"""The number of ways in which something is split."""
Count = Annotated[fields.CountOrZero, Field(le=10_000_000)]
Fraction = fields.Fraction
Flag = fields.Flag
