"""What the command line is given: JSON files, `-` for standard input, names of presets, and `key=value` pairs.

Anything that is not strict JSON of a sensible size is refused here, with where the mistake is and what to do about it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cost_models.errors import InvalidInputError, Problem
from cost_models.presets import is_hub_id
from cost_models.strict_json import strict_loads

MAX_DOCUMENT_BYTES = 1 << 20
"""Largest request, the same as the service accepts by default."""
MAX_RESPONSE_BYTES = 1 << 28
"""Largest plan response: more than a thousand plans of a hundred stages each."""
_LONGEST_NAME = 300
Json = dict[str, Any]


def read_document(source: str, *, most_bytes: int = MAX_DOCUMENT_BYTES) -> Json:
    """The JSON object in a file, or on standard input for `-`."""
    return object_of(content_of(source, most_bytes=most_bytes), name=called(source))


def read_documents(source: str, *, most_bytes: int) -> list[Json]:
    """The JSON objects in a file or on standard input: one document over any number of lines, or one on each line."""
    name, content = called(source), content_of(source, most_bytes=most_bytes)
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if not lines:
        _refuse_empty(name)
    # One document that is printed over several lines never begins with a line that is an object of its own.
    if len(lines) > 1 and lines[0][1].rstrip().endswith(b"}"):
        return [object_of(line, name=f"line {number} of {name}") for number, line in lines]
    return [object_of(content, name=name)]


def called(source: str) -> str:
    """What messages call a file, or standard input."""
    return "standard input" if source == "-" else source or "''"


def content_of(source: str, *, most_bytes: int) -> bytes:
    """The bytes of a file or of standard input, of which no more are read than `most_bytes`."""
    name = called(source)
    try:
        if source == "-":
            # One byte more than allowed tells a document that is too large from one that just fits, whatever follows.
            content = sys.stdin.buffer.read(most_bytes + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(most_bytes + 1)
    except OSError as error:
        _refuse(
            f"{name} cannot be read: {error.strerror}", hint="Give the path of a JSON file, or - for standard input."
        )
    require_size(content, name=name, most_bytes=most_bytes)
    return content


def require_size(content: bytes, *, name: str, most_bytes: int) -> None:
    """Refuses a document that is larger than `most_bytes`."""
    if len(content) > most_bytes:
        _refuse(
            f"{name} is larger than {most_bytes >> 20} MiB",
            hint="A request describes a model, a cluster and a training job; it holds no weights.",
        )


def object_of(content: bytes, *, name: str) -> Json:
    """The JSON object that some bytes hold."""
    if not content.strip():
        _refuse_empty(name)
    document = parse_json(content, name=name)
    if not isinstance(document, dict):
        _refuse(f"{name} holds a JSON {_kind(document)}, not an object", hint="Write a request as an object: {...}.")
    return document


def parse_json(content: str | bytes, *, name: str) -> Any:
    """The value of a strict JSON text, in which NaN, Infinity, repeated keys and bottomless nesting are refused."""
    try:
        return strict_loads(content)
    except RecursionError:
        _refuse(f"{name} is nested too deeply", hint="A request is only a few levels deep.")
    except json.JSONDecodeError as error:
        _refuse(f"{name} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}")
    except ValueError as error:  # among others, the text is not UTF-8
        _refuse(f"{name} is not JSON: {error}")


def read_model(source: str) -> Json:
    """The model part of a request: a `config.json` (or its folder), a specification, or a preset by name."""
    if is_hub_id(source) and not Path(source).exists():
        return {"preset": source}  # the resolver refuses it and says how to get the config
    document = _named_document(source, config_name="config.json")
    if document is None:
        return {"preset": source}
    # `model_type` alone is not enough: configs of older libraries and of adapters lack it.
    is_hugging_face = any(key in document for key in ("model_type", "architectures", "num_hidden_layers", "peft_type"))
    named = {} if {"name", "preset"} & document.keys() else _name_of(source, document)
    return {"hf_config": document, **named} if is_hugging_face else {**document, **named}


def _name_of(source: str, document: Json) -> Json:
    """The name of a model that a file describes: the name of the file, or if that is `config.json` something that says more."""
    if source == "-":
        return {}
    path = Path(source).resolve()
    path = path / "config.json" if path.is_dir() else path
    if path.stem != "config":
        return {"name": path.stem[:_LONGEST_NAME]}
    # The Hub's cache calls every folder by a commit; the model's name is two levels further up.
    snapshot = re.search(r"/models--([^/]+)--([^/]+)/snapshots/", path.as_posix())
    if snapshot:
        return {"name": "/".join(snapshot.groups())[:_LONGEST_NAME]}
    stated = document.get("_name_or_path")
    if isinstance(stated, str) and stated:
        return {}  # the reader of configs takes it from there
    return {"name": path.parent.name[:_LONGEST_NAME]} if path.parent.name else {}


def read_cluster(source: str) -> Json:
    """The cluster part of a request: a specification, or a preset by name."""
    document = _named_document(source, config_name="cluster.json")
    return {"preset": source} if document is None else document


def assignments(pairs: Sequence[str], *, option: str) -> Json:
    """The `key=value` pairs as an object. A value is JSON, or else the text itself; dots in a key reach into objects."""
    result: Json = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key or not text:
            _refuse(f"{option} {pair!r} is not of the form key=value", hint=f"Write it like {option} tp=8.")
        target = result
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                _refuse(f"{option} {pair!r} sets a field of {parent!r}, which was already given a value of its own")
        target[last] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        return strict_loads(text)
    except (ValueError, RecursionError):
        return text


def _named_document(source: str, *, config_name: str) -> Json | None:
    path = Path(source)
    try:
        if path.is_dir() and (path / config_name).is_file():
            return read_document(str(path / config_name))
        is_file = path.is_file()
    except OSError:  # the text is longer than a file's name can be
        is_file = False
    # A name that looks like a path is read as one even if no file is there: "not found" helps more than "unknown preset".
    looks_like_path = source == "-" or is_file or source.endswith(".json") or "/" in source
    return read_document(source) if looks_like_path else None


def _kind(value: Any) -> str:
    return "array" if isinstance(value, list) else "null" if value is None else type(value).__name__


def _refuse_empty(name: str) -> NoReturn:
    _refuse(f"{name} is empty", hint="The program that should have written it may have failed; look at its messages.")


def _refuse(message: str, *, hint: str = "") -> NoReturn:
    raise InvalidInputError([Problem("", message, hint, code="invalid-json")])
