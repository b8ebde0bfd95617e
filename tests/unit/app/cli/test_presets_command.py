"""`meshwright presets`: lists with facts that are known from outside, one preset in full, names that are nearly right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.cli.commands.presets import KINDS
from app.cli.completion import names_of
from app.cli.main import run
from app.service.main import create_app
from app.settings import Settings


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(*arguments: str, code: int = 0, width: int = 120) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert run(["presets", *arguments]) == code
        out, err = capsys.readouterr()
        assert (err == "") == (code == 0)
        assert (out == "") == (code != 0)
        return out or err

    return of


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_json_is_what_the_service_answers(said: Any, tmp_path: Any) -> None:
    settings = Settings(data_dir=tmp_path, log_level="error", seed_examples=False)
    with TestClient(create_app(settings)) as service:
        answers = {kind: service.get(f"/v1/presets/{kind}").json() for kind in KINDS}
    assert {kind: json.loads(said(kind, "--json")) for kind in KINDS} == answers
    assert json.loads(said("--json")) == answers
    for kind in KINDS:
        for document in answers[kind]["items"][:2]:
            assert json.loads(said(kind, document["name"], "--json")) == document


def test_models_are_listed_with_published_sizes(said: Any) -> None:
    """Mixtral: 46.7 billion parameters, 12.9 for a token, 32 layers of 4,096 with 32 heads over 8 (its model card and config.json)."""
    out = said("models")
    assert row(out, "mixtral-8x7b")[1:] == ["46.7B", "12.9B", "32", "4,096", "32/8", "8", "(top", "2)", "32,768"]
    assert row(out, "gpt3-175b")[1:] == ["175B", "175B", "96", "12,288", "96", "-", "2,048"]
    assert row(out, "bloom-176b")[-1] == "-"  # ALiBi has no longest context


def test_gpus_are_listed_with_their_data_sheets(said: Any) -> None:
    """H100: 989 TFLOP/s in bf16, twice that in fp8, 450 GB/s of NVLink in one direction; an RTX 4090 has no NVLink."""
    out = said("gpus")
    assert row(out, "H100-SXM-80GB")[1:] == ["79.1", "989", "1,979", "3,352", "450"]
    assert row(out, "RTX4090-24GB")[-1] == "-"


def test_clusters_and_frameworks_are_listed(said: Any) -> None:
    """DGX H100: eight adapters of 400 Gbit/s; Megatron interleaves stages, DeepSpeed does not."""
    assert row(said("clusters"), "dgx-h100")[1:] == [
        *("H100-SXM-80GB", "1", "x", "8", "nvswitch", "infiniband", "8", "x", "400", "Gbit/s"),
    ]
    out = said("frameworks")
    assert row(out, "megatron")[-2:] == ["1f1b,", "interleaved"]
    assert row(out, "deepspeed")[-1] == "1f1b"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [80, 120])
def test_no_line_of_a_list_is_wider_than_the_terminal(said: Any, kind: str, width: int) -> None:
    out = said(kind, width=width)
    assert max(map(len, out.splitlines())) <= width
    assert all(name in out for name in names_of(kind)) or kind == "frameworks"


def test_without_a_kind_every_name_is_listed(said: Any) -> None:
    words = said().split()
    assert all(name in words for kind in KINDS for name in names_of(kind))


def test_one_preset_is_shown_with_units_and_sources(said: Any) -> None:
    words = " ".join(said("gpus", "H100-SXM-80GB", width=200).split())
    assert "memory_bandwidth_gb_per_s 3,352 1e9 bytes/s" in words
    assert "total memory printed by PyTorch on such devices (2026-11): memory_gib" in words
    words = " ".join(said("mixtral-8x7b", width=200).split())
    assert "moe num_experts 8, top_k 2, expert_intermediate_size 14,336" in words
    assert "Sources config.json of huggingface.co/mistralai/Mixtral-8x7B-v0.1 (2023-12)" in words


def test_one_framework_is_shown_with_every_default(said: Any) -> None:
    """Transformer Engine's attention is flash but in fp32, on Volta and before 2023."""
    (document,) = [each for each in json.loads(said("frameworks", "--json"))["items"] if each["name"] == "megatron"]
    out = said("frameworks", "megatron", width=250)
    assert "math if precisions fp32; else math if gpu_generations volta; else math if before 2023-01; else flash" in out
    for group in ("strategy_defaults", "training_defaults", "choices"):
        assert all(row(out, name) for name in document[group])
    assert all(each["version"] in out for each in document["versions"])
    assert f"Rules ({len(document['rules'])};" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("model",), "Did you mean 'models'?"),
        (("h100-sxm",), "Did you mean 'H100-SXM-80GB'?"),
        (("gpus", "H100"), "'H100' is not a GPU preset\n  Did you mean 'H100-SXM-80GB'?"),
        (("frameworks", "megatrom"), "'megatrom' is not a framework\n  Did you mean 'megatron'?"),
        (("gpu", "H100-SXM-80GB"), "'gpu' is not a kind of preset\n  Did you mean 'gpus'?"),
        (("things", "x"), "Known: models, gpus, clusters, frameworks."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(said: Any, arguments: tuple[str, ...], told: str) -> None:
    assert told in said(*arguments, code=2)
