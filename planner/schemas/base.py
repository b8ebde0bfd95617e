"""The base of every contract model: immutable, without unknown fields, silent conversions, NaN or Infinity.

A field that is misspelled or silently converted would plan another job than the user meant, so both are refused. What only the
service needs, such as validators of responses, is made when it is first asked for.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from cost_models.documented import Documented
from cost_models.inputs import fields

SCHEMA_VERSION = 1
"""Of the answers to plan requests."""


class ContractModel(Documented):
    """A document of the public contract."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


Degree = Annotated[fields.Count, Field(le=10_000_000)]
"""The number of ways in which something is split."""
Count = Annotated[fields.CountOrZero, Field(le=10_000_000)]
Fraction = fields.Fraction
Flag = fields.Flag
