"""How many layers full recomputation covers: every layer, a block of each chunk, units, or a count per stage."""

from __future__ import annotations

import pytest

from cost_models.inputs.model import resolve_model
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.recomputed_layers import recomputed_layers, recomputed_layers_by_slot, recomputed_shares
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, build_strategies

BLOCK, UNIFORM, EVERY = RecomputeMethod.BLOCK, RecomputeMethod.UNIFORM, RecomputeMethod.EVERY


def one(layout: Layout, *, mode: Recompute, method: RecomputeMethod = EVERY, count: int = 0) -> Strategies:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}
    model = resolve_model({**sizes, "num_layers": sum(layout.layers)})
    columns = dict.fromkeys(ARRAY_FIELDS, 1) | {"layout": 0, "pp": layout.pp, "vpp": layout.vpp, "recompute": mode}
    columns |= {"recompute_method": method, "recompute_num_layers": count}
    return build_strategies(columns, layouts=build_layouts([layout], model=model, all_stages=True))


UNEVEN = Layout(3, 1, (3, 5, 4))
CASES = [
    (UNEVEN, Recompute.NONE, EVERY, 0, [0, 0, 0]),
    (UNEVEN, Recompute.SELECTIVE, EVERY, 0, [0, 0, 0]),
    (UNEVEN, Recompute.FULL, EVERY, 0, [3, 5, 4]),
    (UNEVEN, Recompute.FULL, UNIFORM, 2, [3, 5, 4]),  # units of two layers: every layer is in one
    (UNEVEN, Recompute.FULL, BLOCK, 4, [3, 4, 4]),  # four of each stage, the first has only three
    (Layout(2, 2, (2, 2, 2, 2)), Recompute.FULL, BLOCK, 1, [2, 2]),  # one of each of two chunks
    (Layout(2, 2, (2, 2, 2, 2)), Recompute.FULL, BLOCK, 9, [4, 4]),
    (
        Layout(2, 2, (3, 4, 1, 2)),
        Recompute.FULL,
        BLOCK,
        2,
        [3, 4],
    ),  # the first has chunks of 3 and 1, the second 4 and 2
    (Layout(2, 2, (3, 4, 1, 2)), Recompute.FULL, EVERY, 0, [4, 6]),
    (Layout(3, 1, (3, 5, 4), recompute_per_stage=(0, 2, 9)), Recompute.FULL, EVERY, 0, [0, 2, 4]),
]


@pytest.mark.parametrize(("layout", "mode", "method", "count", "expected"), CASES)
def test_layers_by_stage(layout, mode, method, count, expected) -> None:
    rows = one(layout, mode=mode, method=method, count=count)
    assert recomputed_layers_by_slot(rows)[:, 0].tolist() == expected
    assert recomputed_layers(rows).tolist() == [sum(expected)]
    assert recomputed_shares(rows)[0] == pytest.approx(sum(expected) / sum(layout.layers))
