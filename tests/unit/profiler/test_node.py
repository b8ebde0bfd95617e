"""What a node says of itself to a service: what is given, what the environment hides, and what cannot be told."""

from __future__ import annotations

import sys

import pytest

from app.cli.main import run
from cost_models.errors import MeasurementError
from profiler.machine.node import Node, this_node


@pytest.fixture
def without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.usefixtures("without_driver")
def test_what_is_given_needs_no_driver() -> None:
    assert this_node({}, device="cuda", gpu="H100-SXM-80GB", gpus_per_node=8) == Node("H100-SXM-80GB", 8)
    assert this_node({}, device="cpu", gpu=None, gpus_per_node=2) == Node("CPU", 2)
    assert this_node({}, device="cpu", gpu=None, gpus_per_node=None) == Node("CPU", 1)


@pytest.mark.usefixtures("without_driver")
@pytest.mark.parametrize(("gpu", "count"), [(None, None), ("H100-SXM-80GB", None), (None, 8)])
def test_what_only_the_driver_knows_is_not_guessed(gpu: str | None, count: int | None) -> None:
    with pytest.raises(MeasurementError) as raised:
        this_node({}, device="cuda", gpu=gpu, gpus_per_node=count)
    assert "--gpus-per-node" in str(raised.value.hint)


@pytest.mark.usefixtures("without_driver")
def test_an_agent_without_a_gpu_ends_before_it_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "--server", "http://127.0.0.1:9"]) == 5
    assert "the NVIDIA driver names no GPU of this node" in capsys.readouterr().err
