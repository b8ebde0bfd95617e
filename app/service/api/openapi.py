"""The OpenAPI document: what FastAPI derives, completed by the bodies that are read by hand and the one shape of errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.errors import TITLES
from app.service.api.problems import MEDIA_TYPE
from app.service.api.schemas import ProblemDocument

_REFS = "#/components/schemas/{model}"
# FastAPI documents its own shape of a 422. No route sends it, since `api.problems` answers every error.
_LIBRARY_SCHEMAS = ("HTTPValidationError", "ValidationError")
DESCRIPTION = """How should this model be split over these GPUs? Post a plan request, get ranked plans with their costs.

Every object that an example names is stored for you, so you can try every example as it stands. Without keys the service
answers on this machine only. Errors are RFC 9457 problems."""


def json_body(
    model: type[BaseModel], *, or_list: bool = False, example: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this model, or also a list of such models, from its body."""
    # Routes take the raw body instead of a model, because FastAPI would parse it leniently and before its size is known. What the
    # body holds therefore has to be said here.
    schema = model.model_json_schema(ref_template=_REFS)
    definitions = {**schema.pop("$defs", {}), model.__name__: schema}
    one = {"$ref": _REFS.format(model=model.__name__)}
    content: dict[str, Any] = {"schema": {"anyOf": [one, {"type": "array", "items": one}]} if or_list else one}
    shown = example or next(iter(schema.get("examples", [])), None)
    if shown is not None:
        content["example"] = shown
    return {"requestBody": {"required": True, "content": {"application/json": content}}, "x-definitions": definitions}


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of this application."""
    document = get_openapi(
        title="meshwright", version=app.version, description=DESCRIPTION, routes=app.routes, tags=app.openapi_tags
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(_problem_schemas())
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for name, schema in operation.pop("x-definitions", {}).items():
                schemas.setdefault(name, schema)
            _add_errors(operation, method=method, path=path)
    for name in _LIBRARY_SCHEMAS:
        schemas.pop(name, None)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document


def _problem_schemas() -> dict[str, Any]:
    schema = ProblemDocument.model_json_schema(ref_template=_REFS)
    return {**schema.pop("$defs"), "ProblemDocument": schema}


def _add_errors(operation: dict[str, Any], *, method: str, path: str) -> None:
    # Derived from the shape of the operation, so that a new route documents its errors without being told to.
    statuses = [500, 503]
    if path.startswith("/v1"):
        statuses += [401, 403]
    if "parameters" in operation or "requestBody" in operation:
        statuses += [422]
    if "{" in path:
        statuses += [404]
    if method == "delete" or path.endswith(("/{rank}", "/exports/{framework}")):
        statuses += [409]
    if "requestBody" in operation:
        statuses += [400, 413, 415, 429]
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": TITLES[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REFS.format(model="ProblemDocument")}}},
        }
