"""Layers of stages, written out by hand."""

from __future__ import annotations

from typing import Any

from builders import job_of, tiny_model
from planner.mesh.layers import stage_layers


def held(stage: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    return [(chunk["first"], chunk["last"]) for chunk in stage["chunks"]]


def test_interleaved_chunks_go_round_the_stages() -> None:
    """pp 2, vpp 2: virtual stages 0 and 2 lie on stage 0, 1 and 3 on stage 1."""
    found = stage_layers(job_of(tiny_model(8)), {"pp": 2, "vpp": 2, "layers_per_stage": [2, 2, 2, 2]})
    assert [held(stage) for stage in found["stages"]] == [[(1, 2), (5, 6)], [(3, 4), (7, 8)]]
    ends = [[(chunk["embedding"], chunk["head"]) for chunk in stage["chunks"]] for stage in found["stages"]]
    assert ends == [[(True, False), (False, False)], [(False, False), (False, True)]]


def test_a_folded_pipeline_ends_where_it_begins() -> None:
    split = {"pp": 2, "vpp": 2, "schedule": "zb-v", "layers_per_stage": [2, 2, 2, 2]}
    found = stage_layers(job_of(tiny_model(8)), split)
    assert [held(stage) for stage in found["stages"]] == [[(1, 2), (7, 8)], [(3, 4), (5, 6)]]
    assert found["stages"][0]["chunks"][1]["head"]


def test_chunks_without_layers_keep_their_place() -> None:
    found = stage_layers(job_of(tiny_model(8)), {"pp": 2, "vpp": 2, "layers_per_stage": [0, 3, 3, 2]})
    assert [held(stage) for stage in found["stages"]] == [[(None, None), (4, 6)], [(1, 3), (7, 8)]]
    assert found["stages"][0]["chunks"][0]["embedding"]
    assert [stage["layers"] for stage in found["stages"]] == [3, 5]


def test_dense_layers_before_experts() -> None:
    """Three dense layers, then five with experts; the first stage holds four layers."""
    moe = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512, "first_dense_layers": 3}
    found = stage_layers(job_of(tiny_model(8, moe=moe)), {"pp": 2, "vpp": 1, "layers_per_stage": [4, 4]})
    assert found["has_experts"]
    assert found["stages"][0]["chunks"][0]["kinds"] == [[False, 3], [True, 1]]
    assert [(stage["dense"], stage["experts"]) for stage in found["stages"]] == [(3, 1), (0, 4)]


def test_one_stage_holds_everything() -> None:
    (stage,) = stage_layers(job_of(tiny_model(4)), {"pp": 1, "vpp": 1, "layers_per_stage": None})["stages"]
    assert held(stage) == [(1, 4)]
    assert stage["chunks"][0]["embedding"]
    assert stage["chunks"][0]["head"]
