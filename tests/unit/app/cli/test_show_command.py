"""`meshwright show`: every figure that it prints is the response's, and bad input ends with 2 and a clear message."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import meshwright
import tuned
from app.cli.main import run

REQUEST = {
    "model": {"preset": "gpt3-1.3b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "top_k": 3,
}
CLUSTER = {"preset": "dgx-h100", "num_nodes": 2}
GIB = 2**30


@pytest.fixture(scope="module")
def response(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "response.json"
    path.write_text(json.dumps(meshwright.plan(REQUEST)))
    return path


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Path:
    """A response whose best plan has two stages of 11 and 13 layers, offloads and idles."""
    fixed = {
        "tp": 1, "pp": 2, "dp": 4, "cp": 1, "vpp": 1, "micro_batch_size": 2, "layers_per_stage": [11, 13], "zero": 1,
        "offload": {"optimizer_fraction": 0.5}, "overlap": {"grad_reduce": True, "param_gather": False},
    }  # fmt: skip
    path = tmp_path_factory.mktemp("plan") / "uneven.json"
    path.write_text(
        json.dumps(meshwright.plan({**REQUEST, "cluster": CLUSTER, "constraints": {"fixed": fixed}, "top_k": 1}))
    )
    return path


def shown(capsys, *arguments: str, width: int = 200) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        assert run(["show", *arguments]) == 0
    return str(capsys.readouterr().out)


def row_of(text: str, name: str) -> list[str]:
    """The cells of the first line that begins with this name; cells are at least two spaces apart."""
    line = next(line for line in text.splitlines() if re.match(rf"{re.escape(name)}\s{{2,}}", line))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_plan_of_that_rank_is_shown_with_its_own_figures(response, capsys) -> None:
    text = shown(capsys, str(response), "--plan", "2")
    evaluation = json.loads(response.read_text())["plans"][1]["evaluation"]
    assert text.startswith(
        "Plan 2 of 3: gpt3-1.3b (1.32B parameters) on 1 x 8 H100-SXM-80GB, sequence 2,048, batch 64, bf16, megatron"
    )
    assert row_of(text, "step")[0] == f"{evaluation['step_time_s']:.4f}"
    for term, seconds in evaluation["time_breakdown_s"].items():
        if seconds > 1e-3:
            cells = row_of(text, term)
            assert cells[0] == f"{seconds:.4f}"
            assert cells[1] == f"{100.0 * seconds / evaluation['step_time_s']:.1f}%"
            assert cells[2] == evaluation["provenance"]["terms"][term]
    (stage,) = evaluation["memory"]["stages"]
    for kind, size in stage["breakdown_bytes"].items():
        if size > 0.01 * GIB:
            assert row_of(text, kind)[0] == f"{size / GIB:.2f}"
    assert row_of(text, "allocated")[0] == f"{stage['peak_allocated_bytes'] / GIB:.2f}"
    assert f"of the {evaluation['memory']['capacity_bytes'] / GIB:.1f} GiB that the card offers" in text


def test_batch_gpus_stages_offload_and_overlaps_follow_from_the_strategy(uneven, capsys) -> None:
    """64 sequences are 4 replicas times 8 micro-batches of 2; tp 1 x pp 2 x dp 4 leave 8 of 16 GPUs idle."""
    text = shown(capsys, str(uneven))
    assert "GPUs       8 of 16 used, 8 idle: tp 1 x pp 2 x cp 1 x dp 4" in text
    assert "64 sequences a step = 4 replicas x 8 micro-batches x 2 sequences; gradients accumulate over 8" in text
    assert re.search(r"^0 +11 +1-11 +embedding *$", text, re.MULTILINE)
    assert re.search(r"^1 +13 +12-24 +final norm, output layer *$", text, re.MULTILINE)
    assert row_of(text, "overlap.grad_reduce")[0] == "yes"
    assert row_of(text, "overlap.param_gather")[0] == "no"
    # Neither tensor-parallel collectives nor experts are there to overlap.
    assert "overlap.tp_comm" not in text.split("With one thing changed")[0]
    memory = json.loads(uneven.read_text())["plans"][0]["evaluation"]["memory"]
    assert (
        f"50% of the optimizer state, updated by the host, {memory['host_bytes_per_node'] / GIB:.1f} GiB on each node."
        in text
    )
    assert row_of(text, "layers")[:2] == ["11", "13"]


def test_every_assumed_value_is_shown(response, capsys) -> None:
    text = shown(capsys, str(response)).partition("Assumed")[2]
    assumed = json.loads(response.read_text())["plans"][0]["evaluation"]["assumed"]
    assert len(assumed) > 10
    for name in assumed.keys() - {"recipe_habits"}:
        assert row_of(text, name)
    assert all(reason in text for reason in assumed["recipe_habits"].values())


def test_nothing_is_wider_than_the_terminal(response, capsys) -> None:
    for width in (60, 80, 120):
        assert max(map(len, shown(capsys, str(response), width=width).splitlines())) <= width


def stages_of(count: int) -> list[dict[str, Any]]:
    return [
        {"stage": stage, "layers": 2, "peak_moment": "loss", "peak_allocated_bytes": float((stage // 2 + 1) * GIB),
         "breakdown_bytes": {"activations": float((stage // 2 + 1) * GIB)}}
        for stage in range(count)
    ]  # fmt: skip


def test_stages_alike_share_a_column_and_many_columns_take_several_tables(tmp_path, capsys) -> None:
    """22 stages, pairwise alike, are 11 columns: 8 in one table and 3 in the next."""
    (evaluation,) = meshwright.evaluate([{**REQUEST, "strategy": {"tp": 2, "micro_batch_size": 1}}])
    evaluation["memory"]["stages"] = stages_of(22)
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(evaluation))
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown(capsys, str(path)).splitlines()]
    assert [line[1:] for line in lines if line[0] == "stage"] == [
        [f"{stage}-{stage + 1}" for stage in range(0, 16, 2)], ["16-17", "18-19", "20-21", "meaning"],
    ]  # fmt: skip
    assert [line[1:4] for line in lines if line[0] == "activations"] == [
        ["1.00", "2.00", "3.00"],
        ["9.00", "10.00", "11.00"],
    ]


def test_a_ranked_plan_of_the_service_is_shown_too(response, tmp_path, capsys) -> None:
    path = tmp_path / "ranked.json"
    path.write_text(json.dumps(json.loads(response.read_text())["plans"][1]))
    text = shown(capsys, str(path))
    assert text.startswith("Plan 2\n")
    assert "Strategy" in text
    assert "none idle" not in text


def test_json_holds_row_evaluation_and_neighbours(response, capsys) -> None:
    (line,) = shown(capsys, str(response), "--plan", "3", "--json").splitlines()
    detail = json.loads(line)
    plan = json.loads(response.read_text())["plans"][2]
    assert (detail["rank"], detail["strategy"]) == (3, plan["strategy"])
    assert plan["evaluation"].items() <= detail["evaluation"].items()
    (again,) = meshwright.evaluate([detail["row"]])
    assert again["step_time_s"] == pytest.approx(plan["evaluation"]["step_time_s"], rel=1e-6)
    assert detail["neighbours"]["priced"]


def given(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_evaluations_are_shown_line_by_line(monkeypatch, capsys) -> None:
    rows = [
        {**REQUEST, "id": name, "strategy": {"tp": tp, "micro_batch_size": 1}}
        for name, tp in (("one", 1), ("bad", 3), ("two", 2))
    ]
    lines = "\n".join(json.dumps(each) for each in meshwright.evaluate(rows)) + "\n"
    given(monkeypatch, lines)
    text = shown(capsys, "-")
    assert re.findall(r"^Evaluation of (\w+)$", text, re.MULTILINE) == ["one", "bad", "two"]
    assert "No framework could run it (invalid)." in text
    given(monkeypatch, lines)
    assert shown(capsys, "-", "--plan", "3").startswith("Evaluation of two\nIt fits.")
    given(monkeypatch, lines.splitlines()[0])
    assert shown(capsys, "-").startswith("Evaluation of one\n")


def test_an_evaluation_alone_says_how_much_is_trained(monkeypatch, capsys) -> None:
    """It has no request beside it: which parts are frozen is not known, how many parameters are trained is."""
    row = {**REQUEST, "training": {**REQUEST["training"], "frozen": ["mlp"]}, "strategy": {"micro_batch_size": 1}}
    given(monkeypatch, json.dumps(next(iter(meshwright.evaluate([row])))))
    assert re.search(r"Trains \S+ of 1\.3\dB parameters \(\d+ %\): the rest is frozen\.", shown(capsys, "-"))


GOOD = '{"verdict": "invalid", "reasons": []}'


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", (), "standard input is empty"),
        (" \n\n", (), "standard input is empty"),
        ('{"plans": [', (), "standard input is not JSON"),
        ("[1]", (), "a JSON array"),
        ("{}", (), "neither a plan response nor an evaluation"),
        ('{"plans": [], "request": {}}', (), "no plans"),
        ('{"plans": [], "request": {}, "status": "queued"}', (), "'queued'"),
        ('{"verdict": "maybe", "reasons": []}', (), "verdict"),
        (f"{GOOD}\n{GOOD}\n{{", (), "line 3 of standard input is not JSON"),
        (f"{GOOD}\n{GOOD}", ("--plan", "3"), "no line 3"),
        (f"{GOOD}\n{{}}", (), "no evaluation"),
        (GOOD, ("--plan", "0"), "--plan"),
    ],
)
def test_bad_input_ends_with_2_and_says_what_is_wrong(monkeypatch, capsys, text, arguments, words) -> None:
    given(monkeypatch, text)
    assert run(["show", "-", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_rank_beyond_the_last_is_refused_with_the_ranks_there_are(response, capsys) -> None:
    assert run(["show", str(response), "--plan", "4"]) == 2
    assert "no plan 4" in (said := capsys.readouterr().err)
    assert "1 to 3" in said


def test_a_truncated_file_and_a_missing_one(response, tmp_path, capsys) -> None:
    path = tmp_path / "cut.json"
    path.write_text(response.read_text()[:-100])
    assert run(["show", str(path)]) == 2
    assert "is not JSON" in capsys.readouterr().err
    assert run(["show", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a document; of lists the first three entries."""
    inside = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document[:3])
        if isinstance(document, list)
        else ()
    )
    return [found for key, value in inside for found in [(*path, key), *places(value, (*path, key))]]


