"""Where the rows of padded groups come from, worked out by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from profiler.trial.experts import slots


def test_rows_of_several_senders_are_sorted_by_expert_and_padded() -> None:
    # The first sender has row 0 for expert 0, and rows 1 and 2 for expert 1; the second has rows 3 to 5 for expert 0.
    sources, sizes = slots(torch.tensor([[1, 2], [3, 0]]), 6)
    assert sizes.tolist() == [8, 8]
    zeros = 6
    # 6 rows and at most 8 of padding for each expert are 22; the next multiple of 8 is 24.
    assert sources.tolist() == [0, 3, 4, 5] + 4 * [zeros] + [1, 2] + 6 * [zeros] + 8 * [zeros]


def test_an_expert_without_rows_has_no_group() -> None:
    sources, sizes = slots(torch.tensor([[0, 8]]), 8)
    assert sizes.tolist() == [0, 8]
    assert sources.tolist() == [*range(8)] + 16 * [8]
