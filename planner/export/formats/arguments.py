"""Command lines as settings with their lines, and settings as words of a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from planner.export.formats.documents import MOST_BYTES, unreadable
from planner.export.formats.script import read_commands
from planner.export.formats.shell_words import Word
from planner.export.settings import InputFile, Setting

OptionValue = str | int | float | bool | Sequence[str | int | float]
HARMLESS = frozenset({
    "cd", "date", "echo", "exit", "ls", "mkdir", "printf", "pwd", "set", "sleep", "test", "[", "[[", "true", "trap", "ulimit", "unset", "wait",
    "which", "nvidia-smi", "chmod", "module", "shift", ":",
})  # fmt: skip
"""Commands that change nothing of a training run."""
_NUMBER = re.compile(r"^-[\d.]")
_OVERRIDE = re.compile(r"^\+{0,2}[A-Za-z_]\w*(\.\w+)+=")
OWN_ARGUMENTS = "$@"
"""The key of `"$@"`: what the script itself is given."""
_OWN = frozenset({"$@", "${@}", "$*", "${*}", "${@:1}"})
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


def render_options(options: Iterable[tuple[str, OptionValue]]) -> tuple[str, ...]:
    """The words of options: one that is True has no value, one that is False is left out."""
    return tuple(word for name, value in options if value is not False for word in (name, *_values(value)))


def _values(value: OptionValue) -> tuple[str, ...]:
    if value is True:
        return ()
    return (str(value),) if isinstance(value, str | int | float) else tuple(str(each) for each in value)


def read_script(file: InputFile) -> list[Setting]:
    """The settings of a shell or batch script.

    Options of its commands are keyed by their dashes, words without dashes by "@", words such as `model.tp=4` by what
    stands before the equals sign, exported variables by "$NAME", batch directives by "#SBATCH --nodes", other commands by
    "!", and `"$@"` by "$@". A value that only a shell could compute has `is_open`.

    Raises:
        InvalidInputError: the file is too large, or a quote or bracket in it is not closed.
    """
    if len(file.content.encode(errors="replace")) > MOST_BYTES:
        raise unreadable(file, None, f"is larger than {MOST_BYTES >> 10} KiB", "Give the launch script alone.")
    script = read_commands(file)
    found = list(_directives(file))
    for name, word in script.exported.items():
        found.append(_setting(f"${name}", word.text, word, file))
    for command in script.commands:
        if command.words[0].text in HARMLESS:
            continue
        if not any(word.text.startswith("--") for word in command.words):
            text = " ".join(word.text for word in command.words)
            found.append(Setting("!", text, file.path, command.line, text=text))
            continue
        found += read_words(command.words, file.path)
    return found


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
            yield _setting(OWN_ARGUMENTS, word.text, word, file)
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
    if not values:
        yield _setting(key, True, at, file)
    elif len(values) == 1:
        yield _setting(key, values[0].text, values[0], file)
    else:
        is_open = any(word.is_open for word in values)
        text = " ".join(word.text for word in values)
        first, last = values[0], values[-1]
        yield Setting(key, tuple(w.text for w in values), file.path, first.line, first.column, last.line, text, is_open)
    for word in rest:
        yield _setting("@", word.text, word, file)


def _ends_values(word: Word) -> bool:
    return _is_option(word) or _is_own(word) or bool(_OVERRIDE.match(word.text))


def _is_own(word: Word) -> bool:
    return word.is_open and word.text in _OWN


def _is_option(word: Word) -> bool:
    return word.text.startswith("-") and len(word.text) > 1 and not _NUMBER.match(word.text)


def _setting(key: str, value: str | Literal[True], word: Word, file: InputFile) -> Setting:
    return Setting(key, value, file.path, word.line, word.column, word.line, word.text, word.is_open)


def _directives(file: InputFile) -> Iterator[Setting]:
    for match in _DIRECTIVE.finditer(file.content):
        line = file.content.count("\n", 0, match.start()) + 1
        for setting in read_words(match.group(1).split(" #")[0], file.path):
            yield Setting(f"#SBATCH {setting.key}", setting.value, file.path, line, setting.column, line, setting.text)
