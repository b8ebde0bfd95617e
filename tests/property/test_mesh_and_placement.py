"""A plan's mesh counts nodes rank by rank; prices come from arithmetic on sizes and strides. Both must see the same groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import dense_model, job_of, row_of
from cost_models.hardware.groups import groups
from planner.mesh.mesh import mesh_document


@st.composite
def splits(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A split whose ranks fill whole nodes, and the GPUs of a node."""
    per_node = draw(st.sampled_from([2, 4, 6, 8]))
    tp, cp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    dp, pp = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 4, 8]))
    shard = draw(st.sampled_from([size for size in range(1, dp * cp + 1) if dp * cp % size == 0]))
    return {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "zero": 1, "zero_shard_size": shard}, per_node


@given(splits())
@settings(max_examples=60, deadline=None)
def test_nodes_and_members_are_those_that_prices_rest_on(drawn: tuple[dict[str, Any], int]) -> None:
    split, per_node = drawn
    world = int(np.prod([split[name] for name in ("tp", "cp", "dp", "pp")]))
    nodes = -(-world // per_node)
    job = job_of(
        dense_model(8), num_nodes=nodes, cluster={"gpus_per_node": per_node}, global_batch_size=8 * split["dp"]
    )
    row = row_of(job, all_stages=True, **split)
    placed = groups(row, job.cluster)
    for kind in mesh_document(job.as_only_pool, row)["dimensions"]:
        (link,) = kind["links"]
        its = getattr(placed, kind["name"])
        assert kind["size"] == its.ranks[0]
        assert kind["size"] == 1 or kind["stride"] == its.stride[0]
        # Prices take the group that is worst off: the most nodes, and on a node the fewest members.
        assert link["nodes"][1] == its.islands[0], kind
        assert link["members_per_node"][0] == its.per_island[0], kind
        assert (link["link"] == "network") == (link["nodes"][1] > 1)
