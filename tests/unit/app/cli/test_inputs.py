"""What the command line reads: sizes at their limits, and names that are taken from files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli.inputs import (
    MAX_DOCUMENT_BYTES,
    MAX_RESPONSE_BYTES,
    assignments,
    parse_json,
    read_cluster,
    read_document,
    read_model,
)
from cost_models.errors import InvalidInputError


def of_size(count: int) -> bytes:
    return b"{}" + b" " * (count - 2)


def test_a_request_may_have_one_mebibyte_as_the_service_accepts_and_a_response_256() -> None:
    assert (MAX_DOCUMENT_BYTES, MAX_RESPONSE_BYTES) == (2**20, 2**28)


@pytest.mark.parametrize("source", ["file", "-"])
def test_a_document_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    for count, accepted in ((2**20, True), (2**20 + 1, False)):
        (tmp_path / "x.json").write_bytes(of_size(count))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(of_size(count))))
        name = "-" if source == "-" else str(tmp_path / "x.json")
        if accepted:
            assert read_document(name) == {}
        else:
            with pytest.raises(InvalidInputError, match="is larger than 1 MiB") as caught:
                read_document(name)
            assert ("standard input" in str(caught.value)) == (source == "-")
    assert read_document(str(tmp_path / "x.json"), most_bytes=2**20 + 1) == {}


def test_no_more_of_standard_input_is_read_than_shows_that_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = io.BytesIO(of_size(1000))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=endless))
    with pytest.raises(InvalidInputError):
        read_document("-", most_bytes=100)
    assert endless.tell() == 101


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "array"), ("null", "null"), ("3", "int"), ('"a"', "str"), ("true", "bool")]
)
def test_a_document_that_is_no_object_is_named_by_its_kind(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=f"holds a JSON {kind}, not an object"):
        read_document(str(path))


def test_the_place_of_a_mistake_counts_from_one() -> None:
    with pytest.raises(InvalidInputError, match="in line 2, column 3"):
        parse_json("{\n  x}", name="request")


def written(folder: Path, name: str, document: Any) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize("key", ["model_type", "architectures", "num_hidden_layers", "peft_type"])
def test_each_key_of_a_hugging_face_config_gives_it_away(tmp_path: Path, key: str) -> None:
    assert read_model(written(tmp_path, "mine.json", {key: 1})) == {"hf_config": {key: 1}, "name": "mine"}


@pytest.mark.parametrize("key", ["name", "preset"])
def test_a_stated_name_or_preset_is_kept(tmp_path: Path, key: str) -> None:
    assert read_model(written(tmp_path, "mine.json", {key: "theirs"})) == {key: "theirs"}


@pytest.mark.parametrize(("length", "kept"), [(200, 200), (250, 250)])
def test_a_file_gives_its_whole_name(tmp_path: Path, length: int, kept: int) -> None:
    assert len(read_model(written(tmp_path, "x" * length + ".json", {"num_layers": 1}))["name"]) == kept


@pytest.mark.parametrize(
    ("path", "document", "name"),
    [
        ("folder/config.json", {"model_type": "a"}, "folder"),
        ("folder/config.json", {"model_type": "a", "_name_or_path": ""}, "folder"),
        ("folder/config.json", {"model_type": "a", "_name_or_path": 3}, "folder"),
        ("folder/config.json", {"model_type": "a", "_name_or_path": "theirs"}, None),
        ("models--org--name/snapshots/0a/config.json", {"model_type": "a", "_name_or_path": "x"}, "org/name"),
        (f"models--{'o' * 200}--{'n' * 20}/snapshots/0a/config.json", {"model_type": "a"}, f"{'o' * 200}/{'n' * 20}"),
    ],
)
def test_a_config_is_named_by_its_repository_by_itself_or_by_its_folder(
    tmp_path: Path, path: str, document: Any, name: str | None
) -> None:
    assert read_model(written(tmp_path, path, document)).get("name") == name
    assert read_model(str(Path(written(tmp_path, path, document)).parent)).get("name") == name


def test_a_model_on_standard_input_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"num_layers": 2}')))
    assert read_model("-") == {"num_layers": 2}


def test_what_looks_like_a_path_is_read_as_one_and_anything_else_is_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text('{"num_nodes": 1}')
    (tmp_path / "folder").mkdir()
    assert read_cluster("plain") == {"num_nodes": 1}
    assert read_cluster("dgx-h100") == {"preset": "dgx-h100"}
    assert read_cluster("folder") == {"preset": "folder"}
    written(tmp_path, "folder/cluster.json", {"num_nodes": 3})
    assert read_cluster("folder") == {"num_nodes": 3}
    written(tmp_path, "models/config.json", {"model_type": "a"})
    assert read_model("models") == {"hf_config": {"model_type": "a"}, "name": "models"}
    for source in ("none.json", "./none", "no/ne"):
        with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
            read_cluster(source)


@pytest.mark.parametrize("pair", ["tp", "=3", "tp=", "="])
def test_a_pair_needs_a_key_a_sign_and_a_value(pair: str) -> None:
    with pytest.raises(InvalidInputError, match="is not of the form key=value"):
        assignments([pair], option="--fixed")


def test_a_value_that_is_no_json_is_text_and_dots_reach_into_objects() -> None:
    given = ["a.b.c=1", "a.b.d=[1, 2]", "a.e=word", "f=a=b", "g=1e999"]
    assert assignments(given, option="--fixed") == {
        "a": {"b": {"c": 1, "d": [1, 2]}, "e": "word"},
        "f": "a=b",
        "g": "1e999",
    }
    with pytest.raises(InvalidInputError, match="sets a field of 'a'"):
        assignments(["a=1", "a.b=2"], option="--fixed")
