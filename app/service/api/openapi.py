"""The OpenAPI document: what FastAPI derives, completed by the bodies that are read by hand and the one shape of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.errors import TITLES
from app.service.api.answering import LINES
from app.service.api.examples.answers import answers
from app.service.api.examples.requests import REQUESTS
from app.service.api.problems import MEDIA_TYPE
from app.service.api.schemas import ProblemDocument

_REFS = "#/components/schemas/{model}"
# FastAPI documents its own shape of a 422. No route sends it, since `api.problems` answers every error.
_LIBRARY_SCHEMAS = ("HTTPValidationError", "ValidationError")
# FastAPI's own has no descriptions.
_EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "A PlanEvent as JSON."},
        "event": {"type": "string", "description": "Its type, as in the PlanEvent."},
        "id": {"type": "string", "description": "Its number, which `Last-Event-ID` takes after a break."},
        "retry": {"type": "integer", "minimum": 0, "description": "Milliseconds until a client should connect again."},
    },
}
DESCRIPTION = """How should the training of this model be split over these GPUs? Post a plan request, get ranked plans with their step
time, memory and proof.

- **New here?** Open `POST /v1/plans` below, choose one of the examples from its menu and press *Execute*. Every example works as it
  stands, and every object that a call names is stored for you. [The form](/) asks the same in a page, and shows the answer with
  pictures.
- **Keys.** On the machine that it runs on, the service needs none. Elsewhere press *Authorize* and paste a key, which
  `meshwright keys create` prints; programs send it as `Authorization: Bearer KEY`. A key opens what its
  scopes say (`read`, `plan`, `profile`, `admin`); an answer with status 403 names the one that is missing.
- **Units** stand in the names of fields: `_s` seconds, `_bytes` bytes, `_gib` 2^30 bytes, `_gb_per_s` 1e9 bytes per second in one
  direction. Shares go from 0 to 1.
- **Errors** are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems with a stable `code`, a `hint`, and a pointer to each
  wrong field."""


def json_body(model: type[BaseModel], *, path: str, or_list: bool = False) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this model, or also a list of such models, from its body.

    Args:
        path: the path of the route, under which its examples stand in `examples.requests`.
    """
    # Routes take the raw body instead of a model, because FastAPI would parse it leniently and before its size is known. What the
    # body holds therefore has to be said here.
    schema = model.model_json_schema(ref_template=_REFS)
    definitions = {**schema.pop("$defs", {}), model.__name__: schema}
    one = {"$ref": _REFS.format(model=model.__name__)}
    content: dict[str, Any] = {"schema": {"anyOf": [one, {"type": "array", "items": one}]} if or_list else one}
    content["examples"] = {
        name: {"summary": each.title, "description": each.meaning, "value": each.body}
        for name, each in REQUESTS[path].items()
    }
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
            _add_answers(operation, path, answers().get(f"{method.upper()} {path}", {}))
            _add_errors(operation, method=method, path=path)
    _add_links(document["paths"])
    for name in _LIBRARY_SCHEMAS:
        schemas.pop(name, None)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document


def _add_links(paths: dict[str, Any]) -> None:
    """Says of each call that makes an object which other calls take its id."""
    for path, operations in paths.items():
        made = [
            found
            for status, found in operations.get("post", {}).get("responses", {}).items()
            if status in ("201", "202")
        ]
        begin = f"{path}/{{"
        followers = [
            (operation["operationId"], other.removeprefix(begin).partition("}")[0])
            for other, found in paths.items()
            if other.startswith(begin)
            for operation in found.values()
        ]
        for response in made:
            response["links"] = {
                name: {"operationId": name, "parameters": {parameter: "$response.body#/id"}}
                for name, parameter in followers
            }


def _problem_schemas() -> dict[str, Any]:
    schema = ProblemDocument.model_json_schema(ref_template=_REFS)
    return {**schema.pop("$defs"), "ProblemDocument": schema}


def _add_answers(operation: dict[str, Any], path: str, kept: Mapping[str, Any]) -> None:
    """Shows what the service once answered to the first examples, by status."""
    for status, found in kept.items():
        content = operation["responses"][status]["content"]
        if isinstance(found, str):
            media = next(iter(content.values()))
            media["example"] = found
            if "itemSchema" in media:
                media["itemSchema"] = _EVENT_SCHEMA
            continue
        if LINES in content:
            lists = [answer for answer in found.values() if isinstance(answer, list)]
            content[LINES]["example"] = "".join(f"{json.dumps(each)}\n" for each in lists[0])
        if len(found) == 1:
            content["application/json"]["example"] = next(iter(found.values()))
        else:
            titles = REQUESTS[path]
            content["application/json"]["examples"] = {
                name: {"summary": titles[name].title, "value": value} for name, value in found.items()
            }


def _add_errors(operation: dict[str, Any], *, method: str, path: str) -> None:
    # Derived from the shape of the operation, so that a new route documents its errors without being told to.
    statuses = [500, 503]
    if path.startswith("/v1") or path == "/metrics":
        statuses += [401, 403]
    if path.startswith("/v1"):
        statuses += [429]
    if "parameters" in operation or "requestBody" in operation:
        statuses += [422]
    if "{" in path:
        statuses += [404]
    # A plan may be deleted, or run out of time, while the request that asked for it waits.
    is_waiting = method == "post" and path == "/v1/plans"
    # A plan that has failed cannot be tuned.
    refers = method == "post" and path == "/v1/tunings"
    if method == "delete" or is_waiting or refers or path.endswith(("/{rank}", "/exports/{framework}", "/results")):
        statuses += [409]
    if "requestBody" in operation:
        statuses += [400, 413, 415]
    if is_waiting or path in ("/v1/evaluate", "/v1/judge") or path.endswith("/exports/{framework}"):
        # Computed in turn with others', and for so long.
        statuses += [504]
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(set(statuses)):
        content = {"schema": {"$ref": _REFS.format(model="ProblemDocument")}}
        if shown := answers().get("problems", {}).get(str(status)):
            content["example"] = shown
        responses[str(status)] = {"description": TITLES[status], "content": {MEDIA_TYPE: content}}
