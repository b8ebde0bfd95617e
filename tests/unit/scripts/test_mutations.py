"""What the mutation script changes: each kind once, nothing that no test could notice, and only the place that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.mutants import Copy, shared_out
from scripts.mutations import Mutation, mutations_of, written_down


def mutants(text: str) -> list[str]:
    """The texts that mutations make of one."""
    return [each.applied(text) for each in mutations_of("x.py", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", ["a <= b"]),
        ("a >= b", ["a > b"]),
        ("a == b", ["a != b"]),
        ("a * b", ["a / b"]),
        ("a // b", ["a * b"]),
        ("a - b * c", ["a + b * c", "a - b / c"]),
        ("a and b", ["a or b"]),
        ("not a", ["a"]),
        ("max(a, b)", ["min(a, b)"]),
        ("np.minimum(a, b)", ["np.maximum(a, b)"]),
        ("median(a)", ["max(a)"]),
        ("a[0]", ["a[-1]", "a[1]"]),
        ("a[-1]", ["a[0]", "a[-2]"]),
        ("x = 9", ["x = 10"]),
        ("x = 1_000", ["x = 1500"]),
        ("x = 0.8", [f"x = {1.5 * 0.8}"]),
        ("x = 0.0", ["x = 1.0"]),
        ("Rule(since='0.19.4', code='0.1')", ["Rule(since='0.19.5', code='0.1')"]),
        ('Rule(until="2023")', ['Rule(until="2024")']),
        ('Row(1.5, before="2023-08")', ['Row(2.25, before="2023-08")', 'Row(1.5, before="2023-09")']),
        ("FUSED_SINCE = '2023-12'", ["FUSED_SINCE = '2024-01'"]),
        ("_LEAST_SINCE = {'a': '0.9'}", ["_LEAST_SINCE = {'a': '0.10'}"]),
    ],
)
def test_each_kind_of_change(text: str, expected: list[str]) -> None:
    assert mutants(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "'a' + b",  # text put together: any other operator is an error
        "path / 'a' / b",
        "[a] + b",
        "f'{a + 1}'",
        "x = 1e-9",  # an allowance for rounding
        "lru_cache(maxsize=64)",
        "x = 1e30",  # as good as infinity
        "x = True",
        "minimum = a",  # no call
        "'é', a < b",  # columns count bytes
        "x = 'a < 1'",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert mutants(text) == []


def test_a_change_is_made_in_its_own_place_alone() -> None:
    """The second of two equal comparisons on the third line; an operator whose operands lie on two lines is left alone."""
    text = "a < b\n\nif a < b or a < b:\n    x = (a\n         * 2)\n"
    (last,) = [each for each in mutations_of("x.py", text) if (each.line, each.column, each.old) == (3, 14, "<")]
    assert last.applied(text) == "a < b\n\nif a < b or a <= b:\n    x = (a\n         * 2)\n"
    assert [each.old for each in mutations_of("x.py", text) if each.line > 3] == ["2"]
    with pytest.raises(AssertionError, match=r"x\.py:1 does not read '=='"):
        Mutation("x.py", 1, 2, "==", "!=").applied(text)


def test_mutations_are_read_back_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\nb = [\n    2,\n    3]\nc = 1\n")
    entries = [
        {"path": "x.py", "old": "2,\n    3", "new": "2", "killed_by": ["t.py::test"]},
        {"path": "x.py", "old": "1", "new": "4", "line": 5, "column": 4},
    ]
    (tmp_path / "kept.json").write_text(json.dumps(entries))
    first, second = written_down(tmp_path / "kept.json", tmp_path)
    text = (tmp_path / "x.py").read_text()
    assert first.applied(text) == "a = 1\nb = [\n    2]\nc = 1\n"
    assert first.killed_by == ("t.py::test",)
    assert second.applied(text) == "a = 1\nb = [\n    2,\n    3]\nc = 4\n"


def test_text_that_is_there_twice_or_never_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\nb = 1\n")
    for old in ("1", "2"):
        (tmp_path / "kept.json").write_text(json.dumps([{"path": "x.py", "old": old, "new": "3"}]))
        with pytest.raises(AssertionError, match=f"x.py reads '{old}' (2|0) times"):
            written_down(tmp_path / "kept.json", tmp_path)


def test_a_sample_of_some_packages_leaves_the_others_out() -> None:
    """Of 60 mutations the application gets twelve and the profiler six, so of 40 in these two it gets 27."""
    assert shared_out(60, ["cost_models", "planner", "profiler", "app"]) == {
        "cost_models": 24, "planner": 18, "profiler": 6, "app": 12,
    }  # fmt: skip
    assert shared_out(40, ["app", "profiler"]) == {"profiler": 13, "app": 27}


def test_every_equivalent_mutation_is_one_that_could_be_drawn(root: Path) -> None:
    """Else the line has changed, and whether its mutations matter must be looked at anew."""
    drawable: dict[str, set[str]] = {}
    for entry in json.loads((root / "scripts" / "equivalent_mutations.json").read_text()):
        path = entry["path"]
        if path not in drawable:
            text = (root / path).read_text()
            drawable[path] = {each.becomes(text) for each in mutations_of(path, text)}
        assert entry["becomes"] in drawable[path], entry
        assert entry["why"].endswith(".")


# Six runs of pytest, for a tool that only developers start.
@pytest.mark.proof
def test_a_mutation_that_no_file_can_be_imported_with_is_killed_by_the_file(tmp_path: Path) -> None:
    """Nothing in such a file has run, so no test of it can be named."""
    (tmp_path / "x.py").write_text("a = [0, 1]\nb = a[1]\n")
    (tmp_path / "test_x.py").write_text(
        "import sys\n\nsys.path.insert(0, '.')\nimport x\n\n\ndef test_x():\n    assert x.b == 1\n"
    )
    changed = [Mutation("x.py", 2, 6, "1", new) for new in ("2", "0", "-1")]
    found = [Copy(tmp_path).killer(each, ["test_x.py::test_x"]) for each in changed]
    assert found == ["test_x.py", "test_x.py::test_x", None]
