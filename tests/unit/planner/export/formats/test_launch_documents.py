"""Settings of JSON, YAML and TOML files: values, lines, and what is refused."""

import json
import tomllib

import pytest
import yaml

from cost_models.errors import InvalidInputError
from planner.export.formats.documents import (
    MOST_BYTES,
    MOST_SETTINGS,
    read_document,
    render_json,
    render_toml,
    render_yaml,
)
from planner.export.settings import InputFile

DOCUMENT = {
    "train_batch_size": 512,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "sub_group_size": 1e9, "offload_param": {"device": "cpu"}},
    "parts": [["tok_embeddings", "layers.0"], ["norm", "output"]],
    "name": 'a: b # c "d"',
}
FLAT = {
    "train_batch_size": 512,
    "bf16.enabled": True,
    "zero_optimization.stage": 3,
    "zero_optimization.sub_group_size": 1e9,
    "zero_optimization.offload_param.device": "cpu",
    "parts": (("tok_embeddings", "layers.0"), ("norm", "output")),
    "name": 'a: b # c "d"',
}


@pytest.mark.parametrize(("ending", "render"), [("json", render_json), ("yaml", render_yaml), ("toml", render_toml)])
def test_what_is_rendered_is_read_back(ending, render):
    found = read_document(InputFile(f"x.{ending}", render(DOCUMENT)))
    assert {setting.key: setting.value for setting in found} == FLAT


@pytest.mark.parametrize(
    ("render", "load"), [(render_json, json.loads), (render_yaml, yaml.safe_load), (render_toml, tomllib.loads)]
)
def test_what_is_rendered_is_what_other_programs_read(render, load):
    assert load(render(DOCUMENT)) == DOCUMENT


def _places(ending, content):
    return {s.key: (s.line, s.column, s.end_line, s.text) for s in read_document(InputFile(f"x.{ending}", content))}


def test_places_in_json_that_is_indented_by_tabs():
    content = '{\n\t"a": 1, "b": {"c": [1,\n\t\t2], "d": {}},\n\t"l": [{"x": null}, {"x": "}"}]\n}'
    assert _places("json", content) == {
        "a": (2, 7, 2, "1"), "b.c": (2, 21, 3, "[1,\n\t\t2]"), "l.0.x": (4, 14, 4, "null"), "l.1.x": (4, 27, 4, '"}"'),
    }  # fmt: skip


def test_places_in_yaml():
    content = "a:\n  b: 1 # one\n  c: [1, 2]\nl:\n- {x: yes}\n"
    assert _places("yaml", content) == {"a.b": (2, 6, 2, "1"), "a.c": (3, 6, 3, "[1, 2]"), "l.0.x": (5, 7, 5, "yes")}


def test_places_in_toml():
    content = '[a]\nb = 1 # one\nc = [1,\n  2]\n"d.e".f = "#"\n[[l]]\nx = 1\n[[l]]\nx = 2\n'
    assert _places("toml", content) == {
        "a.b": (2, 5, 2, "1"), "a.c": (3, 5, 4, "[1,\n  2]"), "a.d.e.f": (5, 11, 5, '"#"'), "l.0.x": (7, 5, 7, "1"),
        "l.1.x": (9, 5, 9, "2"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("x.json", '{"a": 1,\n"b": }', 2, "is not JSON"),
        ("x.json", '{"a": NaN}', None, "strict JSON"),
        ("x.json", '{"a": 1, "a": 2}', None, "strict JSON"),
        ("x.json", "[1]", 1, "no object"),
        ("x.json", '{"a":' * 100_000, None, ""),
        ("x.yaml", "a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "tag"),
        ("x.yaml", "a: &x 1\nb: *x\n", 1, "anchor"),
        ("x.yaml", "a: 1\nb: [1\n", 3, "is not YAML"),
        ("x.yaml", "a: 1\na: 2\n", 2, "twice"),
        ("x.yaml", "? [a, b]\n: 1\n", 1, "plain word"),
        ("x.yaml", "- 1\n", 1, "one mapping"),
        ("x.yaml", "a: 1\n---\nb: 2\n", 1, "one mapping"),
        ("x.yaml", "a: " + "[" * 20_000, None, ""),
        ("x.toml", "a = 1\nb = \n", 2, "is not TOML"),
        ("x.toml", "a = " + "[" * 20_000, None, ""),
        ("x.json", " " * (MOST_BYTES + 1), None, "larger than 256 KiB"),
    ],
)
def test_refused_files_are_named_with_their_line(name, content, line, words):
    with pytest.raises(InvalidInputError) as caught:
        read_document(InputFile(name, content))
    message = caught.value.problems[0].message
    assert message.startswith(name if line is None else f"{name}, line {line} ")
    assert words in message


def test_a_value_of_too_many_lines_does_not_take_forever():
    content = "a = [\n" + "1,\n" * 40_000 + "]\n"
    with pytest.raises(InvalidInputError, match="more than 1000 lines"):
        read_document(InputFile("x.toml", content))


@pytest.mark.parametrize(("more", "read"), [(0, True), (1, False)])
def test_a_file_of_the_largest_size_is_read_and_one_of_a_byte_more_is_not(more: int, read: bool) -> None:
    """Blanks behind a short document."""
    short = '{"a": 1}'
    file = InputFile("x.json", short + " " * (MOST_BYTES - len(short) + more))
    if read:
        assert [setting.value for setting in read_document(file)] == [1]
    else:
        with pytest.raises(InvalidInputError):
            read_document(file)


def test_as_many_settings_as_may_be_are_read_and_one_more_is_not() -> None:
    most = InputFile("x.json", json.dumps({str(number): 1 for number in range(MOST_SETTINGS)}))
    assert len(read_document(most)) == MOST_SETTINGS
    more = InputFile("x.json", json.dumps({str(number): 1 for number in range(MOST_SETTINGS + 1)}))
    with pytest.raises(InvalidInputError):
        read_document(more)
