"""Every field of the OpenAPI document is described, and every number names its unit or says what it counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

COUNT = re.compile(
    r"\b(numbers?|ranks?|share|shares|ratio|probability|multiple|version|tokens|currency|status|length|width|milliseconds)\b",
    re.IGNORECASE,
)
"""What a description of a number without a unit in its name must have one of: what is counted, or that it is a ratio."""
UNITS = {
    "_gb_per_s": r"GB/s", "_gbit_per_s": r"Gbit/s", "_bytes_per_s": r"bytes per second", "bytes_per_s": r"bytes per second",
    "_flops_per_s": r"operations per second", "_tflops_per_gpu": r"1e12 (model )?operations per second",
    "_tflops_per_image": r"1e12 operations.*image", "_tflops_per_second": r"1e12 operations.*second of sound",
    "_tflops_per_gpu_causal": r"1e12 operations per second", **dict.fromkeys(("bf16", "fp16", "fp8", "nvfp4", "fp32"), "operations per second"),
    "tokens_per_s": r"tokens per second",
    "tokens_per_s_per_gpu": r"tokens per second.* GPU", "_us": r"microseconds", "_s": r"seconds", "_gib": r"GiB", "_bytes": r"bytes",
    "_bytes_per_node": r"bytes", "_fraction": r"share|probability", "_h": r"hours", "_w": r"watts", "_hz": r"hertz",
    "_celsius": r"degrees Celsius", "mfu": r"share", "mfu_bf16": r"share", "_hour": r"hour",
    "gpu_hours": r"hours", "days": r"days", "days_range": r"days", "_kwh": r"kilowatt-hours?", "_kg": r"kilograms",
}  # fmt: skip
"""The words for the unit that a field's name ends in; the longest ending counts."""


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def properties(node: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of every schema in the document, with its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"example", "examples", "default"}:
                continue
            if key == "properties":
                for name, schema in value.items():
                    yield f"{path}.{name}", schema
            yield from properties(value, path if key == "properties" else f"{path}.{key}")
    elif isinstance(node, list):
        for position, value in enumerate(node):
            yield from properties(value, f"{path}.{position}")


def kinds(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema allows, through alternatives and items."""
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("prefixItems", ())]
    inner += [schema["items"]] if isinstance(schema.get("items"), dict) else []
    found = {schema["type"]} if isinstance(schema.get("type"), str) else set()
    return found.union(*(kinds(each) for each in inner))


def test_every_property_is_described(document: dict[str, Any]) -> None:
    found = list(properties(document))
    assert len(found) > 600
    assert [path for path, schema in found if not schema.get("description", "").strip()] == []


def unit_of(field: str) -> re.Pattern[str]:
    """What the description of a number of this name must match."""
    endings = [ending for ending in UNITS if field.endswith(ending)]
    # Descriptions are wrapped, so that a blank may be a line break.
    return re.compile(UNITS[max(endings, key=len)].replace(" ", r"\s"), re.IGNORECASE) if endings else COUNT


def test_every_number_names_its_unit_or_what_it_counts(document: dict[str, Any]) -> None:
    numbers = [(path, schema) for path, schema in properties(document) if kinds(schema) & {"number", "integer"}]
    assert len(numbers) > 200
    silent = [
        f"{path}: {schema['description']}"
        for path, schema in numbers
        if not unit_of(path.rpartition(".")[2]).search(schema["description"])
    ]
    assert silent == []


def test_every_description_is_a_sentence(document: dict[str, Any]) -> None:
    """It begins with a capital letter, a number or a quoted name, and ends like a sentence."""
    odd = [
        f"{path}: {schema['description']}"
        for path, schema in properties(document)
        if not re.match(r'[A-Z0-9`"]', schema["description"]) or not schema["description"].rstrip().endswith(".")
    ]
    assert odd == []


def test_every_call_has_a_title_and_a_description(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for call in methods.values():
            assert call["summary"]
            assert not call["summary"].endswith(".")
            assert call["description"].rstrip().endswith((".", "`"))
            for parameter in call.get("parameters", ()):
                assert parameter["description"].endswith("."), parameter["name"]


def test_the_answer_tells_plans_before_it_repeats_the_request(document: dict[str, Any]) -> None:
    fields = list(document["components"]["schemas"]["PlanDocument"]["properties"])
    assert fields[:2] == ["id", "status"]
    assert fields.index("plans") < fields.index("search") < fields.index("warnings") < fields.index("request")
