"""Corrections as a document: what `meshwright correct` writes, and what requests and rows may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.corrections import Correction, CorrectionSet, Scope
from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint, shown
from cost_models.inputs.fields import (
    STRICT,
    CountOrZero,
    Flag,
    Fraction,
    Name,
    QuantityOrZero,
    resolved_once,
    validated,
)
from cost_models.specs.training import Framework
from cost_models.strict_json import strict_loads
from cost_models.terms import MEMORY_NAMES, TIME_NAMES

CORRECTIONS_VERSION = 1
LEAST_FACTOR, LARGEST_FACTOR = 0.05, 20.0
"""No term is this far off: what would say so was measured on something else."""
MOST_CORRECTIONS = 2000
MOST_NAMED = 100
"""Runs that a written correction names; how many there were it says in any case."""
_WORDS = ("auto", "none")
_POINTER = "/corrections"


class CorrectionInput(Documented):
    """One term's correction within one scope."""

    model_config = STRICT

    id: Name | None = None
    """Name of the correction, which follows from its term and scope."""
    term: Name
    """The term of time or memory that it multiplies."""
    factor: Annotated[float, Field(strict=True, ge=LEAST_FACTOR, le=LARGEST_FACTOR, allow_inf_nan=False)]
    """Number by which the predicted term is multiplied."""
    kept: Flag
    """Whether it is applied: with all factors that are kept, runs that were left out of the fit are clearly better predicted than without."""
    framework: Framework
    """The framework that was measured."""
    model_impl: Name
    """Whose modules ran: native, transformers or liger."""
    gpu: Name
    """Name of the GPU that was measured."""
    precision: Name = "bf16"
    """Precision of the measured training."""
    calibration: Annotated[str, Field(strict=True, max_length=300)] = ""
    """Id of the calibration that the uncorrected predictions rest on."""
    trials: CountOrZero = 0
    """Number of measured runs behind the factor."""
    error_before: QuantityOrZero | None = None
    """Mean error of runs that were left out, as a share of what was measured, without this factor. Null where none could be left out."""
    error_after: QuantityOrZero | None = None
    """The same share with this factor."""
    reason: Annotated[str, Field(strict=True, max_length=1000)] = ""
    """Why it is kept or not."""
    sources: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Ids of the measured runs."""
    enabled: Flag = True
    """False to switch it off."""
    largest_share: Fraction = 1.0
    """Largest share of a measured run's total that the term was predicted to take."""
    range_factor: Annotated[float, Field(strict=True, ge=0.05, le=LARGEST_FACTOR, allow_inf_nan=False)] = 1.0
    """Number by which the ranges of predictions are multiplied where a plan resembles the measured ones."""


class CorrectionsInput(Documented):
    """What measured runs say of the models' predictions, term by term."""

    model_config = STRICT

    schema_version: Literal[1]
    """Version of this document's form."""
    product_version: Annotated[str, Field(strict=True, max_length=100)] = ""
    """The version of meshwright whose predictions were compared with the runs."""
    corrections: Annotated[tuple[CorrectionInput, ...], Field(max_length=MOST_CORRECTIONS)]
    """The corrections of every scope, kept or not."""


def resolve_corrections(document: object) -> CorrectionSet:
    """The corrections that a document, or one of the words `auto` and `none`, stands for.

    `auto` means those of a service's tenant. The service writes them in its place, so that here it means none.

    Raises:
        InvalidInputError: every field that is wrong, under `/corrections`.
    """
    if document is None or document in _WORDS:
        return NOTHING_LEARNT
    if isinstance(document, str):
        message = f"corrections is {shown(document)}; it must be 'auto', 'none' or a document of corrections"
        raise InvalidInputError([Problem(_POINTER, message, choice_hint(document, _WORDS))])
    return resolved_once(_resolved_text, _resolved, document, _POINTER)


NOTHING_LEARNT = CorrectionSet(())


@lru_cache(maxsize=64)
def _resolved_text(text: str) -> CorrectionSet:
    return _resolved(strict_loads(text))


def _resolved(document: Mapping[str, Any]) -> CorrectionSet:
    found = validated(CorrectionsInput, document, pointer=_POINTER)
    problems = []
    seen: set[str] = set()
    listed = []
    for position, entry in enumerate(found.corrections):
        at = f"{_POINTER}/corrections/{position}/term"
        if entry.term not in TIME_NAMES and entry.term not in MEMORY_NAMES:
            message = f"term is {shown(entry.term)}, which is no term of time or memory"
            problems.append(Problem(at, message, choice_hint(entry.term, (*TIME_NAMES, *MEMORY_NAMES))))
            continue
        correction = _correction(entry)
        if correction.id in seen:
            message = f"the term {entry.term} is corrected twice for one framework, model_impl, gpu, precision and calibration"
            problems.append(Problem(at, message, "Keep one of the two."))
        seen.add(correction.id)
        listed.append(correction)
    if problems:
        raise InvalidInputError(problems)
    return CorrectionSet(listed)


def _correction(entry: CorrectionInput) -> Correction:
    scope = Scope(entry.framework, entry.model_impl, entry.gpu, entry.precision, entry.calibration)
    given = {name: getattr(entry, name) for name in CorrectionInput.model_fields if name not in _OF_SCOPE}
    return Correction(scope=scope, **given)


_OF_SCOPE = ("id", "framework", "model_impl", "gpu", "precision", "calibration")


def correction_dict(correction: Correction) -> dict[str, Any]:
    """One correction as documents and the service hold it."""
    scope = correction.scope
    return {
        "id": correction.id,
        "term": correction.term,
        "factor": correction.factor,
        "kept": correction.kept,
        "framework": scope.framework,
        "model_impl": scope.model_impl,
        "gpu": scope.gpu,
        "precision": scope.precision,
        "calibration": scope.calibration,
        "trials": correction.trials,
        "error_before": correction.error_before,
        "error_after": correction.error_after,
        "reason": correction.reason,
        "sources": list(correction.sources[:MOST_NAMED]),
        "enabled": correction.enabled,
        "largest_share": correction.largest_share,
        "range_factor": correction.range_factor,
    }


def corrections_document(corrections: Iterable[Correction], *, product_version: str = "") -> dict[str, Any]:
    """The document of these corrections."""
    return {
        "schema_version": CORRECTIONS_VERSION,
        "product_version": product_version,
        "corrections": [correction_dict(each) for each in corrections],
    }
