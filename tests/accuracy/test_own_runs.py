"""The table of own runs counts each of them once, under what it ran."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.own_runs import FILES, FOLDER, PROFILE, own_headlines, own_runs, own_runs_table
from planner.rows import evaluate_rows


def test_every_run_is_in_one_line_and_errors_are_means_of_what_evaluate_says() -> None:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in own_runs_table().splitlines()[2:]]
    rows = own_runs()
    assert len(rows) == sum((FOLDER / name).read_text(encoding="utf-8").count("\n") for name in FILES)
    assert sum(int(line[4]) for line in lines) == len(rows) == len({row["id"] for row in rows})

    chosen = [
        row for row in rows
        if row["training"].get("model_impl") == "liger" and row["training"].get("adapter") is None and row["training"]["framework"] == "deepspeed"
    ]  # fmt: skip
    (line,) = (line for line in lines if line[:4] == ["deepspeed", "liger", "everything", "dense"])
    assert int(line[4]) == len(chosen) > 1
    for column, calibration in ((5, None), (7, PROFILE)):
        asked = [
            {**row, "cluster": {**row["cluster"], **({"calibration": calibration} if calibration else {})}}
            for row in chosen
        ]
        errors = [
            abs(answer["step_time_s"] / row["measured"]["step_time_s"] - 1)
            for row, answer in zip(chosen, evaluate_rows(asked), strict=True)
        ]
        assert float(line[column]) == pytest.approx(100 * sum(errors) / len(errors), abs=0.06)


def test_the_front_page_names_the_figures_of_the_table() -> None:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in own_runs_table().splitlines()[2:]]
    named = {
        "DeepSpeed, Hugging Face's models, own runs": ["deepspeed", "transformers", "everything", "dense"],
        "FSDP, Hugging Face's models, own runs": ["fsdp", "transformers", "everything", "dense"],
        "FSDP, QLoRA, own runs": ["fsdp", "transformers", "adapters on nf4", "dense"],
    }
    shown = {line[0]: line[1:] for line in own_headlines()}
    assert shown.keys() == named.keys()
    for name, stack in named.items():
        (line,) = (line for line in lines if line[:4] == stack)
        error, inside, runs, gpu = shown[name]
        assert (runs, gpu) == (line[4], "H200")
        for share, full in ((error, line[5]), (inside, line[6])):
            assert float(share.removesuffix(" %")) == pytest.approx(float(full), abs=0.56)
