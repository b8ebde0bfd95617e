"""`meshwright tune` as a user starts it, with real steps of a tiny model on this machine's processors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.cli.main import run
from builders import request_of

MODEL = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 256,
}  # fmt: skip


def test_two_plans_are_measured_with_real_steps_and_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request_of(
        MODEL, "torchtitan", cluster={"gpus_per_node": 1}, seq_length=32, global_batch_size=8, cross_entropy="unfused",
        compile=False,
    )  # fmt: skip
    request, out, storage = tmp_path / "request.json", tmp_path / "tuning.json", f"sqlite:///{tmp_path / 'tune.db'}"
    request.write_text(json.dumps(asked))
    command = ["tune", str(request), "--device", "cpu", "--storage", storage, "--out", str(out), "--json"]
    assert run([*command, "--max-trials", "1"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [trial["status"] for trial in first["trials"]] == ["ok"]
    assert run([*command, "--max-trials", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == document
    # The first trial was kept and not run again.
    assert document["trials"][0] == first["trials"][0]
    assert [trial["status"] for trial in document["trials"]] == ["ok", "ok"]
    assert document["trials"][0]["rank"] == 1
    seconds = {trial["rank"]: trial["step_time_s"] for trial in document["trials"]}
    assert document["best"]["step_time_s"] == min(seconds.values())
    # The order is that of the measured times, whatever is expected of the plans that were not run.
    ranked = [each["measured_step_time_s"] for each in document["ranking"] if each["measured_step_time_s"] is not None]
    assert ranked == sorted(seconds.values())
    record = document["trials"][1]["record"]
    assert record["machine"]["gpu"] == "CPU"
    assert len(record["ranks"]) == 1
    # A model that has learnt nothing is as good as a guess among 256 tokens: ln 256 = 5.545.
    losses = [rank["losses"][0] for rank in record["ranks"] if rank["losses"][0] is not None]
    assert losses[0] == pytest.approx(5.545, abs=0.1)
