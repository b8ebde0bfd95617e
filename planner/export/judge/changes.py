"""The settings in which somebody's files differ from those that say another plan, as changes of these files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from cost_models.errors import NotExpressibleError
from planner.export.export import export_row, said
from planner.export.import_config import Imported, read_file
from planner.export.judge.best_plan import BestPlan
from planner.export.judge.edits import Place, added, applied, offset_of, removed, replaced, value_text
from planner.export.launch_plan import LaunchPlan
from planner.export.launchers.launch_line import RANK_KEYS, read_launch
from planner.export.launchers.shell import LAUNCH
from planner.export.quantities import Quantities
from planner.export.settings import InputFile, Setting, Settings
from planner.export.target import Target

MICRO_BATCHES = "num_micro_batches"
"""What accumulation steps say; no field of a row, since it follows from the batch."""
TOGETHER = (
    ("recompute", "recompute_method", "recompute_num_layers", "recompute_modules", "recompute_per_stage"),
    ("zero", "zero_shard_size", "zero_param_shard_size", "grad_sync"),
    ("vpp", "schedule", "layers_per_stage"),
)
"""Fields that mean something only with each other."""
_READ = (".json", ".yaml", ".toml", ".py")
_AROUND = frozenset({"pytorchjob.yaml", "jobset.yaml", "plan.json"})


@dataclass(frozen=True)
class Change:
    """One changed setting, or a field that no file of theirs says."""

    fields: tuple[str, ...]
    """What it changes, in the contract's names."""
    old: str | None
    new: str | None
    file: str | None = None
    line: int | None = None
    place: Place | None = None
    override: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the strategy, where there is no place for them."""
    reason: str | None = None
    """Why it has no gain of its own."""


def changed_fields(current: LaunchPlan, best: LaunchPlan) -> dict[str, tuple[Any, Any]]:
    """The strategy's fields that differ and make a difference, with both values."""
    told = [Quantities(plan, target="", version="") for plan in (current, best)]
    names = [name for name in {**told[0], **told[1]} if not name.startswith(("training.", "model."))]
    found = {
        name: (told[0].peek(name), told[1].peek(name))
        for name in names
        if told[0].peek(name) != told[1].peek(name) and (told[0].matters(name) or told[1].matters(name))
    }
    # All ranks, whose number follows from the degrees, is one and the same choice.
    if all(told_one["zero_shard_size"] == told_one["dp"] * told_one["cp"] for told_one in told):
        found.pop("zero_shard_size", None)
    if current.num_micro_batches != best.num_micro_batches:
        found[MICRO_BATCHES] = (current.num_micro_batches, best.num_micro_batches)
    return found


def changes_of(imported: Imported, best: BestPlan, changed: Mapping[str, Any], *, allow_files: bool, extra: Any) -> list[Change]:  # fmt: skip
    """A change for every setting that decides one of these fields and says something else for the best plan."""
    theirs = _deciding(imported.settings, changed)
    ours = _deciding(_written(best, imported.target, allow_files=allow_files, extra=extra), changed)
    aliases = imported.target.aliases
    found, spelled = [], set()
    for key, (setting, fields) in theirs.items():
        alias = aliases.get(key)
        other = ours.get(key if alias is None else alias.key)
        spelled.add(key if alias is None else alias.key)
        text = None if other is None else value_text(other[0]) if alias is None else alias.text(other[0].value)
        file = _file_of(imported, setting)
        if file is None:
            continue
        if text is None:
            place = removed(file, setting)
        elif other is not None and _same(setting.value, other[0].value if alias is None else text):
            continue
        else:
            place = replaced(file, setting, text)
        if place is not None:
            found.append(
                Change(fields, _text(setting), text and _shown(setting.own_key, text), file.path, setting.line, place)
            )
    # A key that is there and decides nothing, as one that says "auto", gets a value; there is no second one of it.
    silent = {each.key: each for each in imported.settings if each.key not in theirs}
    for key in [key for key in ours if key not in spelled and key in silent]:
        setting, (new, fields) = silent[key], ours.pop(key)
        file = _file_of(imported, setting)
        place = None if file is None else replaced(file, setting, _value(new))
        if file is not None and place is not None:
            shown = _shown(setting.own_key, _value(new))
            found.append(Change(fields, _text(setting), shown, file.path, setting.line, place))
    # Several settings may stand on one line, of which a change takes out one.
    gone = [each for each in found if each.new is None]
    return found + _additions(imported, [each for key, each in ours.items() if key not in spelled], gone)


def environment_changes(imported: Imported, current: LaunchPlan, best: LaunchPlan, version: str) -> list[Change]:
    """The environment variables that the best plan needs, where their scripts set others, or none although theirs needed none."""
    # A variable is a part of no plan, but a launch may be refused, or overlap nothing, without it.
    needs = said(best, imported.target, version).variables
    try:
        needed = {each.name: each.value for each in said(current, imported.target, version).variables}
    except NotExpressibleError:
        needed = {}
    found = []
    for variable in needs:
        theirs = [each for each in imported.settings if each.key == f"${variable.name}"]
        if (theirs and theirs[-1].value == variable.value) or (
            not theirs and needed.get(variable.name) == variable.value
        ):
            continue
        new = f"{variable.name}={variable.value}"
        if not theirs:
            found.append(Change((f"${variable.name}",), None, new, reason=variable.why))
            continue
        file = _file_of(imported, theirs[-1])
        place = None if file is None else replaced(file, theirs[-1], variable.value)
        old = f"{variable.name}={theirs[-1].value}"
        found.append(
            Change((f"${variable.name}",), old, new, theirs[-1].file, theirs[-1].line, place, reason=variable.why)
        )
    return found


