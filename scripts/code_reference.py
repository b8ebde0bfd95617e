"""What the program's codes and terms mean, as Markdown tables: reasons, errors, warnings, exit codes, terms of time and memory.

python -m scripts.code_reference
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from app.errors import STATUSES, status_of
from cost_models.errors import MeshwrightError
from cost_models.inputs.fields import WARNINGS
from cost_models.terms import MEMORY_TERMS, TIME_TERMS
from planner.answer.rejections import REJECTIONS
from planner.schemas import ReasonCode

# These say what is wrong with an input. No strategy is counted under them, so `REJECTIONS` has no words for them.
OF_INPUTS = {
    "invalid-json": "The line is not JSON.",
    "invalid-field": "A field has a value that it cannot take.",
    "unknown-field": "A field has a name that does not exist; the hint names the nearest one that does.",
    "missing-field": "A required field is missing.",
    "invalid-input": "The request breaks a rule that concerns several of its fields.",
    "not-modelled": "The input is understood and refused on purpose, because there is no cost model of it.",
    "unknown-preset": "No preset has this name; the hint names the nearest one.",
    "unknown-model-type": "The `config.json` is of an architecture that is not known.",
    "calibration": "A calibration is missing, unreadable, or of another version.",
    "unstated-fact": "The verdict depends on a fact that the row leaves open; the reason names the fact to state.",
    "host-memory-unknown": "The strategy keeps state in host memory, and the request does not say how much there is.",
}


def reasons() -> str:
    """The codes of reasons: what is wrong with a strategy or an input."""
    rows = [
        [f"`{code}`", OF_INPUTS.get(code) or f"Strategies that {REJECTIONS[code]}."] for code in get_args(ReasonCode)
    ]
    return _table(["code", "what it says"], rows)


def errors() -> str:
    """The errors of the service, each with its HTTP status."""
    classes = sorted(
        {each for each in STATUSES if each is not MeshwrightError}, key=lambda each: (STATUSES[each], each.code)
    )
    rows = [
        [
            f"`{each.code}`",
            str(status_of(each("")) if each.__init__ is MeshwrightError.__init__ else STATUSES[each]),
            _summary(each),
        ]
        for each in classes
    ]
    return _table(["code", "status", "meaning"], rows)


def warnings() -> str:
    """The warnings that are codes."""
    return _table(["code", "meaning"], [[f"`{code}`", meaning] for code, meaning in WARNINGS.items()])


def exit_codes() -> str:
    """The program's exit codes."""
    from app.cli import main

    meanings = {
        0: "Done. `evaluate` ends with 0 where every line was answered, wrong ones included.",
        main.EXIT_BUG: "A bug in meshwright.",
        main.EXIT_BAD_INPUT: "The input is wrong.",
        3: "No plan fits. The answer is printed and says why.",
        main.EXIT_UNREACHABLE: "The service could not be reached.",
        main.EXIT_MEASUREMENT: "Nothing can be measured on this machine, or a measurement failed.",
        main.EXIT_INTERRUPTED: "Interrupted.",
    }
    return _table(["exit code", "meaning"], [[str(code), meaning] for code, meaning in sorted(meanings.items())])


def time_terms() -> str:
    """The terms that a step's time is the sum of."""
    return _table(["term", "what it holds", "equation"], [[f"`{t.name}`", t.meaning, t.tag] for t in TIME_TERMS])


def memory_terms() -> str:
    """The terms that a stage's allocated memory is the sum of."""
    return _table(["term", "what it holds", "equation"], [[f"`{t.name}`", t.meaning, t.tag] for t in MEMORY_TERMS])


def _summary(error: type[MeshwrightError]) -> str:
    """The first paragraph of a class's docstring."""
    return " ".join((error.__doc__ or "").split("\n\n")[0].split())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for each in (exit_codes, reasons, errors, warnings, time_terms, memory_terms):
        print(f"{each()}\n")
