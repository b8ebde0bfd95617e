"""From configuration files that somebody has to an evaluate row. Nothing in them is executed.

What was not understood is listed with its line, and what no row can do without is listed as missing: nothing is dropped in
silence, and nothing that a file decides is replaced by a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint
from planner.export.formats.arguments import read_script, read_words
from planner.export.formats.documents import MOST_BYTES, READERS, read_document, unreadable
from planner.export.imported_row import Completed, Overrides, completed
from planner.export.settings import InputFile, Setting, Settings
from planner.export.target import Target
from planner.export.targets import TARGETS
from planner.export.targets.torchtitan.python_calls import read_python
from planner.request.job import Documents

ARGUMENTS = "--megatron-args"
"""What settings of a list of arguments call their file."""
MOST_FILES = 20
_SCRIPTS = frozenset({"", ".sh", ".bash", ".sbatch", ".slurm", ".job", ".sub", ".txt", ".args"})
_INSIDE: Mapping[str, tuple[str, ...]] = {"accelerate": ("deepspeed",), "transformers": ("deepspeed",)}
"""Targets whose files may stand beside those of another one, which these hand on."""
_SHOWN = 200


@dataclass(frozen=True)
class Imported:
    """What was read from files."""

    row: dict[str, Any]
    target: Target
    settings: Settings
    missing: tuple[str, ...]
    """JSON pointers into the row."""
    notes: tuple[str, ...]

    @property
    def unknown(self) -> list[dict[str, Any]]:
        """The contract's `unknown`."""
        return [{"file": each.file, "line": each.line, "text": shown(each)} for each in self.settings.unknown()]

    def document(self) -> dict[str, Any]:
        """The contract's answer to `import`."""
        return {
            "row": self.row, "format": self.target.name, "unknown": self.unknown, "missing": list(self.missing), "notes": list(self.notes),
        }  # fmt: skip


def import_config(
    files: Sequence[InputFile],
    *,
    megatron_args: str | None = None,
    given: Overrides | None = None,
    framework: str | None = None,
    extra: Documents | None = None,
    allow_files: bool = False,
) -> Imported:
    """The evaluate row of an existing configuration.

    Args:
        files: the configuration and the scripts that start it. Later ones override earlier ones.
        megatron_args: arguments of Megatron-LM as one text, which override those of the files.
        given: model, cluster and further fields, in the place of what the files say.
        framework: name of the target that the files are for, where they could be for several.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    Raises:
        InvalidInputError: a file cannot be read, its kind is not known, or the files contradict each other; with file and line.
    """
    every = [*files, *([InputFile(ARGUMENTS, megatron_args)] if megatron_args is not None else [])]
    if not every:
        raise InvalidInputError([Problem("/files", "there are no files", "Give at least one.", "missing-field")])
    if len(every) > MOST_FILES:
        message = f"{len(every)} files are more than the {MOST_FILES} that are read at once"
        raise InvalidInputError([Problem("/files", message, "Give those of one run.", "too-many-files")])
    if len({file.path for file in every}) < len(every):
        raise InvalidInputError([Problem("/files", "a file is given twice", "Give each once.", "repeated-file")])
    for file in every:
        if len(file.content.encode(errors="replace")) > MOST_BYTES:
            raise unreadable(
                file, None, f"is larger than {MOST_BYTES >> 10} KiB", "Give the configuration of the run alone."
            )
    # Before it is asked whose they are, so that a file that cannot be read is refused for that.
    read = {file.path: read_file(file) for file in every}
    target = _target(every, framework)
    programs = [] if target.recognises is None else [file for file in every if target.recognises([file])]
    for file in every:
        if _ending(file) == ".py" and file not in programs:
            read[file.path] = [_unread(file)]
        elif _ending(file) == ".py":
            read[file.path] = read_file(file, target)
    settings = Settings([setting for file in every for setting in read[file.path]], files=every)
    assert target.read is not None
    parts = target.read(settings)
    done: Completed = completed(parts, settings, given or Overrides(), extra=extra, allow_files=allow_files)
    return Imported(done.row, target, settings, done.missing, done.notes)


def _ending(file: InputFile) -> str:
    return PurePosixPath(file.path).suffix.lower()


def read_file(file: InputFile, target: Target | None = None) -> list[Setting]:
    """The settings of a file, read as its ending says, and a program as its target does.

    Raises:
        InvalidInputError: the ending is none that is known, or the file is not what its ending says.
    """
    ending = _ending(file)
    if file.path == ARGUMENTS:
        return read_words(file.content, ARGUMENTS)
    if ending in READERS:
        return read_document(file)
    if ending in _SCRIPTS:
        return read_script(file)
    if ending == ".py":
        return _python(file, target)
    known = ", ".join(sorted({*READERS, *_SCRIPTS, ".py"} - {""}))
    raise unreadable(file, None, f"ends in {ending!r}, which says nothing of what it holds", f"Known endings: {known}.")


def _python(file: InputFile, target: Target | None) -> list[Setting]:
    own = None if target is None else target.python
    try:
        return read_python(file) if own is None else own(file)
    except SyntaxError as error:
        raise unreadable(file, error.lineno, f"is not Python: {error.msg}") from error
    except ValueError as error:
        raise unreadable(file, None, f"is not Python: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise unreadable(file, None, "is nested too deeply") from error


def _unread(file: InputFile) -> Setting:
    """A program in place of a configuration: it says more than could be told without running it."""
    return Setting("!", "", file.path, 1, text="a Python program, of which nothing is read")


def _target(files: Sequence[InputFile], framework: str | None) -> Target:
    readers = {name: target for name, target in TARGETS.items() if target.read is not None}
    if framework is not None:
        if framework not in readers:
            message = f"{framework!r} is no target whose files can be read"
            raise InvalidInputError(
                [Problem("/framework", message, choice_hint(framework, tuple(readers)), "unknown-target")]
            )
        return readers[framework]
    found = [name for name, target in readers.items() if target.recognises is not None and target.recognises(files)]
    # The option names its framework, however few arguments it holds.
    if any(file.path == ARGUMENTS for file in files):
        found = [next(iter(readers))]
    # The JSON of DeepSpeed beside Accelerate's YAML is a part of that run, not a run of its own.
    inside = {each for name in found for each in _INSIDE.get(name, ())}
    found = [name for name in found if name not in inside]
    if len(found) == 1:
        return readers[found[0]]
    names = ", ".join(file.path for file in files)
    if found:
        message = f"{names} could be files for {' or '.join(found)}"
        hint = "Say which with --framework, or give the files of one run."
    else:
        message = f"{names}: nothing in it tells which framework it is for"
        hint = f"Say it with --framework: {', '.join(readers)}."
    raise InvalidInputError([Problem("/files", message, hint, "unknown-format")])


def shown(setting: Setting) -> str:
    """A setting as lists of what was not understood show it."""
    if setting.key in ("!", "@"):
        text = setting.text
    elif setting.key.startswith(("-", "#SBATCH")):
        said = setting.text.removeprefix(f"{setting.key}=")
        text = setting.key if setting.value is True else f"{setting.key} {said}"
    else:
        text = (
            f"{setting.key}: {setting.text}" if not setting.key.startswith("$") else f"{setting.key[1:]}={setting.text}"
        )
    text = " ".join(text.split())
    text = text or "''"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