def edited(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at that place; `...` takes it out."""
    copy = json.loads(json.dumps(document))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return copy


@pytest.mark.parametrize("seed", range(3))
def test_an_edited_response_is_shown_or_refused_and_never_a_bug(response, tmp_path, capsys, seed) -> None:
    random, path = Random(seed), tmp_path / "edited.json"
    document = json.loads(response.read_text())
    somewhere = [place for place in places(document) if place[0] in ("plans", "request", "status", "model_revision")]
    codes = set()
    for _ in range(25):
        value = random.choice([..., None, 0, -1, 2.5, "x", [], {}, True, 1e18, [1, 2]])
        path.write_text(json.dumps(edited(document, random.choice(somewhere), value)))
        codes.add(run(["show", str(path)]))
    assert codes == {0, 2}, capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("evaluation", "memory", "peak_device_range_bytes"), [1.0], "peak_device_range_bytes"),
        (("strategy", "pp"), ..., "no pp"),
        (("strategy", "layers_per_stage"), [12, 12], "lists 2 stages"),
    ],
)
def test_what_is_wrong_with_an_edited_plan_is_named(response, tmp_path, capsys, place, value, words) -> None:
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(edited(json.loads(response.read_text()), ("plans", 0, *place), value)))
    assert run(["show", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_term_that_another_version_did_not_know_counts_as_nothing(response, tmp_path, capsys) -> None:
    document = edited(json.loads(response.read_text()), ("plans", 0, "evaluation", "time_breakdown_s", "gemm"), ...)
    document = edited(document, ("plans", 0, "against_next"), None)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    text = shown(capsys, str(path), "--plan", "2")
    assert re.search(r"^Plan 1 is .* less on matrix products", text, re.MULTILINE)


def test_a_tuning_is_shown_as_tune_prints_it(tmp_path, capsys) -> None:
    knobs = {
        "best": {"values": {"bucket_cap_mb": 50}, "step_time_s": 0.76}, "gain_fraction": 0.05, "default_step_time_s": 0.8,
    }  # fmt: skip
    document = tuned.small([tuned.trial(0), tuned.trial(1, step_time_s=0.9)], knobs=knobs)
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(document))
    text = shown(capsys, str(path))
    assert "Plan 1 was predicted to be the fastest, and is the fastest that was measured: 0.800 s a step." in text
    # 1 - 0.76 / 0.8 = 0.05
    told = 'Run-time knobs of the fastest plan: 0.760 s a step with {"bucket_cap_mb": 50}, 5.0% less than with the framework\'s defaults'
    assert told in " ".join(text.split())
    assert json.loads(shown(capsys, str(path), "--json")) == document
    assert run(["show", str(path), "--plan", "2"]) == 2
    assert "--plan 2 names a plan, but this is a tuning" in capsys.readouterr().err
    path.write_text(json.dumps(document | {"trials": [{"number": -1}]}))
    assert run(["show", str(path)]) == 2
    assert "/trials/0/number" in capsys.readouterr().err