def with_changes(files: Iterable[InputFile], changes: Sequence[Change]) -> list[InputFile]:
    """The files after these changes."""
    return [
        replace(
            file,
            content=applied(
                file.content, [each.place for each in changes if each.file == file.path and each.place is not None]
            ),
        )
        for file in files
    ]


def _deciding(settings: Settings, changed: Mapping[str, Any]) -> dict[str, tuple[Setting, tuple[str, ...]]]:
    """The last setting of every key that decides a changed field, with these fields. The launch line's ranks stay as they are."""
    found = {}
    for setting, fields in settings.decided():
        # A method of recomputation goes with the recomputation, although a plan without one has no method that could differ.
        own = dict.fromkeys(name for each in fields for name in (each, *_family(each)) if name in changed)
        stated = tuple(name for name in own if name in fields) or tuple(own)
        if stated and setting.key not in RANK_KEYS:
            found[setting.key] = (setting, stated)
    return found


def _family(name: str) -> tuple[str, ...]:
    return next((each for each in TOGETHER if name in each), ())


def _written(best: BestPlan, target: Target, *, allow_files: bool, extra: Any) -> Settings:
    """The settings of the best plan's own launch files."""
    written = export_row(best.row, target.name, framework_version=best.version, allow_files=allow_files, extra=extra)
    files = []
    for each in written:
        file, ending = InputFile(each.path, each.content), PurePosixPath(each.path).suffix
        if each.path in _AROUND or "mock" in each.path or (ending not in _READ and each.path != LAUNCH):
            continue
        if ending == ".py" and not (target.recognises is not None and target.recognises([file])):
            continue
        files.append(file)
    settings = Settings([setting for file in files for setting in read_file(file, target)], files=files)
    assert target.read is not None
    target.read(settings)
    read_launch(settings)
    return settings


def _file_of(imported: Imported, setting: Setting) -> InputFile | None:
    return next((file for file in imported.settings.files if file.path == setting.file), None)


def _additions(
    imported: Imported, further: Sequence[tuple[Setting, tuple[str, ...]]], gone: Sequence[Change]
) -> list[Change]:
    """The settings as further ones of the file of theirs that has most in common with their own; those that have a place."""
    # One stands beside what decides the same, where there is something, and never beside what is taken out.
    fields = {name for _, own in further for name in own}
    decided = [(each, own) for each, own in imported.settings.decided() if not _taken_out(imported, each, gone)]
    decided.sort(key=lambda each: bool(set(each[1]) & fields))
    understood = [each for each, _ in decided if each.key not in RANK_KEYS]
    found: list[Change] = []
    by_file: dict[str, list[tuple[Setting, tuple[str, ...]]]] = {}
    for each in further:
        by_file.setdefault(each[0].file, []).append(each)
    for path, settings in by_file.items():
        for file in _alike(imported, path, understood):
            beside = [each for each in understood if each.file == file.path]
            places = added(file, beside, [(each.key, _value(each)) for each, _ in settings]) if beside else [None]
            if all(place is None for place in places):
                continue
            for (setting, own), place in zip(settings, places, strict=True):
                if place is not None:
                    line = file.content.count("\n", 0, place.start) + 1
                    found.append(Change(own, None, _shown(setting.key, _value(setting)), file.path, line, place))
            break
    return found


def _taken_out(imported: Imported, setting: Setting, gone: Sequence[Change]) -> bool:
    file = _file_of(imported, setting)
    if file is None:
        return False
    at = offset_of(file.content, setting.line, setting.column)
    return any(
        each.place is not None and each.file == file.path and each.place.start <= at < each.place.end for each in gone
    )


def _alike(imported: Imported, path: str, understood: Sequence[Setting]) -> list[InputFile]:
    """Their files in the language of one of ours, the likeliest first: of the same name, or with the most that is understood."""
    # Settings of Accelerate's JSON do not belong into the model's.
    return sorted(
        (file for file in imported.settings.files if _language(file.path) == _language(path)),
        key=lambda file: (PurePosixPath(file.path).name != path, -sum(each.file == file.path for each in understood)),
    )


def _value(setting: Setting) -> str:
    return "" if setting.value is True and setting.key.startswith("--") else value_text(setting)


def _language(path: str) -> str:
    ending = PurePosixPath(path).suffix.lower()
    return {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".py": "python"}.get(ending, "words")


def _same(one: Any, other: Any) -> bool:
    """Whether two values mean the same: 1 and 1.0 do, true and 1 do not."""
    return bool(one == other and isinstance(one, bool) == isinstance(other, bool))


def _text(setting: Setting) -> str:
    is_switch = setting.value is True and setting.own_key.startswith("-")
    return _shown(setting.own_key, "" if is_switch else value_text(setting))


def _shown(key: str, text: str) -> str:
    return f"{key} {text}".rstrip() if key.startswith("-") else f"{key}: {text}"
