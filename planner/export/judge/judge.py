"""Is what somebody runs now any good? Its prediction, the best plan for the same job, and the difference in their own files.

Every change is priced alone (`pricing.py`); what is left between the sum of their gains and the whole gain is the interaction.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from planner.answer.apart import steps_apart
from planner.export.import_config import Imported, import_config
from planner.export.imported_row import Overrides, merged
from planner.export.judge.best_plan import BestPlan, best_plan
from planner.export.judge.changes import (
    MICRO_BATCHES,
    TOGETHER,
    Change,
    changed_fields,
    changes_of,
    environment_changes,
    with_changes,
)
from planner.export.judge.pricing import priced
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.export.settings import InputFile
from planner.request.job import Documents
from planner.rows import evaluate_rows
from planner.search.progress import Progress

Json = dict[str, Any]
_AT_LEAST = 1e-6
"""Share of a step that a plan must be faster than theirs to be called better: times are rounded to it before ranking."""


def judge(
    files: Sequence[InputFile],
    *,
    megatron_args: str | None = None,
    given: Overrides | None = None,
    framework: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
    time_limit_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Json:
    """The contract's answer to `judge`.

    Args:
        time_limit_s: of each search for the best plan; by default there is none.
        on_progress: called between chunks of the search.
        should_stop: asked during the search.

    For the other arguments see `import_config`.

    Raises:
        InvalidInputError: a file cannot be read, or something that has to be known is missing.
    """
    given = given or Overrides()
    imported = import_config(
        files, megatron_args=megatron_args, given=given, framework=framework, extra=extra, allow_files=allow_files
    )
    if imported.missing:
        raise InvalidInputError([_missing(pointer) for pointer in imported.missing])
    judged = _Judged(imported, given, extra=extra, allow_files=allow_files)
    current = judged.evaluated([imported.row])[0]
    best = best_plan(
        judged.job_row(current), imported.target, extra=extra, allow_files=allow_files, time_limit_s=time_limit_s,
        on_progress=on_progress, should_stop=should_stop,
    )  # fmt: skip
    answer: Json = {
        "import": imported.document(), "current": current, "best": best and best.ranked, "gain_fraction": None, "gain_range": None,
        "tie": False, "changes": [], "interaction_s": None, "diff": "",
    }  # fmt: skip
    if best is None:
        return answer
    if current["step_time_s"] is not None:
        answer |= _gain(current, best.ranked["evaluation"], judged.plan(best.row))
        ahead = current["step_time_s"] <= best.ranked["evaluation"]["step_time_s"] * (1 + _AT_LEAST)
        if current["verdict"] == "fits" and ahead:
            return answer | {"interaction_s": 0.0}
    return answer | judged.difference(current, best)


def _cleaned(seconds: float, total: float) -> float:
    """The seconds, or 0 where they are the last digits of a sum."""
    return 0.0 if abs(seconds) <= _AT_LEAST * abs(total) else seconds


def _missing(pointer: str) -> Problem:
    name = pointer[1:].replace("/", ".")
    hint = f"The files do not say it. Give it beside them: {pointer}."
    return Problem(pointer, f"{name} is missing", hint, "missing-field")


class _Judged:
    """Their configuration, and what becomes of it after changes."""

    def __init__(self, imported: Imported, given: Overrides, *, extra: Documents | None, allow_files: bool) -> None:
        self._imported, self._given = imported, given
        self._extra, self._allow_files = extra, allow_files

    def plan(self, row: Mapping[str, Any]) -> LaunchPlan:
        return launch_plan(row, extra=self._extra, allow_files=self._allow_files)

    def evaluated(self, rows: Sequence[Mapping[str, Any]]) -> list[Json]:
        return list(evaluate_rows(rows, extra=self._extra, allow_files=self._allow_files))

    def job_row(self, current: Json) -> Json:
        """A legal row of the job, whose strategy does not matter: theirs may be one that the framework would refuse."""
        if current["verdict"] != "invalid":
            return self._imported.row
        return {**self._imported.row, "strategy": {"micro_batch_size": 1}}

    def difference(self, current: Json, best: BestPlan) -> Json:
        """`changes`, `interaction_s` and `diff`."""
        target = self.plan(best.row)
        try:
            changed = changed_fields(self.plan(self._imported.row), target)
        except InvalidInputError:
            # No framework runs theirs, so that there is nothing to compare field by field, or to gain.
            return {}
        if not changed:
            return {"interaction_s": 0.0}
        found, left = self._placed(best, changed, target)
        found += self._unplaced(left, target)
        found += environment_changes(self._imported, self.plan(self._imported.row), target, best.version)
        changes = priced(self._imported.row, current, found, changed, target, evaluated=self.evaluated)
        total = self._total(current, best)
        gains = [each["time_gain_s"] for each in changes if each["time_gain_s"] is not None]
        return {
            "changes": changes,
            "interaction_s": None if total is None else _cleaned(total - sum(gains), total),
            "diff": self._diff(found),
        }

    @staticmethod
    def _total(current: Json, best: BestPlan) -> float | None:
        theirs = current["step_time_s"]
        return None if theirs is None else float(theirs - best.ranked["evaluation"]["step_time_s"])

    def _row(self, changes: Sequence[Change]) -> Json:
        """The row of their files with these changes."""
        files = with_changes(self._imported.settings.files, changes)
        override: Json = {}
        for each in changes:
            override = merged(override, each.override)
        # What a file says now is not given beside it any longer.
        placed = {name.partition(".")[0] for each in changes if each.place is not None for name in each.fields}
        kept = {name: value for name, value in self._given.strategy.items() if name not in placed}
        given = replace(self._given, strategy=merged(kept, override))
        plain = [file for file in files if not file.path.startswith("--")]
        words = next((file.content for file in files if file.path.startswith("--")), None)
        return import_config(
            plain, megatron_args=words, given=given, framework=self._imported.target.name, extra=self._extra, allow_files=self._allow_files
        ).row  # fmt: skip

    def _placed(
        self, best: BestPlan, changed: Mapping[str, tuple[Any, Any]], target: LaunchPlan
    ) -> tuple[list[Change], Mapping[str, tuple[Any, Any]]]:
        """The changes that have a place in their files, and the fields in which the best plan still differs after them."""
        wanted = dict(changed)
        while True:
            found = changes_of(self._imported, best, wanted, allow_files=self._allow_files, extra=self._extra)
            try:
                left = changed_fields(self.plan(self._row(found)), target)
            except MeshwrightError:
                # Together these changes are no plan yet; what is missing is among the other fields that differ.
                placed = {name for each in found for name in each.fields}
                return found, {name: values for name, values in changed.items() if name not in placed}
            # A default may depend on what was changed, so that a field has to be said that they need not say now.
            if left.keys() <= wanted.keys():
                return found, left
            wanted = {**left, **wanted}

    @staticmethod
    def _unplaced(left: Mapping[str, tuple[Any, Any]], target: LaunchPlan) -> list[Change]:
        """What their files do not say even after the changes: it is set somewhere else, such as in their program."""
        names = [name for name in left if name != MICRO_BATCHES]
        changes = []
        while names:
            group = next((each for each in TOGETHER if names[0] in each), (names[0],))
            own = [name for name in names if name in group]
            names = [name for name in names if name not in group]
            override: Json = {}
            for name in group:
                override = merged(override, _nested(name, target.strategy))
            old, new = (", ".join(f"{name} {left[name][side]}" for name in own) for side in (0, 1))
            changes.append(Change(tuple(own), old, new, override=override))
        return changes

    def _diff(self, found: Sequence[Change]) -> str:
        before = self._imported.settings.files
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for old, new in zip(before, with_changes(before, found), strict=True)
            for line in difflib.unified_diff(
                old.content.splitlines(keepends=True), new.content.splitlines(keepends=True), old.path, new.path
            )
        )


def _gain(current: Json, best: Json, plan: LaunchPlan) -> Json:
    """`gain_fraction`, its 80 % range, and whether the two are too close to call, by the rule of the ranking's tie groups."""
    calibrations = [job.calibration for job in plan.pooled.jobs]
    apart = steps_apart([best, current], leader=0, calibrations=calibrations)
    theirs = current["step_time_s"]
    return {
        "gain_fraction": (theirs - best["step_time_s"]) / theirs,
        "gain_range": [float(apart.low_s[1]) / theirs, min(float(apart.high_s[1]) / theirs, 1.0)],
        "tie": bool(apart.tied[1]),
    }


def _nested(name: str, strategy: Mapping[str, Any]) -> Json:
    group, _, rest = name.rpartition(".")
    if group:
        return {group: {rest: strategy[group][rest]}}
    return {name: strategy.get(name)}
