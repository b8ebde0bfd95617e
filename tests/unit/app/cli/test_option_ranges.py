"""Numbers of the command line that have bounds: which ones, and that what lies beyond them is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from app.cli.main import app, run
from app.settings import Settings

RANGES: Mapping[tuple[str, str], tuple[int | None, int | None]] = {
    ("serve", "port"): (0, 65535),  # RFC 793: ports have 16 bits; 0 lets the system choose one
    ("serve", "workers"): (0, 256),  # as the setting
    ("worker", "workers"): (0, 256),
    # As the service takes them: no node has more than some dozens of GPUs, no cluster more nodes.
    ("agent", "gpus_per_node"): (1, 1024),
    ("agent", "num_nodes"): (1, 100_000),
    ("export", "plan"): (1, None),
    ("show", "plan"): (1, None),
    ("import_config", "vocab_size"): (1, None),
    ("judge", "vocab_size"): (1, None),
    ("start", "plan"): (1, None),  # the first plan of a ranking has rank 1
    ("start", "seed"): (0, None),
    ("tell", "trial"): (0, None),  # trials count from 0
    ("show", "num_nodes"): (1, None),
    ("collectives", "num_nodes"): (1, None),
    ("collectives", "ranks"): (2, None),  # one rank has nobody to send to
    ("collectives", "stride"): (1, None),
    ("tune", "max_trials"): (1, None),
    ("tune", "gpu_hours"): (0, None),
    ("tune", "knobs"): (0, None),
    ("tune", "seed"): (0, None),
    # Times and sizes that were measured; 0 itself is refused where the numbers are read.
    ("observe", "step_time"): (0, None),
    ("observe", "peak_memory_gib"): (0, None),
}


def callbacks(group: typer.Typer) -> Iterator[tuple[str, object]]:
    """Name and function of every command."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield command.callback.__name__, command.callback
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from callbacks(each.typer_instance)


def test_every_number_with_bounds_is_in_the_table() -> None:
    found = {
        (name, parameter): (info.min, info.max)
        for name, function in callbacks(app)
        for parameter, hint in get_type_hints(function, include_extras=True).items()
        for info in get_args(hint)
        if isinstance(info, ArgumentInfo | OptionInfo) and (info.min, info.max) != (None, None)
    }
    assert found == RANGES


@pytest.mark.parametrize(
    "beyond",
    [
        ("serve", "--port", "65536"),
        ("serve", "--port", "-1"),
        ("agent", "--server", "http://127.0.0.1:9", "--gpus-per-node", "0"),
        ("agent", "--server", "http://127.0.0.1:9", "--num-nodes", "0"),
        ("knobs", "start", "some.json", "--storage", "some.db", "--plan", "0"),
        ("show", "some.json", "--plan", "0"),
        ("knobs", "start", "some.json", "--storage", "some.db", "--seed", "-1"),
        ("knobs", "tell", "--storage", "some.db", "--", "-1"),
        ("profile", "show", "some.json", "--num-nodes", "0"),
        ("tune", "some.json", "--max-trials", "0"),
        ("tune", "some.json", "--gpu-hours", "-1"),
        ("tune", "some.json", "--knobs", "-1"),
        ("observe", "--row", "some.json", "--step-time", "-1"),
    ],
)
def test_what_lies_beyond_a_bound_is_refused(beyond: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(beyond) == 2
    assert "Invalid value" in capsys.readouterr().err


def test_the_defaults_that_help_tells_of_serve_are_those_of_the_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["serve", "--help"]) == 0
    told = capsys.readouterr().out
    for name in ("host", "port"):
        assert f"[default: ({Settings.model_fields[name].default})]" in told
