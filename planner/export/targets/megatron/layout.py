"""Lists of layers as Megatron Core writes them: pipeline layouts, and patterns with a number for each layer.

A layout names every virtual stage in order, chunk 0 of all ranks before chunk 1: `E` the embedding, `t` a decoder layer, `m` a layer of
multi-token prediction, `L` the loss, `|` between stages, `x*3` and `(…)*3` for repetition. A pattern is a Python list expression
such as `([1]*3+[0])*2`. Both are read here without evaluating anything.
Source: `megatron/core/transformer/pipeline_parallel_layer_layout.py`; `moe_freq_type` of `megatron/training/arguments.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

MOST_ENTRIES = 100_000
"""No model has more layers; a longer repetition is a mistake or an attack."""
_TOKEN = re.compile(r"\s*(\d+|.)")


def pipeline_layout(layers: Sequence[int], *, mtp_num_layers: int = 0, mtp_stage: int | None = None) -> str:
    """The layout of virtual stages with these numbers of decoder layers; layers of multi-token prediction stand on the last one or on
    `mtp_stage`.
    """
    stages = [_run("t", count) for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1 if mtp_stage is None else mtp_stage] += _run("m", mtp_num_layers)
    stages[-1] += "L"
    return "|".join(stages)


def _run(letter: str, count: int) -> str:
    return letter if count == 1 else f"{letter}*{count}" if count else ""


def layers_of_layout(text: str) -> tuple[int, ...] | None:
    """The decoder layers of each virtual stage of a layout; None where it is none."""
    letters = _expanded(text.replace(",", "").replace(" ", ""))
    if letters is None or set(letters) - set("EtmL|") or letters.count("E") != 1 or letters.count("L") != 1:
        return None
    return tuple(stage.count("t") for stage in letters.split("|"))


def mtp_stage_of_layout(text: str) -> int | None:
    """The virtual stage that holds all layers of multi-token prediction; None where that is the last one, several, or none."""
    letters = _expanded(text.replace(",", "").replace(" ", "")) or ""
    stages = letters.split("|")
    holding = [number for number, stage in enumerate(stages) if "m" in stage]
    return holding[0] if len(holding) == 1 and holding[0] < len(stages) - 1 else None


def _expanded(text: str) -> str | None:
    """A layout without repetitions; None where its brackets or counts do not fit."""
    open_groups: list[str] = [""]
    last = ""
    for match in re.finditer(r"\*(\d+)|(.)", text):
        count, letter = match.groups()
        if count is not None:
            # A repetition replaces the letter or group that it follows; without one it means nothing.
            if not last or len(last) * int(count) > MOST_ENTRIES:
                return None
            kept = open_groups[-1][: len(open_groups[-1]) - len(last)]
            open_groups[-1] = kept + last * int(count)
            last = ""
        elif letter == "(":
            open_groups.append("")
            last = ""
        elif letter == ")":
            if len(open_groups) == 1:
                return None
            last = open_groups.pop()
            open_groups[-1] += last
        else:
            last = letter
            open_groups[-1] += letter
        if len(open_groups[-1]) > MOST_ENTRIES:
            return None
    return open_groups[0] if len(open_groups) == 1 else None


def pattern(numbers: Sequence[int]) -> str:
    """A list of numbers as an expression: its shortest period repeated, with runs of equal numbers joined."""
    total = len(numbers)
    period = next(
        n for n in range(1, total + 1) if total % n == 0 and list(numbers[:n]) * (total // n) == list(numbers)
    )
    runs = [(number, len(list(group))) for number, group in groupby(numbers[:period])]
    inner = "(" + "+".join(f"[{number}]" + (f"*{count}" if count > 1 else "") for number, count in runs) + ")"
    return inner if period == total else f"{inner}*{total // period}"


def numbers_of_pattern(text: str, *, num_layers: int) -> tuple[int, ...] | None:
    """One number for each layer: of a list expression, or of a single number N, which means every N-th layer from the first.

    None where the text is neither, or lists another number of layers.
    """
    if re.fullmatch(r"\d{1,6}", text.strip()):
        every = int(text)
        return tuple(int(layer % every == 0) for layer in range(num_layers)) if every else None
    tokens = _TOKEN.findall(text.strip())
    parsed = _Pattern(tokens).parsed() if len(tokens) < MOST_ENTRIES else None
    return tuple(parsed) if parsed is not None and len(parsed) == num_layers else None


class _Pattern:
    """Reads `term+term`, where a term is a list, a group or a number, repeated by `*`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens, self.at = tokens, 0

    def parsed(self) -> list[int] | None:
        """The list, or None."""
        found = self._sum(0)
        return found if self.at == len(self.tokens) else None

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _taken(self, token: str) -> bool:
        found = self._next() == token
        self.at += found
        return found

    def _sum(self, depth: int) -> list[int] | None:
        found: list[int] = []
        while True:
            term = self._term(depth)
            if term is None or len(found) + len(term) > MOST_ENTRIES:
                return None
            found += term
            if not self._taken("+"):
                return found

    def _term(self, depth: int) -> list[int] | None:
        found = self._list() if self._taken("[") else None
        if found is None and depth < 20 and self._taken("("):
            found = self._sum(depth + 1)
            if not self._taken(")"):
                return None
        while found is not None and self._taken("*"):
            count = self._next()
            if not count.isdigit() or len(found) * int(count) > MOST_ENTRIES:
                return None
            self.at += 1
            found = found * int(count)
        return found

    def _list(self) -> list[int] | None:
        found: list[int] = []
        while self._next().isdigit():
            found.append(int(self._next()))
            self.at += 1
            self._taken(",")
        return found if self._taken("]") else None
