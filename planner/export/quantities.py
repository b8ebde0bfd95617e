"""The account of what a launch has said: no field of a plan is left out in silence, and none is approximated.

A writer asks `Quantities` for each value and thereby promises to say it. What a target does by itself, it states with
`implied`. At the end `finish` refuses the plan if a field that matters was not said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from typing import Any, Self

from cost_models.errors import NotExpressibleError
from planner.export.launch_plan import LaunchPlan

ABOUT_DATA_AND_DATES = frozenset({
    "training.framework", "training.framework_version", "training.software_date", "training.total_tokens", "training.document_lengths",
    "training.checkpoint", "model.name", "sync.steps_factor", "training.packing",
})  # fmt: skip
"""What no launch file says: which program is launched, for how many steps, and how these are saved."""
_BETWEEN_COPIES = (
    "zero_shard_size", "zero_param_shard_size", "overlap.grad_reduce", "overlap.param_gather", "training.grad_reduce_dtype",
)  # fmt: skip
NOTHING: tuple[Any, ...] = (None, False, 0, "none", ())
"""Values that ask a target for nothing."""


_DESCRIPTIONS = frozenset({"training.towers", "model.recurrent", "training.document_lengths"})
"""Fields whose values are whole descriptions."""
_WRITTEN_AS = {"training.mean_document_length": "training.document_lengths"}
"""Fields that follow from another one where that is given: errors name what was written."""


class FieldNotExpressibleError(NotExpressibleError):
    """A target cannot say a field of the plan.

    `context` holds `field`, `value`, `target`, `version` and `nearest`: values by field that the target can say instead.
    """

    def __init__(
        self,
        field: str,
        value: Any,
        target: str,
        version: str,
        *,
        why: str,
        nearest: Mapping[str, Any] | None = None,
        hint: str = "Choose another target, or fix the field to what this one can say.",
    ) -> None:
        instead = ", ".join(f"{name} {said(each)}" for name, each in (nearest or {}).items())
        hint = f"Plan with {instead}." if instead else hint
        # A description of many fields says less than its name.
        told = field if field in _DESCRIPTIONS else f"{field} {said(value)}"
        super().__init__(
            f"{target} {version} cannot be told {told}: {why}",
            hint=hint,
            context={
                "field": field, "value": value, "target": target, "version": version, "nearest": dict(nearest or {}),
            },
        )  # fmt: skip


def said(value: Any) -> str:
    """A value as messages show it."""
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


class Quantities(Mapping[str, Any]):
    """The fields of a plan by name: a strategy's bare ("tp", "overlap.tp_comm"), others under "training." and "model."."""

    def __init__(self, plan: LaunchPlan, *, target: str, version: str) -> None:
        self.plan, self.target, self.version = plan, target, version
        self.release = version
        self._values = dict(_flat(plan))
        self._idle = idle_fields(plan)
        self._said: set[str] = set()

    def __getitem__(self, field: str) -> Any:
        """The value of a field, which the caller promises to say; None where the plan says nothing of it."""
        self._said.add(field)
        return self._values.get(field)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def on(self, release: str) -> Self:
        """The same account for a front end, whose settings are those of a release of the framework that it is built on.

        Errors still name the front end and its version; `release` is what settings are asked for.
        """
        view = copy(self)
        view.release = release
        return view

    def peek(self, field: str) -> Any:
        """The value of a field, without a promise."""
        return self._values.get(field)

    def matters(self, field: str) -> bool:
        """Whether a field can make a difference in this plan: `cp_comm`, say, does not where cp is 1."""
        return field in self._values and field not in self._idle

    def only(self, field: str, allowed: Collection[Any], *, why: str, nearest: Mapping[str, Any] | None = None) -> Any:
        """The value of a field that the target can say for some values only.

        Raises:
            FieldNotExpressibleError: the field matters and has another value.
        """
        value = self[field]
        if self.matters(field) and value not in allowed:
            raise self.refusal(field, why=why, nearest=nearest or {field: next(iter(allowed))})
        return value

    def implied(self, field: str, value: Any, *, why: str) -> None:
        """States that the target always does `value`, without being told."""
        self.only(field, [value], why=why)

    def refusal(
        self, field: str, *, why: str, nearest: Mapping[str, Any] | None = None, **hint: str
    ) -> FieldNotExpressibleError:
        """The error that the target cannot say the value of a field; a `hint` where no other target can either."""
        written = _WRITTEN_AS.get(field, field)
        field = written if written in self._values else field
        return FieldNotExpressibleError(
            field, self._values.get(field), self.target, self.version, why=why, nearest=nearest, **hint
        )

    def unsaid(self) -> list[str]:
        """Fields that matter, ask for something, and were not said."""
        skipped = self._said | self._idle | ABOUT_DATA_AND_DATES
        return [name for name, value in self._values.items() if name not in skipped and not _asks_nothing(name, value)]

    def finish(self) -> None:
        """Checks that everything was said.

        Raises:
            FieldNotExpressibleError: a field that matters was not.
        """
        for field in self.unsaid():
            raise self.refusal(field, why="it has no setting for it")


