"""Every field of a request, of a strategy and of an answer as Markdown tables, from the schemas that the program checks with.

python -m scripts.field_reference request|strategy|answer|tuning|trial
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from app.service.api.tuning_schemas import TuningDocument
from planner.schemas import PlanRequest, PlanResponse
from planner.schemas.strategy import StrategyInput
from profiler.trial.record import TrialDocument

Schema = Mapping[str, Any]
UNITS: tuple[tuple[str, str], ...] = (
    ("_tflops_per_gpu_causal", "TFLOP/s"),
    ("_tflops_per_gpu", "TFLOP/s"),
    ("_tflops", "TFLOP/s"),
    ("tokens_per_s_per_gpu", "tokens/s"),
    ("tokens_per_s", "tokens/s"),
    ("_gb_per_s", "GB/s"),
    ("_gbit_per_s", "Gbit/s"),
    ("_gib", "GiB"),
    ("_bytes_per_node", "bytes"),
    ("_range_bytes", "bytes"),
    ("_bytes", "bytes"),
    ("_range_s", "s"),
    ("gpu_hours", "GPU h"),
    ("days_range", "days"),
    ("days", "days"),
    ("carbon_g_per_kwh", "g/kWh"),
    ("_kwh", "kWh"),
    ("_kg", "kg"),
    ("power_w_per_gpu", "W"),
    ("goodput", "share, 0 to 1"),
    ("gpu_seconds", "GPU s"),
    ("_us", "µs"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_h", "h"),
    ("_w", "W"),
    ("price_per_gpu_hour", "money/h"),
    ("_fraction", "share, 0 to 1"),
    ("mfu_bf16", "share, 0 to 1"),
    ("mfu", "share, 0 to 1"),
    ("seq_length", "tokens"),
    ("_tokens", "tokens"),
    ("document_length", "tokens"),
    ("batch_size", "sequences"),
)
"""The unit that a field's name ends in; the first ending that fits counts."""
# A strategy appears in requests and in answers; its table stands once, on a page of its own.
ELSEWHERE = {
    "StrategyInput": "[strategy](strategy.md)",
    "OverlapInput": "object",
    "OffloadInput": "object",
    "SyncInput": "[object](strategy.md#object-syncinput)",
    "CompressionInput": "[object](strategy.md#object-compressioninput)",
}


def request() -> str:
    """Tables of a plan request's fields."""
    return _tables(PlanRequest.model_json_schema(), "a plan request", ELSEWHERE)


def strategy() -> str:
    """Tables of a strategy's fields."""
    return _tables(StrategyInput.model_json_schema(), "a strategy", {})


def answer() -> str:
    """Tables of a plan response's fields, evaluations included."""
    return _given(_tables(PlanResponse.model_json_schema(mode="serialization"), "a plan response", ELSEWHERE))


def tuning() -> str:
    """Tables of a tuning's fields."""
    elsewhere = {"ProblemDocument": "[problem](http.md)"}
    return _given(_tables(TuningDocument.model_json_schema(mode="serialization"), "a tuning", elsewhere))


def trial() -> str:
    """Tables of a trial record's fields."""
    return _given(_tables(TrialDocument.model_json_schema(mode="serialization"), "a trial record", {}))


PARTS: Mapping[str, Callable[[], str]] = {
    "request": request, "strategy": strategy, "answer": answer, "tuning": tuning, "trial": trial,
}  # fmt: skip


def _given(tables: str) -> str:
    # Nobody is required to write an answer; what a request must have, an answer always has.
    return tables.replace("| required |", "| always given |").replace("| default |", "| where it is not given |")


def _tables(schema: Schema, name: str, elsewhere: Mapping[str, str]) -> str:
    """One section for each object that the schema reaches, in the order in which a reader meets them."""
    definitions = schema.get("$defs", {})
    waiting: deque[tuple[str, Schema]] = deque([(name, schema)])
    seen = set(elsewhere)
    parts = []
    while waiting:
        title, each = waiting.popleft()
        parts.append(_section(title, each, elsewhere, definitions))
        for field, inner in each["properties"].items():
            path = field if title == name else f"{title}.{field}"
            for key, found in _objects(inner, definitions):
                if key not in seen:
                    seen.add(key)
                    waiting.append((path, found))
    return "\n\n".join(parts)


def _section(title: str, schema: Schema, elsewhere: Mapping[str, str], definitions: Schema) -> str:
    required = set(schema.get("required", ()))
    anchor = schema.get("title", "")
    heading = f"## Fields of {title}" if title.startswith("a ") else f"## `{title}`"
    lines = [f"(object-{anchor.lower()})=", heading, "", _words(schema.get("description", "")), ""]
    lines += ["| field | type | unit | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for field, inner in schema["properties"].items():
        default = "required" if field in required else _default(inner)
        cells = [f"`{field}`", _type(inner, elsewhere), unit(field), default, _words(_description(inner, definitions))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def unit(field: str) -> str:
    """The unit of a field, which its name tells; "" for counts, names and choices."""
    return next((found for ending, found in UNITS if field.endswith(ending)), "")


def _objects(schema: Schema, definitions: Schema) -> Iterator[tuple[str, Schema]]:
    """The objects with named fields that a field's schema reaches without passing another such object."""
    if "$ref" in schema:
        key = schema["$ref"].rpartition("/")[2]
        yield from _objects(definitions[key], definitions)
    elif "properties" in schema:
        yield schema["title"], schema
    else:
        inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
        inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
        for each in inner:
            yield from _objects(each, definitions)


def _type(schema: Schema, elsewhere: Mapping[str, str]) -> str:
    if "$ref" in schema or "properties" in schema:
        key = schema["$ref"].rpartition("/")[2] if "$ref" in schema else schema["title"]
        return elsewhere.get(key, f"[object](#object-{key.lower()})")
    if options := [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        return " or ".join(dict.fromkeys(_type(each, elsewhere) for each in options if each.get("type") != "null"))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        inner = [schema["items"]] if "items" in schema else schema.get("prefixItems", ())
        return "list of " + (" and ".join(dict.fromkeys(_type(each, elsewhere) for each in inner)) or "values")
    if kind == "object":
        value = schema.get("additionalProperties")
        return f"object of {_type(value, elsewhere)} by name" if isinstance(value, dict) and value else "object"
    words = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}
    return words.get(str(kind), "any") + _bounds(schema)


def _bounds(schema: Schema) -> str:
    """What a number must lie between, where that is more than "positive" or "absurdly large"."""
    most = schema.get("maximum", schema.get("le"))
    least = schema.get("minimum", schema.get("ge"))
    low = "" if least in (None, 0, 1, 0.0, 1e-06) else f" from {least:g}"
    high = "" if most is None or most > 1e6 else f" up to {most:g}"
    return low + high


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _description(schema: Schema, definitions: Schema) -> str:
    """The field's own description, or that of the one object that it holds."""
    if "description" in schema:
        return str(schema["description"])
    held = [found for _, found in _objects(schema, definitions)]
    return str(held[0].get("description", "")) if len(held) == 1 else ""


def _words(text: str) -> str:
    """A description in one line of a table: no line breaks, and no bar that would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(PARTS))
    print(PARTS[parser.parse_args(arguments).what]())


if __name__ == "__main__":
    main()
