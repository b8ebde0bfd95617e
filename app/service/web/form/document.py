"""A plan request from what was filled in. Nothing is checked here: what cannot be read is passed on as it was written, so that the
request's own checks say what is wrong with it, and the form refuses what the API refuses, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.errors import NotJsonError
from app.quantities import COUNTED, duration_h, duration_s, number_of
from app.service.api.strict_json import parse_json
from app.service.web.form.fields import (
    ADAPTER,
    BY_DOCUMENT,
    BY_GPU,
    BY_PRESET,
    FIELDS,
    MORE_TRAINING,
    SEARCH,
    TARGETS,
    TRAINING,
    Field,
    Values,
)
from cost_models.errors import InvalidInputError, Problem

Document = dict[str, Any]
_CLUSTER_FIELDS = {
    BY_PRESET: ("preset", "num_nodes", "nic_gbit_per_s", "calibration"),
    BY_GPU: ("gpu", "num_nodes", "gpus_per_node", "nic_gbit_per_s", "calibration"),
}
_HF_KEYS = frozenset({"model_type", "architectures", "hf_config", "preset"})


def request_of(values: Values, *, max_depth: int) -> tuple[Document, list[Problem]]:
    """The request that the filled form stands for, and what is wrong with the documents in it that are not JSON."""
    problems: list[Problem] = []
    # Empty but there, so that each missing field of it is named and not the training as a whole.
    document: Document = {"training": {}}
    for part in ("model", "cluster"):
        document[part] = _described(part, values, problems, max_depth=max_depth)
    for field in (*TRAINING, *MORE_TRAINING, *ADAPTER, *TARGETS, *SEARCH):
        if field.kind == "document":
            _merge(document, field, values, problems, max_depth=max_depth)
        elif (value := _value(field, values.get(field.name, ""))) is not None:
            _place(document, field.name.split("."), value)
    # The form ticks each extra by itself; the request lists them.
    if (extras := document.pop("include", None)) is not None:
        document["include"] = [name for name, is_wanted in extras.items() if is_wanted]
    return document, problems


def _described(part: str, values: Values, problems: list[Problem], *, max_depth: int) -> Any:
    """The model or the cluster, from a preset, from fields, or from a document."""
    # Fields of the other ways were sent too, since browsers send what is hidden: they are kept for the form and count for nothing.
    way = values.get(f"{part}.by", BY_PRESET)
    if way == BY_DOCUMENT:
        found = _parsed(FIELDS[f"{part}.document"], values, problems, max_depth=max_depth)
        is_config = part == "model" and isinstance(found, dict) and not _HF_KEYS.isdisjoint(found)
        # What Hugging Face writes is told from a specification by the keys that only it has.
        return {"hf_config": found} if is_config and not {"hf_config", "preset"} & found.keys() else found
    if part == "model":
        return {"preset": values.get("model.preset", "")}
    described = {}
    for name in _CLUSTER_FIELDS.get(way, _CLUSTER_FIELDS[BY_PRESET]):
        field = FIELDS[f"cluster.{name}"]
        value = _value(field, values.get(field.name, ""))
        if value is not None:
            described[name] = value
    return described


def _value(field: Field, text: str) -> Any:
    """What goes into the request for one field; None leaves it out."""
    text = text.strip()
    if not text:
        return None
    if field.kind in ("whole", "number"):
        number = number_of(text, base=COUNTED.get(field.name.rpartition(".")[2], 1000))
        return text if number is None else number
    if field.kind in ("seconds", "hours"):
        return _time(field, text)
    if field.kind == "flag" or (field.kind == "choice" and text in ("true", "false")):
        return text == "true"
    if field.kind == "words":
        words = [word.strip() for word in text.split(",") if word.strip()]
        return words[0] if len(words) == 1 and words[0] in field.suggested else words
    return text


def _time(field: Field, text: str) -> float | str:
    """Seconds or hours, whichever the field counts; what is no time, or none that a plan can take, is left to the checks."""
    try:
        if field.kind == "seconds":
            return duration_s(text, option=field.label, least_s=0.0)
        return duration_h(text, option=field.label)
    except InvalidInputError:
        number = number_of(text, base=1000)
        return text if number is None else number


def _merge(document: Document, field: Field, values: Values, problems: list[Problem], *, max_depth: int) -> None:
    """Adds the fields of a part's own document to the part; what stands in a field of the form counts more."""
    if not values.get(field.name, "").strip():
        return
    found = _parsed(field, values, problems, max_depth=max_depth)
    part = field.name.partition(".")[0]
    if isinstance(found, dict):
        document[part] = {**found, **document.get(part, {})}
    elif found is not None:
        problems.append(Problem(field.pointer, "this is not a JSON object {…}", f"Write it as in {field.example}."))


def _parsed(field: Field, values: Values, problems: list[Problem], *, max_depth: int) -> Any:
    text = values.get(field.name, "").strip()
    if not text:
        problems.append(
            Problem(field.pointer, "nothing is written here", f"Write it as in {field.example}.", "missing-field")
        )
        return None
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"), max_depth=max_depth)
    except NotJsonError as error:
        # The parser speaks of a body; here it is a field.
        problems.append(
            Problem(field.pointer, error.message.replace("the body", "this"), "Write one JSON object {…}.", error.code)
        )
        return None


def _place(document: Document, path: Iterable[str], value: Any) -> None:
    *parents, last = path
    for parent in parents:
        # What the part's own document has in this place may be anything.
        if not isinstance(document.get(parent), dict):
            document[parent] = {}
        document = document[parent]
    document[last] = value
