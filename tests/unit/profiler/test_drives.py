"""A node's drives are measured in a folder that the user names, and nothing is left in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.bench import drives
from profiler.ranks import Ranks
from profiler.rig import Rig
from profiler.scale import cpu_scale
from profiler.tasks import NotSupportedError
from profiler.timing import Stopwatch


@pytest.fixture
def rig() -> Rig:
    device: Any = torch.device("cpu")
    return Rig(torch, device, Ranks(0, 1, 0, 1, "none"), cpu_scale(), Stopwatch(torch, device))


def test_without_a_folder_nothing_is_measured(rig: Rig) -> None:
    assert drives.tasks(rig, None) == []


def test_what_is_written_is_read_and_removed(rig: Rig, tmp_path: Path) -> None:
    (task,) = drives.tasks(rig, tmp_path)
    samples = {each["kind"]: each for each in task.run(rig)["memory_bandwidth"]}
    assert set(samples) == {"nvme_read", "nvme_write"}
    for sample in samples.values():
        assert sample["size_bytes"] == 2**24
        # No drive is slower than a megabyte a second, and no memory faster than a terabyte.
        assert 1e6 < sample["bytes_per_s"] < 1e12
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_left_out_with_a_note(rig: Rig, tmp_path: Path) -> None:
    (task,) = drives.tasks(rig, tmp_path / "missing")
    with pytest.raises(NotSupportedError, match="cannot be written to: No such file"):
        task.run(rig)
