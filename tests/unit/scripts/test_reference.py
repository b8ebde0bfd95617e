"""The reference is complete, pictures become tables, and marks of shown outputs stay with their lines."""

from __future__ import annotations

from typing import get_args

import pytest
import typer.main

from app.cli.main import app
from planner.schemas import ReasonCode
from scripts.code_reference import errors, reasons
from scripts.command_reference import commands, walk
from scripts.documentation import arrows, filled
from scripts.field_reference import unit
from scripts.shown_outputs import marked


def test_arrows_of_a_picture_become_rows() -> None:
    picture = 'flowchart TD\n    a["app/x.py<br/>read"]\n    b["planner/y.py<br/>plan"]\n    a -- "a request" --> b\n    b --> a\n'
    assert arrows(picture).splitlines()[2:] == [
        "| `app/x.py`<br>`read` | a request | `planner/y.py`<br>`plan` |",
        "| `planner/y.py`<br>`plan` |  | `app/x.py`<br>`read` |",
    ]


def test_a_mark_that_names_nothing_is_refused() -> None:
    assert "| 130 |" in filled("<!-- filled: exit codes -->")
    with pytest.raises(KeyError):
        filled("<!-- filled: nothing -->")


def test_every_command_and_option_is_listed() -> None:
    text = commands()
    for name, command in walk("meshwright", typer.main.get_command(app)):
        section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        assert section, name
        options = {option for each in command.params for option in each.opts if option.startswith("--")}
        assert {option for option in options if option not in section} <= {
            "--help", "--install-completion", "--show-completion",
        }  # fmt: skip


def test_every_reason_and_error_has_words() -> None:
    rows = [line.split(" | ") for line in f"{reasons()}\n{errors()}".splitlines() if line.startswith("| `")]
    assert {row[0].strip("| `") for row in rows} >= {
        *get_args(ReasonCode),
        "unauthorized",
        "too-many-jobs",
        "time-limit",
    }
    assert all(row[-1].strip("| ") for row in rows)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("step_time_s", "s"),
        ("min_tokens_per_s", "tokens/s"),
        ("nic_gbit_per_s", "Gbit/s"),
        ("memory_bandwidth_gb_per_s", "GB/s"),
        ("peak_device_range_bytes", "bytes"),
        ("model_tflops_per_gpu", "TFLOP/s"),
        ("memory_headroom_fraction", "share, 0 to 1"),
        ("carbon_g_per_kwh", "g/kWh"),
        ("energy_kwh", "kWh"),
        ("tp", ""),
    ],
)
def test_the_unit_of_a_field_is_in_its_name(field: str, expected: str) -> None:
    assert unit(field) == expected


def test_marks_stay_with_their_lines() -> None:
    before = ["model on 8 GPUs   ①", "1 dp8 3.2 s", "optimal   ②"]
    after = marked(["model on 8 GPUs", "(from a file)", "1 dp8 3.1 s", "optimal"], before)
    assert [line[-1] for line in after] == ["①", ")", "s", "②"]
    assert after[0].startswith("model on 8 GPUs  ")
