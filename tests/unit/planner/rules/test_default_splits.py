"""The split of layers that each framework makes by itself, and the one that a search tries where it makes none."""

from __future__ import annotations

from typing import Any

import pytest

from builders import dense_model, training_of
from cost_models.job import Job
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rows import evaluate_rows
from planner.rules import violations
from planner.rules.default_splits import default_split, legal_split
from planner.schemas.plan_request import Constraints
from planner.strategies.axes import build_space
from planner.strategies.told import strategy_dict

LLAMA_8B = {"preset": "llama-3.1-8b"}
VERSIONS = [
    ("megatron", "0.12"), ("megatron", "0.16"), ("megatron-deepspeed", "2023"), ("megatron-deepspeed", "2024"),
    ("deepspeed", "0.9"), ("deepspeed", "0.16"), ("torchtitan", "0.2"), ("nanotron", "0.4"),
]  # fmt: skip


def model(num_layers: int, **more: Any) -> dict[str, Any]:
    """A layer costs nanotron 4*1024^2 + 3*4096*1024 = 16.78 M, the head 32000*1024 = 32.77 M: 1.953 layers."""
    return dense_model(num_layers, num_attention_heads=16, **more)


def request(framework: str, given: dict[str, Any], version: str | None = None) -> dict[str, Any]:
    training = training_of(framework, seq_length=8192)
    if version is not None:
        training["framework_version"] = version
    return {"model": given, "cluster": {"preset": "dgx-h100", "num_nodes": 2}, "training": training}


def job(framework: str, num_layers: int, version: str | None = None, **more: Any) -> Job:
    return resolve_job(request(framework, model(num_layers, **more), version))


def test_nanotron_splits_a_model_whose_layers_divide_by_cost_too() -> None:
    """Of Llama 3.1 8B a layer costs 4*4096^2 + 3*14336*4096 = 243.3 M, the head 128256*4096 = 525.3 M: 2.16 layers. Half of
    34.16 is 17.08: the eighteenth layer passes it.
    """
    asked = request("nanotron", LLAMA_8B)
    assert default_split(resolve_job(asked), pp=2, vpp=1) == (18, 14)
    strategy = {"tp": 1, "pp": 2, "dp": 8, "zero": 1, "recompute": "full", "micro_batch_size": 1}
    evaluated = next(iter(evaluate_rows([asked | {"strategy": strategy}])))
    assert evaluated["verdict"] == "fits"
    found = plan(asked | {"constraints": {"fixed": {"pp": 2}}, "top_k": 1000})
    assert {tuple(each["strategy"]["layers_per_stage"]) for each in found["plans"]} == {(18, 14)}
    fed = [each for each in found["plans"] if all(each["strategy"][name] == value for name, value in strategy.items())]
    assert evaluated["step_time_s"] in [each["evaluation"]["step_time_s"] for each in fed]
    assert "split-unsupported" not in found["rejected"]


