"""`meshwright export`: what it writes, and what it never overwrites."""

import json

import pytest

import meshwright
from app.cli.main import run


@pytest.fixture(scope="module")
def response(tmp_path_factory):
    request = {
        "model": {"preset": "gpt3-1.3b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
        "top_k": 2,
    }
    path = tmp_path_factory.mktemp("plan") / "response.json"
    path.write_text(json.dumps(meshwright.plan(request)))
    return path


def test_files_are_written_and_named_on_stdout(response, tmp_path, capsys):
    out = tmp_path / "deep" / "launch"
    assert run(["export", str(response), "--plan", "2", "--framework", "megatron", "--out", str(out)]) == 0
    said = capsys.readouterr().out.split()
    assert sorted(said) == sorted(str(path) for path in out.iterdir())
    assert (out / "launch.sh").stat().st_mode & 0o111
    assert (
        meshwright.export(json.loads(response.read_text()), "megatron", plan=2)["launch.sh"]
        == (out / "launch.sh").read_text()
    )


def test_nothing_is_overwritten_without_force(response, tmp_path, capsys):
    kept = tmp_path / "mock.sh"
    kept.write_text("mine")
    arguments = ["export", str(response), "--framework", "megatron", "--out", str(tmp_path)]
    assert run(arguments) == 2
    assert "mock.sh is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mock.sh"]
    assert kept.read_text() == "mine"
    assert run([*arguments, "--force"]) == 0
    assert kept.read_text() != "mine"


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(response, tmp_path):
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.write_text("mine")
    out.mkdir()
    (out / "launch.sh").symlink_to(outside)
    arguments = ["export", str(response), "--framework", "megatron", "--out", str(out)]
    assert run(arguments) == 2
    assert run([*arguments, "--force"]) == 0
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--framework", "megatrn"], "megatron"),
        (["--framework", "megatron", "--plan", "9"], "no plan 9"),
        (["--framework", "megatron", "--framework-version", "7"], "7"),
    ],
)
def test_bad_input_is_named(response, tmp_path, capsys, arguments, words):
    assert run(["export", str(response), "--out", str(tmp_path / "x"), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_document_that_is_no_response(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert run(["export", str(path), "--framework", "megatron", "--out", str(tmp_path / "x")]) == 2
    assert "no plan response" in capsys.readouterr().err


def test_a_file_where_the_folder_should_be(response, tmp_path, capsys):
    path = tmp_path / "x"
    path.write_text("")
    assert run(["export", str(response), "--framework", "megatron", "--out", str(path)]) == 2
    assert "not a folder" in capsys.readouterr().err


def test_a_folder_that_looks_like_an_option_is_refused(response, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["export", str(response), "--framework", "megatron", "--out", "--force"]) == 2
    assert "--out --force begins with a dash" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
