"""Command lines as settings with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from cost_models.errors import InvalidInputError
from planner.export.formats.documents import MOST_BYTES, READERS, unreadable
from planner.export.formats.script import HereDocument, read_commands
from planner.export.formats.shell_words import Word
from planner.export.settings import InputFile, Setting

HARMLESS = frozenset({
    "cd", "date", "echo", "exit", "ls", "mkdir", "printf", "pwd", "set", "sleep", "test", "[", "[[", "true", "trap", "ulimit", "unset", "wait",
    "which", "nvidia-smi", "chmod", "module", "shift", ":", "break", "cat", "clear", "continue", "cp", "curl", "find", "grep", "head", "hostname",
    "kill", "mv", "popd", "pushd", "return", "rm", "rocm-smi", "scontrol", "tail", "tar", "tee", "touch", "wc", "wget",
})  # fmt: skip
"""Commands that change nothing of a training run."""
_NUMBER = re.compile(r"^-[\d.]")
_OVERRIDE = re.compile(r"^\+{0,2}[A-Za-z_]\w*(\.\w+)+=")
OWN_ARGUMENTS = "$@"
"""The key of `"$@"`: what the script itself is given."""
_OWN = frozenset({"$@", "${@}", "$*", "${*}", "${@:1}"})
LISTS_OPTIONS = re.compile(r"\$\{?\w*(args|arguments|opts?|options?|flags|params)(\[[@*]\])?(:-)?\}?", re.IGNORECASE)
"""A variable that stands for further options, by its name: `$GPT_ARGS`, `${pr_options}`."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
DOCUMENT = "<<"
"""The key of a text that a script writes into a file and that is no document."""
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


def read_script(file: InputFile) -> list[Setting]:
    """The settings of a shell or batch script.

    Options of its commands are keyed by their dashes, words without dashes by "@", words such as `model.tp=4` by what
    stands before the equals sign, exported variables by "$NAME", batch directives by "#SBATCH --nodes", other commands by
    "!", and `"$@"` by "$@". A document that it writes into a file has the keys of the document. A value that only a shell could
    compute has `is_open`, and so has one that depends on which of two branches runs.

    Raises:
        InvalidInputError: the file is too large, or a quote or bracket in it is not closed.
    """
    if len(file.content.encode(errors="replace")) > MOST_BYTES:
        raise unreadable(file, None, f"is larger than {MOST_BYTES >> 10} KiB", "Give the launch script alone.")
    script = read_commands(file)
    found = list(_directives(file))
    for name, word in script.exported.items():
        # A part of a command that is kept in a variable is read in the command.
        if name in script.used and "--" in word.text:
            continue
        found.append(_setting(f"${name}", word.text, word, file))
    for document in script.documents:
        found += _document(document, file)
    runs: list[tuple[bool, list[Setting]]] = []
    for command in script.commands:
        if command.words[0].text in HARMLESS:
            continue
        if not any(word.text.startswith("--") for word in command.words):
            text = " ".join(word.text for word in command.words)
            found.append(Setting("!", text, file.path, command.line, text=text))
            continue
        runs.append((command.in_branch, read_words(command.words, file.path)))
    return found + _unless_contradictory(runs)


def _document(written: HereDocument, file: InputFile) -> list[Setting]:
    """The settings of a JSON, YAML or TOML text that a script writes into a file; elsewhere the text as one setting."""
    text, line = written.text.text, written.text.line
    ending = PurePosixPath(written.target).suffix.lower()
    if ending not in READERS:
        ending = ".json" if text.lstrip().startswith("{") else ""
    # With an open part the text is no document yet, and it is shown as it is written.
    if ending and not written.text.is_open:
        try:
            # The lines before the text are kept, so that its own are those of the script.
            return list(READERS[ending](InputFile(file.path, "\n" * (line - 1) + text)))
        except InvalidInputError:
            pass
    return [Setting(DOCUMENT, text, file.path, line, text=text.split("\n")[0])] if text.strip() else []


