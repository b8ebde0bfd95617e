"""A parallel strategy in the contract's names, and lists of values for its fields, built from the table of strategy fields.

Every field may be left out: `planner.strategies.parse` fills the framework's default and reports it. A strategy in a response
is the same document with everything filled in: it can be sent back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model
from pydantic.config import JsonDict

from cost_models.strategies.fields import FIELD, FIELDS, GROUPS, Kind, StrategyField
from planner.schemas.base import ContractModel, Count, Degree, Flag, Fraction
from planner.schemas.method import CompressionInput, SyncInput

ZeroStage = Annotated[Count, Field(le=3)]
_STAGES = Field(min_length=1, max_length=100_000)

EXAMPLE_STRATEGY: JsonDict = {"tp": 4, "pp": 4, "dp": 8, "zero": 1, "micro_batch_size": 1, "recompute": "selective"}


SYNC = "When replicas are brought together, and how. Default: gradients of all replicas are summed at every step."
COMPRESSION = "The form in which gradients are exchanged. Default: whole."
ALLOWED_METHODS = (
    "Ways to try beside the framework's own. Those that are exact or only rounded are ranked among `plans`, those that change the "
    "mathematics in `changed_plans`."
)
_literal: Any = Literal
_list_of: Any = tuple
"""Both take types that only the table knows, which a type checker cannot read as types."""


def _type_of(field: StrategyField) -> Any:
    """Type of one value as the contract writes it."""
    spelled = _literal[field.spellings] if field.spellings else None
    types: dict[Kind, Any] = {
        "degree": Degree,
        "count": Count,
        "zero": ZeroStage,
        "fraction": Fraction,
        "flag": Flag,
        "choice": spelled,
        "set": _list_of[spelled, ...],
        "stage": Degree,
        "per_stage": Annotated[tuple[Count, ...], _STAGES],
        "pools": Annotated[tuple[str, ...], _STAGES],
    }
    return types[field.kind]


def _one(field: StrategyField) -> Any:
    """The entry of a field that takes one value."""
    value = Annotated[_type_of(field), Field(max_length=len(field.values))] if field.kind == "set" else _type_of(field)
    return value | None, Field(default=None, description=field.meaning)


def _several(field: StrategyField) -> Any:
    """The entry of a field that lists the values to search."""
    listed: Any = Annotated[_list_of[_type_of(field), ...], Field(min_length=1, max_length=1000)]
    return listed | None, Field(default=None, description=f"Values to search. {field.meaning}")


class _Methods:
    """The type of a list of ways to try."""

    def __getitem__(self, of: type[ContractModel]) -> Any:
        return Annotated[_list_of[of, ...], Field(min_length=1, max_length=32)] | None


_METHODS = _Methods()
Entry = Callable[[StrategyField], Any]


def _entries(group: str, entry: Entry) -> dict[str, Any]:
    """The fields of one group, or with "" those outside any, as `create_model` takes them."""
    return {field.part: entry(field) for field in FIELDS if field.group == group}


class _Exemplified(ContractModel):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_STRATEGY]})


if TYPE_CHECKING:

    class _OfTheTable(ContractModel):
        """What a type checker knows of the models below: they have whatever fields the table has."""

        def __getattr__(self, name: str) -> Any: ...

    class OverlapInput(_OfTheTable): ...

    class OffloadInput(_OfTheTable): ...

    class StrategyInput(_OfTheTable): ...

    class AllowedOverlap(_OfTheTable): ...

    class AllowedOffload(_OfTheTable): ...

    class AllowedValues(_OfTheTable): ...

else:

    def _model(name: str, doc: str, entries: dict[str, Any], base: type[ContractModel] = ContractModel) -> Any:
        return create_model(name, __base__=base, __doc__=doc, __module__=__name__, **entries)

    OverlapInput = _model(
        "OverlapInput",
        "Which communication runs beside computation; what is left out takes the framework's default.",
        _entries("overlap", _one),
    )
    OffloadInput = _model("OffloadInput", "What lives in host memory.", _entries("offload", _one))
    StrategyInput = _model(
        "StrategyInput",
        "How a job is split over the GPUs. world = tp * pp * cp * dp.",
        _entries("", _one)
        | {
            "overlap": (OverlapInput | None, Field(default=None, description=GROUPS["overlap"])),
            "offload": (OffloadInput | None, Field(default=None, description=GROUPS["offload"])),
            "sync": (SyncInput | None, Field(default=None, description=SYNC)),
            "compression": (CompressionInput | None, Field(default=None, description=COMPRESSION)),
        },
        _Exemplified,
    )

    AllowedOverlap = _model(
        "AllowedOverlap", "Values the search may take for each overlap flag.", _entries("overlap", _several)
    )
    AllowedOffload = _model(
        "AllowedOffload", "Values the search may take for each offload.", _entries("offload", _several)
    )
    AllowedValues = _model(
        "AllowedValues",
        "Lists of values, by strategy field; the search takes no other. What is not listed is searched or defaulted.",
        {name: entry for name, entry in _entries("", _several).items() if FIELD[name].is_listed}
        | {
            "overlap": (AllowedOverlap | None, Field(default=None, description=AllowedOverlap.__doc__)),
            "offload": (AllowedOffload | None, Field(default=None, description=AllowedOffload.__doc__)),
            "sync": (_METHODS[SyncInput], Field(default=None, description=f"{ALLOWED_METHODS} {SYNC}")),
            "compression": (
                _METHODS[CompressionInput],
                Field(default=None, description=f"{ALLOWED_METHODS} {COMPRESSION}"),
            ),
        },
    )
