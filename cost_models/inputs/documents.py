"""Lengths of the documents that are packed into sequences (`training.document_lengths`), as a user writes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import child
from cost_models.inputs.fields import STRICT, Quantity
from cost_models.specs.documents import attended_mean

LengthAndShare = Annotated[list[Quantity], Field(min_length=2, max_length=2)]
_SAME = 1e-9
"""Relative difference up to which a stated mean is that of the lengths, as in a request that was resolved before."""


class MeanLengthInput(Documented):
    """Documents of one length."""

    model_config = STRICT

    mean: Quantity
    """Length of a document on average, in tokens."""


def _is_list(value: object) -> str:
    return "object" if isinstance(value, dict | MeanLengthInput) else "list"


DocumentLengthsInput = Annotated[
    Annotated[MeanLengthInput, Tag("object")]
    | Annotated[list[LengthAndShare], Field(min_length=1, max_length=1000), Tag("list")],
    Discriminator(_is_list),
]


def resolve_documents(
    given: MeanLengthInput | list[list[float]] | None, mean: float | None, *, seq_length: int, pointer: str
) -> tuple[tuple[tuple[float, float], ...] | None, float | None]:
    """Lengths and shares of documents, None where a mean says it all, and the length that stands for them.

    Args:
        given: `training.document_lengths`.
        mean: `training.mean_document_length`.
        seq_length: tokens of a sequence.
        pointer: of the training job.

    Raises:
        InvalidInputError: both fields are given and differ.
    """
    if given is None:
        return None, mean
    pairs, wanted = None, 0.0
    if isinstance(given, MeanLengthInput):
        wanted = given.mean
    else:
        pairs = tuple((length, share) for length, share in given)
        wanted = attended_mean(pairs, seq_length)
    # A resolved request holds both, which then agree to the last digits that JSON keeps.
    if mean is not None and abs(mean - wanted) > _SAME * wanted:
        message = f"document_lengths and mean_document_length {mean:g} are both given"
        raise InvalidInputError([Problem(child(pointer, "document_lengths"), message, "Give one of the two.")])
    return pairs, wanted