def _unless_contradictory(runs: Sequence[tuple[bool, list[Setting]]]) -> list[Setting]:
    """The settings of all commands; where branches of which one runs say different things of a key, all of these stay open."""
    said: dict[str, set[str]] = {}
    doubtful: set[str] = set()
    for in_branch, settings in runs:
        for each in settings:
            said.setdefault(each.key, set()).add(str(each.value))
            if in_branch:
                doubtful.add(each.key)
    doubtful = {key for key in doubtful if len(said[key]) > 1 and key != "@"} if len(runs) > 1 else set()
    every = [each for _, settings in runs for each in settings]
    return [replace(each, is_open=True) if each.key in doubtful else each for each in every]


def read_words(words: Sequence[Word] | str, name: str) -> list[Setting]:
    """The settings of one command line, given as words or as a text. For keys see `read_script`.

    Args:
        name: what errors and settings call the file.
    """
    if isinstance(words, str):
        words = [word for command in read_commands(InputFile(name, words)).commands for word in command.words]
    return list(_options(words, name))


def _options(words: Sequence[Word], name: str) -> Iterator[Setting]:
    file, position = InputFile(name, ""), 0
    while position < len(words):
        word = words[position]
        position += 1
        if _is_own(word):
            key = OWN_ARGUMENTS if word.text in _OWN else "@"
            yield _setting(key, word.text, word, file)
            continue
        if not _is_option(word):
            key, equals, value = word.text.partition("=")
            is_override = equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w.]*", key)
            yield _setting(key, value, word, file) if is_override else _setting("@", word.text, word, file)
            continue
        key, equals, value = word.text.partition("=")
        if equals:
            yield _setting(key, value, word, file)
            continue
        given: list[Word] = []
        while position < len(words) and not _ends_values(words[position]):
            given.append(words[position])
            position += 1
        yield from _option(key, word, given, file)


def _option(key: str, at: Word, given: list[Word], file: InputFile) -> Iterator[Setting]:
    # A program's name ends the values of the launcher's last option: `torchrun --standalone train.py --bf16`.
    program = next((n for n, word in enumerate(given) if word.text.endswith(".py")), len(given))
    values, rest = given[:program], given[program:]
    is_open = at.is_open or any(word.is_open for word in values)
    if not values:
        yield _setting(key, True, at, file)
    elif key == "-x" and _VARIABLE.match(values[0].text):
        # mpirun's way to set a variable on every rank.
        name, _, value = values[0].text.partition("=")
        yield _setting(f"${name}", value, values[0], file)
        rest = [*values[1:], *rest]
    elif len(values) == 1:
        yield replace(_setting(key, values[0].text, values[0], file), is_open=is_open)
    else:
        text = " ".join(word.text for word in values)
        first, last = values[0], values[-1]
        yield Setting(key, tuple(w.text for w in values), file.path, first.line, first.column, last.line, text, is_open)
    for word in rest:
        yield _setting("@", word.text, word, file)


def _ends_values(word: Word) -> bool:
    return _is_option(word) or _is_own(word) or bool(_OVERRIDE.match(word.text))


def _is_own(word: Word) -> bool:
    """Whether a word is no value of an option, but stands for further ones."""
    return word.is_open and (word.text in _OWN or bool(LISTS_OPTIONS.fullmatch(word.text)))


def _is_option(word: Word) -> bool:
    return word.text.startswith("-") and len(word.text) > 1 and not _NUMBER.match(word.text)


def _setting(key: str, value: str | Literal[True], word: Word, file: InputFile) -> Setting:
    return Setting(key, value, file.path, word.line, word.column, word.line, word.text, word.is_open)


def _directives(file: InputFile) -> Iterator[Setting]:
    for match in _DIRECTIVE.finditer(file.content):
        line = file.content.count("\n", 0, match.start()) + 1
        # No shell reads a directive, so that these characters, which stand in templates, redirect nothing.
        words = match.group(1).split(" #")[0].translate(str.maketrans("<>", "  "))
        for setting in read_words(words, file.path):
            yield Setting(f"#SBATCH {setting.key}", setting.value, file.path, line, setting.column, line, setting.text)
