"""What every boundary model shares: field types that refuse surprises, and pydantic's errors turned into Problems.

A whole number may be written 8 or 8.0 (JSON does not tell them apart) but never true or "8". NaN, infinities, numbers above 1e15
and positive rates below 1e-6 are refused. An unknown name is answered with the nearest known one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import child, choice_hint, shown

LARGEST = 10**15
"""No size, count or rate in a request may exceed this; float64 still counts exactly there."""
SMALLEST = 1e-6
"""No positive rate or amount may be smaller, so that what is divided by it stays far from infinity."""
_MOST_PROBLEMS = 20
_LONGEST_CACHED = 100_000

STRICT = ConfigDict(extra="forbid", frozen=True, defer_build=True)
"""Of boundary models. Their validators are built when they are first used: a run needs few, and they cost a tenth of its start."""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= 2**63 else value


Count = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1, le=LARGEST)]
CountOrZero = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=0, le=LARGEST)]
Layers = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1, le=10_000)]
Quantity = Annotated[float, Field(strict=True, ge=SMALLEST, le=float(LARGEST), allow_inf_nan=False)]
QuantityOrZero = Annotated[float, Field(strict=True, ge=0, le=float(LARGEST), allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=300)]

WARNINGS: Mapping[str, str] = {
    "vision-tower-ignored": "The config is multimodal; only its text model is planned.",
    "adapters-not-in-towers": "Adapters are counted in the text model alone; keep target_modules away from the towers, which 'all-linear' would adapt too.",
    "quantization-ignored": "The config's quantization_config is ignored; training starts from weights in param_dtype.",
    "sequence-beyond-positions": "Sequences are longer than the model's max_position_embeddings; scale its rotary positions (rope_scaling), or shorten seq_length.",
    "network-nominal": "The network between the nodes is not described; the network of the GPU's reference server is assumed.",
    "gpu-family-unknown": "The GPU belongs to no known family; what it does not state is borrowed from a preset (see assumed).",
    "mi250x-one-die": "The driver presents each of the two dies of an MI250X as a GPU of 64 GB; all figures are for one die.",
    "framework-version-unknown": "The framework version is not a known release; the nearest known release is assumed.",
    "pools-in-order": "Ranks are numbered along the pipeline: start the nodes of the pools in the order of pool_per_stage.",
    "pools-no-interleaving": "Virtual stages of a model with several kinds of layer are not searched on pools.",
    "pools-cost-alike": "Not every pool has a price_per_gpu_hour, so the objective cost counts the hours of all GPUs alike.",
    "pools-no-at-risk": "Plans whose memory is at risk are not listed for a cluster with pools.",
    "corrections-of-another-scope": "None of the corrections was measured with this framework, model_impl, GPU, precision and calibration, so none is applied.",
    "corrections-not-on-pools": "Corrections hold on one kind of node; a cluster with pools is priced by the models alone.",
    "failures-too-frequent": "Failures come so often that the formula of the goodput errs by more than 3 %, in favour of the run.",
    "replicas-across-islands": "Replicas lie on several islands and reduce gradients over the slow link at every step; local-sgd and diloco would do so now and then.",
    "recurrent-layers-nominal": "The time of recurrent layers is a roofline of the operations and bytes of mamba-ssm's, causal-conv1d's and flash-linear-attention's kernels, which the plan assumes to be installed; steps of five hybrids on one H200 were priced between 14 % too short and 9 % too long, and no split of their heads was measured.",
    "sparse-attention-nominal": "The time of sparse attention is a roofline of the operations and bytes of Megatron Core's TileLang kernels, with an indexer that is trained on the keys it chose; how close the kernels come to it was not measured.",
    "document-lengths-vary": "Documents differ in length, so that ranks which get longer ones take longer in attention; every rank is priced at the mean, and the others' wait is left out.",
    "padded-to-seq-length": "Every row is priced as long as seq_length; a collator that pads to the longest row of a micro-batch, as transformers' does by default, takes less time and at most this memory.",
    "padding-masks-attention": "Where a row is padded, transformers hands PyTorch's attention a mask, for which it takes a slower kernel than the priced one; flash_attention_2 needs none.",
    "average-in-half-precision": "The moving average of the weights has their 16-bit type, in which small steps are rounded away: with a decay of 0.999 it may stand still. Store parameters in fp32.",
    "attention-math-for-fp32": "No fused attention kernel supports fp32, so attention writes its score matrix to memory.",
}
"""What each warning that is a code means."""


class ContradictionError(ValueError):
    """What a model refuses of fields that each are legal: the rule with its values, and what to do about it.

    Args:
        message: the rule, with the values.
        hint: what to do.
        field: the one at fault, where it is one; else the object that holds them.
    """

    def __init__(self, message: str, hint: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.field = field


Boundary = TypeVar("Boundary", bound=BaseModel)
Result = TypeVar("Result")


def validated(model_class: type[Boundary], document: object, *, pointer: str) -> Boundary:
    """The document as this boundary model.

    Raises:
        InvalidInputError: every broken rule is a Problem under `pointer`.
    """
    if not isinstance(document, Mapping):
        raise _no_object(document, pointer)
    try:
        return model_class.model_validate(dict(document))
    except ValidationError as error:
        found = _own_errors(error.errors(include_url=False))[:_MOST_PROBLEMS]
        raise InvalidInputError([_problem(e, model_class, document, pointer) for e in found]) from None


def resolved_once(
    resolve: Callable[[str], Result], afresh: Callable[[Mapping[str, Any]], Result], document: object, pointer: str
) -> Result:
    """The result of `resolve`, a cached function of the canonical JSON, or of `afresh` where there is no JSON of modest size.

    Args:
        resolve: takes the canonical JSON.
        afresh: takes the document itself.
        document: what the user gave.
        pointer: where it stands in the request.
    """
    if not isinstance(document, Mapping):
        raise _no_object(document, pointer)
    try:
        key = json.dumps(document, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return afresh(document)
    return resolve(key) if len(key) <= _LONGEST_CACHED else afresh(document)


def _no_object(document: object, pointer: str) -> InvalidInputError:
    name = pointer.rpartition("/")[2] or "the document"
    message = f"{f'entry {name}' if name.isdigit() else name} is {shown(document)}; it must be an object {{…}}"
    return InvalidInputError([Problem(pointer, message, "Write its fields between braces, as names and values.")])


def _own_errors(errors: list[Any]) -> list[Any]:
    """The errors without those of a list that is too short only because its entries were refused."""
    refused = {error["loc"][:length] for error in errors for length in range(len(error["loc"]))}
    return [error for error in errors if error["type"] != "too_short" or error["loc"] not in refused]


def _field_name(path: Sequence[str | int]) -> str:
    """The last name of a path with the positions inside it, such as `tp[0]`."""
    name, positions = "the document", ""
    for step in path:
        name, positions = (name, f"{positions}[{step}]") if isinstance(step, int) else (step[:100], "")
    return name + positions


def _problem(error: Any, model_class: type[BaseModel], document: Mapping[str, Any], pointer: str) -> Problem:
    """One pydantic error as a Problem.

    Steps of the location that are tags of a union rather than keys of the document are left out.
    """
    path, owner = _located(error["loc"], model_class, document)
    at = child(pointer, *path)
    field = _field_name(path)
    kind, context, value = error["type"], error.get("ctx", {}), shown(error["input"])
    if kind == "missing":
        return Problem(at, f"{field} is required", f"Add {field!r}.", "missing-field")
    if kind == "extra_forbidden":
        return Problem(at, f"{field!r} is not a known field", choice_hint(field, owner.model_fields), "unknown-field")
    if kind == "literal_error":
        allowed = _literals(context["expected"])
        hint = choice_hint(error["input"] if isinstance(error["input"], str) else "", allowed)
        return Problem(at, f"{field} is {value}; it must be one of {context['expected']}", hint)
    if kind == "value_error" and isinstance(told := context["error"], ContradictionError):
        if told.field is None:
            return Problem(at, f"{field}: {told}", told.hint)
        return Problem(child(at, told.field), str(told), told.hint)
    if kind == "value_error":
        return Problem(at, f"{field}: {context['error']}", "Change one of them.")
    rule = _RULES.get(kind)
    if rule is None:
        return Problem(at, f"{field} is {value}: {error['msg']}", _CORRECT)
    # A field that is an object or a name is a tagged union; pydantic reports only the branch that the value's type
    # selected.
    or_name = " or a name" if error["loc"][-1:] == ("object",) and kind.startswith("model_") else ""
    return Problem(at, f"{field} is {value}; it must be {rule.format(**context)}{or_name}", _CORRECT)


_CORRECT = "Correct it, or leave it out where it has a default."


def _literals(expected: str) -> list[str]:
    return [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]


_RULES: Mapping[str, str] = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "string_too_short": "a string of at least {min_length} character(s)",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "a string like {pattern}",
    "dict_type": "an object {{…}}",
    "model_type": "an object {{…}}",
    "model_attributes_type": "an object {{…}}",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "of at least {min_length} entries",
    "too_long": "of at most {max_length} entries",
}
"""Pydantic error types that are a plain rule; `{name}` is filled from the error's context."""


def _located(loc: tuple[Any, ...], owner: type[BaseModel], document: object) -> tuple[list[str | int], type[BaseModel]]:
    """The keys of the document on an error's path, and the boundary model that owns the last of them."""
    path: list[str | int] = []
    here: Any = document
    for position, step in enumerate(loc):
        inside = (
            step in here
            if isinstance(here, Mapping)
            else isinstance(here, (list, tuple)) and isinstance(step, int) and step < len(here)
        )
        last_of_object = position == len(loc) - 1 and isinstance(here, Mapping)
        if not inside and not last_of_object:
            continue
        path.append(step)
        here = here[step] if inside else None
        if isinstance(step, str) and step in owner.model_fields and position < len(loc) - 1:
            owner = _model_in(owner.model_fields[step].annotation) or owner
    return path, owner


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
