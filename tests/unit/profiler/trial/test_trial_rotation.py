"""Which elements rotary positions turn together: neighbours in Llama, halves where queries and keys are normed, as torchtitan's modules."""

from __future__ import annotations

import math

import pytest

from builders import dense_model
from cost_models.inputs.model import resolve_model


@pytest.mark.parametrize(
    ("given", "partner"),
    [
        ({}, 1),
        ({"rotary_interleaved": False}, 4),
        ({"qk_norm": True}, 4),
        ({"qk_norm": True, "rotary_interleaved": True}, 1),
    ],
)
def test_the_first_element_turns_with_its_neighbour_or_with_that_of_the_other_half(given, partner) -> None:
    """A head of 8 at position 3: the first frequency is 1, so that (1, 0, ...) becomes cos 3 and, in its partner, sin 3."""
    import torch

    from profiler.trial.modules import rotated, rotation

    model = resolve_model(dense_model(2, head_dim=8, **given))
    x = torch.zeros(1, 4, 2, 8)
    x[..., 0] = 1.0
    turned = rotated(x, rotation(torch.arange(4), model))
    expected = torch.zeros(8)
    expected[0], expected[partner] = math.cos(3.0), math.sin(3.0)
    assert torch.allclose(turned[0, 3, 1], expected, atol=1e-6)
    assert turned.dtype == x.dtype
