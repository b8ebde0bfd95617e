"""Where nothing fits in the GPUs' memory, plans that keep a part of the state in host memory are the answer, and say so."""

from __future__ import annotations

from typing import Any

import pytest

from planner.plan import plan


def request(framework: str, *, nodes: int = 2, **parts: Any) -> dict[str, Any]:
    return {
        "model": {"preset": "llama-3.1-70b"},
        "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework},
        "top_k": 3,
        **parts,
    }


def moved(answer: dict[str, Any]) -> list[bool]:
    return [any(each["strategy"]["offload"].values()) for each in answer["plans"]]


@pytest.mark.parametrize("framework", ["megatron", "deepspeed", "fsdp", "torchtitan"])
def test_a_model_that_is_too_large_for_its_gpus_is_offloaded(framework) -> None:
    """70.6e9 parameters of 16 or 18 bytes are more than 16 GPUs of 80 GB hold, and less than two hosts do."""
    answer = plan(request(framework))
    assert moved(answer) == [True] * 3
    assert answer["search"]["proof"]["optimal"]
    assert any("host memory (strategy.offload)" in warning for warning in answer["warnings"])
    assert {name for name in answer["search"]["space"] if name.startswith("offload.")}
    assert "offload-unsupported" not in answer["rejected"]


def test_listing_what_is_tried_finds_the_same() -> None:
    own = plan(request("deepspeed"))
    values = {
        name.partition(".")[2]: each for name, each in own["search"]["space"].items() if name.startswith("offload.")
    }
    values["activation_layers"] = [0, 79]  # one stage of 80 layers, the last of which is needed at once
    listed = plan(request("deepspeed", constraints={"allowed": {"offload": values}, "fixed": {"pp": 1}}))
    assert listed["plans"][0]["strategy"] == own["plans"][0]["strategy"]


def test_strategies_that_were_tried_without_offload_are_counted_once() -> None:
    """Two searches together look at every combination of the values that the answer reports, as one search of all of them does."""
    own = plan(request("deepspeed"))
    values = {
        name.partition(".")[2]: each for name, each in own["search"]["space"].items() if name.startswith("offload.")
    }
    listed = plan(request("deepspeed", constraints={"allowed": {"offload": values}}))
    assert own["search"]["total"] == listed["search"]["total"]


def test_nothing_is_offloaded_where_something_fits_or_the_request_says_what_is() -> None:
    fits = plan(request("deepspeed", nodes=8))
    assert not any(moved(fits))
    assert "offload" in fits["search"]["not_searched"]
    given = plan(request("deepspeed", constraints={"fixed": {"offload": {"optimizer_fraction": 0.0}}}))
    assert given["plans"] == []
    assert plan(request("nanotron"))["plans"] == []