def test_nanotron_on_pools_splits_by_cost_too() -> None:
    asked = request("nanotron", LLAMA_8B)
    pools = [
        {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    ]
    found = plan(asked | {"cluster": {"pools": pools}, "constraints": {"fixed": {"pp": 2}}})
    assert {tuple(each["strategy"]["layers_per_stage"]) for each in found["plans"]} == {(18, 14)}


@pytest.mark.parametrize(
    ("layers", "vocab_size", "pp", "expected"),
    [
        (30, 32000, 2, (16, 14)),  # half of 31.953 layers is 15.98
        (30, 32000, 4, (8, 8, 8, 6)),  # quarters at 7.99, 15.98, 23.96
        (8, 49152, 3, (4, 4, 0)),  # the head is three layers: thirds of 11 are passed by the 4th and the 8th
        (8, 163840, 3, None),  # ten: thirds of 18 are 6 and 12, so the 8th layer and the head share the second stage
        (8, 163840, 2, None),  # half of 18 is 9: all layers and the head on the first stage
        (8, 163840, 6, None),  # sixths of 3: stages end at 4, 7; the head goes to the third of six
    ],
)
def test_nanotron_refuses_stages_without_parameters(layers: int, vocab_size: int, pp: int, expected: Any) -> None:
    found = default_split(job("nanotron", layers, vocab_size=vocab_size), pp=pp, vpp=1)
    assert found == expected


@pytest.mark.parametrize(
    ("version", "layers", "pp", "expected"),
    [
        ("0.12.4", 30, 4, (8, 8, 8, 6)), ("0.12.5", 30, 4, (8, 8, 7, 7)), ("0.9", 31, 6, (6, 6, 6, 6, 6, 1)),
        ("0.9", 34, 8, (5, 5, 5, 5, 5, 5, 4, 0)),  # the last stage holds the head
        ("0.9", 42, 16, None),  # fourteen stages of three leave two without a layer, one of them without an end
        ("0.16", 42, 16, (*[3] * 10, *[2] * 6)), ("0.16", 32, 4, (8, 8, 8, 8)), ("0.9", 32, 4, (8, 8, 8, 8)),
    ],
)  # fmt: skip
def test_deepspeed_fills_or_balances_by_version(version: str, layers: int, pp: int, expected: Any) -> None:
    """What `partition_balanced` of DeepSpeed 0.11.1 and 0.13.0 returned for weights of one per layer."""
    assert default_split(job("deepspeed", layers, version), pp=pp, vpp=1) == expected


def test_megatron_before_its_layouts_differs_at_the_ends_alone() -> None:
    """34 layers over 8 stages: six stages of 5 leave 4 for the ends; 31 over 8: six of 4 leave 7."""
    assert legal_split(job("megatron", 34, "0.12"), pp=8, vpp=1) == (2, 5, 5, 5, 5, 5, 5, 2)
    assert legal_split(job("megatron", 31, "0.12"), pp=8, vpp=1) == (4, 4, 4, 4, 4, 4, 4, 3)
    assert legal_split(job("megatron", 34, "0.16"), pp=8, vpp=1) == (4, 4, 4, 5, 5, 4, 4, 4)
    asked = request("megatron", model(34), "0.12") | {"constraints": {"fixed": {"pp": 8}}}
    assert plan(asked)["plans"][0]["strategy"]["layers_per_stage"] == [2, 5, 5, 5, 5, 5, 5, 2]


@pytest.mark.parametrize(
    ("framework", "last", "first", "before", "after"),
    [
        # Megatron's --pipeline-model-parallel-layout; DeepSpeed 0.12.5's partition_balanced, which Megatron-DeepSpeed's users
        # have from its April 2024 on.
        ("megatron", "0.12.9", "0.13", (2, 5, 5, 5, 5, 5, 5, 2), (4, 4, 4, 5, 5, 4, 4, 4)),
        ("deepspeed", "0.12.4", "0.12.5", (5, 5, 5, 5, 5, 5, 4, 0), (5, 5, 4, 4, 4, 4, 4, 4)),
        ("megatron-deepspeed", "2023", "2024", (5, 5, 5, 5, 5, 5, 4, 0), (5, 5, 4, 4, 4, 4, 4, 4)),
    ],
)
def test_splits_change_with_their_release(framework: str, last: str, first: str, before: Any, after: Any) -> None:
    """34 layers over 8 stages."""
    found = [legal_split(job(framework, 34, version), pp=8, vpp=1) for version in (last, first)]
    assert found == [before, after]


@pytest.mark.parametrize(("framework", "version"), VERSIONS)
@pytest.mark.parametrize("layers", [7, 16, 30, 34, 61])
def test_no_searched_split_is_one_that_the_framework_refuses(framework: str, version: str, layers: int) -> None:
    asked = job(framework, layers, version)
    space = build_space(asked, Constraints())
    rows = space.expand(space.base()).rows
    broken = violations(asked, rows).only(frozenset({"split-unsupported"}))
    bad = [strategy_dict(rows, int(index))["layers_per_stage"] for index in (~broken.legal).nonzero()[0][:3]]
    assert not bad


@pytest.mark.parametrize(("framework", "version"), VERSIONS)
@pytest.mark.parametrize("layers", [7, 16, 30, 34, 61])
def test_every_number_of_stages_that_evaluate_takes_is_searched(framework: str, version: str, layers: int) -> None:
    asked = request(framework, model(layers), version)
    searched = build_space(resolve_job(asked), Constraints()).layout_index
    for pp in (2, 4, 8, 16):
        row = asked | {"strategy": {"tp": 1, "pp": pp, "dp": 1, "micro_batch_size": 1}}
        answer = next(iter(evaluate_rows([row])))
        codes = {reason["code"] for reason in answer["reasons"]}
        assert (pp in searched) or codes & {"layers-not-divisible", "split-unsupported"}, (pp, codes)


def test_a_refused_number_of_stages_is_told_why_and_what_could_be() -> None:
    def refused(framework: str, version: str, layers: int, pp: int, vpp: int = 1) -> dict[str, str]:
        row = request(framework, model(layers), version) | {
            "strategy": {"tp": 1, "pp": pp, "vpp": vpp, "dp": 1, "micro_batch_size": 1}
        }
        (reason,) = next(iter(evaluate_rows([row])))["reasons"]
        assert reason["code"] == "layers-not-divisible"
        return dict(reason)

    assert "[2, 5, 5, 5, 5, 5, 5, 2]" in refused("megatron", "0.12", 34, 8)["hint"]
    assert refused("megatron", "0.16", 30, 4)["message"].startswith("pp 4 does not divide the model's 30 layers")
    assert refused("megatron", "0.16", 30, 4, vpp=2)["message"].startswith(
        "pp 4 x vpp 2 does not divide the model's 30 "
    )
    own = refused("deepspeed", "0.9", 42, 16)
    assert "by its own rule" in own["message"]
    assert "layers_per_stage" not in own["hint"]


@pytest.mark.parametrize(
    ("layers", "pp", "split"),
    [(5, 4, (2, 2, 1, 0)), (6, 4, (2, 2, 2, 0)), (7, 4, (2, 2, 2, 1)), (9, 4, (3, 3, 3, 0)), (3, 4, None)],
)
def test_parts_that_are_filled_up_leave_the_last_one_what_there_is(layers: int, pp: int, split: Any) -> None:
    """Parts of ceil(layers / pp) each; only the last one may stay empty, and not where there are fewer layers than parts."""
    assert legal_split(job("deepspeed", layers, "0.12.4"), pp=pp, vpp=1) == split
    assert legal_split(job("megatron-deepspeed", layers, "2023"), pp=pp, vpp=1) == split
