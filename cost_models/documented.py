"""Boundary models whose JSON schemas describe every field with the docstring that stands under it.

Pydantic's own `use_attribute_docstrings` reads the source of every class when that is defined, which would take a seventh of the
time of `meshwright plan`. Here the source is read when a schema is asked for, which only the service and the documentation do.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A document that users write or read, with its fields described in its JSON schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema with the docstrings of fields as their descriptions."""
        schema = handler(core_schema)
        # The handler may return a reference; what is described is the schema that it leads to.
        cls.describe(handler.resolve_ref_schema(schema))
        return schema

    @classmethod
    def describe(cls, schema: JsonSchemaValue) -> None:
        """Adds the docstrings of fields to the schema's properties where these have no description yet."""
        properties = schema.get("properties", {})
        # From the class itself to the most basic one, so that a field that is declared again is described by its last declaration.
        for base in cls.__mro__:
            for name, text in attribute_docstrings(base).items():
                # A field with an alias stands in the schema under that.
                field = cls.model_fields.get(name)
                shown = (field and field.alias) or name
                if shown in properties:
                    properties[shown].setdefault("description", text)


# A schema asks for the same class once for every place that refers to it.
@cache
def attribute_docstrings(model: type) -> dict[str, str]:
    """The docstrings under the fields of a class, by field; none for a model that was made of a table or is not ours."""
    if not issubclass(model, Documented):
        return {}
    try:
        source = dedent(inspect.getsource(model))
    except (OSError, TypeError):
        # Models that `create_model` makes of a table have no source, and get their descriptions from the table.
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
