"""The base of every contract model: immutable, without unknown fields, silent conversions, NaN or Infinity.

A field that is misspelled or silently converted would plan another job than the user meant, so both are refused. What only the
service needs (validators of responses, descriptions of fields) is made when it is first asked for, since it would take a
seventh of the time of `meshwright plan`.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cost_models.inputs import fields

SCHEMA_VERSION = 1
"""Of the answers to plan requests."""


class ContractModel(BaseModel):
    """A document of the public contract."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema with the docstrings of fields as their descriptions.

        Pydantic's own `use_attribute_docstrings` reads the source of every class when that is defined; this waits until a schema
        is asked for.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for base in reversed(cls.__mro__):
            for name, text in _attribute_docstrings(base).items():
                if name in properties:
                    properties[name].setdefault("description", text)
        return schema


@cache
def _attribute_docstrings(model: type) -> dict[str, str]:
    """The docstrings under the fields of a class, by field; none for a model that was made of a table or is not ours."""
    if not issubclass(model, ContractModel):
        return {}
    try:
        source = dedent(inspect.getsource(model))
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


Degree = Annotated[fields.Count, Field(le=10_000_000)]
"""The number of ways in which something is split."""
Count = Annotated[fields.CountOrZero, Field(le=10_000_000)]
Fraction = fields.Fraction
Flag = fields.Flag