def _asks_nothing(name: str, value: Any) -> bool:
    # These are on in many frameworks where nothing is said, so that "false" has to be said as well.
    return value in NOTHING and name != "sequence_parallel" and not name.startswith("overlap.")


def _flat(plan: LaunchPlan) -> Iterator[tuple[str, Any]]:
    # Three spellings mean that every layer is recomputed as a unit of its own; writers see the plainest one.
    plain = {"recompute_method": None, "recompute_num_layers": None} if _recomputes_each_layer(plan) else {}
    for name, value in (dict(plan.strategy) | plain).items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{part}", each) for part, each in value.items())
        else:
            yield name, tuple(value) if isinstance(value, list) else value
    for group, document in (("training", plan.training), ("model", plan.model)):
        for name, value in document.items():
            # Padded rows are whole sequences to a program; which of their tokens are documents' is for its data to say.
            if name == "mean_document_length" and plan.training.get("packing") == "padded":
                continue
            yield f"{group}.{name}", tuple(value) if isinstance(value, list) else value


def _recomputes_each_layer(plan: LaunchPlan) -> bool:
    """Whether full recomputation covers every layer, one at a time: in units of one layer, or as many as the largest chunk has."""
    method, count = plan.strategy["recompute_method"], plan.strategy["recompute_num_layers"]
    if method == "uniform":
        return bool(count == 1)
    return bool(method == "block" and count is not None and count >= max(plan.layers_per_stage))


def idle_fields(plan: LaunchPlan) -> frozenset[str]:
    """Fields of a plan that make no difference beside its other fields, whatever they are."""
    return idle_beside(plan.strategy, model=plan.model, training=plan.training)


def idle_beside(
    strategy: Mapping[str, Any], *, model: Mapping[str, Any], training: Mapping[str, Any]
) -> frozenset[str]:
    """The same for documents in the contract's names, with the strategy filled in."""
    named = strategy
    shards_further = named["zero"] == 3 and named.get("zero_param_shard_size") != named.get("zero_shard_size")
    conditions: list[tuple[bool, tuple[str, ...]]] = [
        (named["tp"] == 1, ("sequence_parallel", "overlap.tp_comm")),
        (named["cp"] == 1, ("cp_comm",)),
        ("moe" not in model, ("ep", "etp", "moe_dispatcher", "flex_backend")),
        (named["ep"] == 1, ("overlap.moe_all_to_all",)),
        (named["pp"] == 1, ("schedule", "overlap.p2p", "layers_per_stage")),
        (named["dp"] * named["cp"] == 1, (*_BETWEEN_COPIES, "grad_sync")),
        (training["global_batch_size"] == named["dp"] * named["micro_batch_size"], ("grad_sync",)),
        (named["zero"] == 0, ("zero_shard_size", "overlap.param_gather")),
        (not shards_further, ("zero_param_shard_size",)),
        (training["precision"] not in ("fp8", "nvfp4"), ("training.fp8_recipe",)),
        (training["attention"] == "math", ("training.attention_kernel",)),
    ]
    return frozenset(field for idle, fields in conditions if idle for field in fields)
