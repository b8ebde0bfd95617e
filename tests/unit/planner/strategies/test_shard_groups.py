"""Which frameworks and versions can share sharded state among a part of the replicas, and that a search tries every such part."""

from __future__ import annotations

from typing import Any

import pytest

from builders import dense_model, request_of, with_experts
from cost_models.job import Job
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas.plan_request import Constraints
from planner.strategies.axes import build_space
from planner.strategies.shard_groups import shard_group_stages

PARTIAL = frozenset({
    "zero-shard-size-unsupported", "zero-shard-size-not-divisible", "zero-param-shard-size-unsupported",
})  # fmt: skip


def request(framework: str, version: str | None = None, *, moe: bool = False, **more: Any) -> dict[str, Any]:
    model = dense_model(8, num_attention_heads=16)
    given = {"framework_version": version} if version else {}
    asked = request_of(
        with_experts(model, expert_intermediate_size=1024) if moe else model, framework, num_nodes=2, **given
    )
    return asked | more


def job(framework: str, version: str | None = None, *, moe: bool = False) -> Job:
    return resolve_job(request(framework, version, moe=moe))


@pytest.mark.parametrize(
    ("framework", "version", "moe", "stages"),
    [
        ("megatron", "0.9", False, set()),  # num_distributed_optimizer_instances is in core 0.10's parallel_state.py
        ("megatron", "0.10", False, {1}),
        ("megatron", "0.12", False, {1}),  # custom_fsdp of 0.12.1 does not read it, that of 0.13.1 does
        ("megatron", "0.13", False, {1, 2, 3}),
        ("megatron", "0.13", True, {1, 2, 3}),
        ("megatron", "0.16", True, {1}),  # its FSDPDistributedIndex has no mesh for experts' copies, that of 0.17 has
        ("megatron", "0.17", True, {1, 2, 3}),
        ("torchtitan", "0.2", True, {1, 2, 3}),
        ("fsdp", "1.12", False, set()),  # ShardingStrategy.HYBRID_SHARD came with PyTorch 2.0
        ("fsdp", "2.6", False, {1, 2, 3}),
        ("deepspeed", "0.5", False, set()),  # runtime/zero/mics.py is in the source package of 0.9.2, not of 0.9.1
        ("deepspeed", "0.9.1", False, set()),
        ("deepspeed", "0.9", False, {3}),
        ("deepspeed", "0.16", False, {3}),  # MiCS
        ("deepspeed", "0.19.6", False, {3}),
        ("deepspeed", "0.19", False, set()),  # its newest patch has removed MiCS
        ("megatron-deepspeed", None, False, set()),
        ("nanotron", None, False, set()),
    ],
)  # fmt: skip
def test_stages_whose_state_can_be_shared_by_a_part_of_the_replicas(
    framework: str, version: str | None, moe: bool, stages: set[int]
) -> None:
    assert shard_group_stages(job(framework, version, moe=moe)) == stages


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize(
    ("framework", "version"),
    [
        ("megatron", "0.9"), ("megatron", "0.12"), ("megatron", "0.13"), ("megatron", "0.16"), ("megatron", "0.17"),
        ("torchtitan", "0.2"), ("fsdp", "2.6"), ("deepspeed", "0.16"), ("deepspeed", "0.19"), ("nanotron", "0.4"),
    ],
)  # fmt: skip
def test_the_rules_agree_and_what_is_legal_in_groups_is_legal_as_a_whole(
    framework: str, version: str, moe: bool
) -> None:
    """Of expanded rows none breaks a rule on groups but that which asks experts' copies to divide, and a strategy that is
    legal with a smaller group is legal with all replicas: the search looks at groups of legal strategies alone.
    """
    asked = job(framework, version, moe=moe)
    space = build_space(asked, Constraints())
    base = space.base()
    whole = space.pairs(base)
    groups = space.grouped(base, whole)
    assert bool(groups.group.any()) == bool(shard_group_stages(asked) & set(space.zeros))
    assert bool(groups.copies.any()) == (framework == "deepspeed")
    if not len(groups.origin):
        return
    rows = space.expand(base, groups).rows
    found = violations(asked, rows)
    if not moe and framework != "fsdp":
        assert found.only(PARTIAL).legal.all()
    assert found.legal.any()
    legal_whole = violations(asked, space.expand(base, whole).rows).legal
    by_pair = dict(
        zip(zip(whole.origin.tolist(), whole.option.tolist(), strict=True), legal_whole.tolist(), strict=True)
    )
    pairs = zip(groups.origin[found.legal].tolist(), groups.option[found.legal].tolist(), strict=True)
    assert all(by_pair[pair] for pair in pairs)


@pytest.mark.parametrize(
    ("framework", "version", "moe", "strategy"),
    [
        ("megatron", "0.9", False, {"zero": 1}), ("megatron", "0.12", False, {"zero": 3}),
        ("megatron", "0.16", True, {"zero": 2}), ("fsdp", "1.12", False, {"zero": 3}),
        ("deepspeed", "0.19.7", False, {"zero": 3}), ("nanotron", None, False, {"zero": 1}),
    ],
)  # fmt: skip
def test_a_group_that_the_version_does_not_know_is_refused(
    framework: str, version: str | None, moe: bool, strategy: dict[str, int]
) -> None:
    fixed = {"tp": 1, "pp": 1, "dp": 16, "cp": 1, "micro_batch_size": 1, **strategy}
    refused = plan(request(framework, version, moe=moe, constraints={"fixed": {**fixed, "zero_shard_size": 8}}))
    assert refused["plans"] == []
    assert refused["rejected"]["zero-shard-size-unsupported"] > 0
    assert plan(request(framework, version, moe=moe, constraints={"fixed": fixed}))["plans"]


CASES = [
    ("llama-3.2-1b", {"preset": "rtx4090-pcie-8"}, "fsdp"),
    ("llama-3.2-1b", {"preset": "l40s-pcie-8"}, "torchtitan"),
    ("llama-3.2-1b", {"preset": "l40s-pcie-8", "num_nodes": 2}, "megatron"),
    (
        "llama-3.1-8b",
        {"pools": [{"name": "old", "preset": "dgx-a100-80gb", "num_nodes": 1}, {"name": "new", "preset": "dgx-h100", "num_nodes": 1}]},
        "megatron",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "cluster", "framework"), CASES)
def test_listing_every_divisor_finds_nothing_better(model: str, cluster: dict[str, Any], framework: str) -> None:
    """Over PCIe a group of fewer GPUs is often faster: the search finds it without being told."""
    asked = request(framework) | {"model": {"preset": model}, "cluster": cluster, "top_k": 3}
    # Without virtual stages, which make a search on pools a hundred times as long.
    plain = plan(asked | {"constraints": {"fixed": {"vpp": 1}}})
    listed = plan(asked | {"constraints": {"fixed": {"vpp": 1}, "allowed": {"zero_shard_size": [1, 2, 4, 8, 16]}}})
    first = plain["plans"][0]["strategy"]
    size = "all replicas" if first["zero_shard_size"] == first["dp"] * first["cp"] else first["zero_shard_size"]
    assert size in plain["search"]["space"]["zero_shard_size"]
    best, told = (each["plans"][0]["evaluation"]["step_time_s"] for each in (plain, listed))
    assert best <= told * (1 + 1e-6)


def test_the_space_reports_every_size() -> None:
    sizes = plan(request("megatron"))["search"]["space"]["zero_shard_size"]
    assert sizes == ["all replicas", 2, 4, 8]
    assert plan(request("nanotron"))["search"]["space"]["zero_shard_size"] == ["all replicas"]


@pytest.mark.parametrize(
    ("version", "shards", "copies"), [("0.9", [2, 4, 8], None), ("0.16", [2, 4, 8], [2, 4, 8]), ("0.19", [], [2, 4, 8])]
)
def test_deepspeed_tries_every_size_of_a_second_copy(version: str, shards: list[int], copies: list[int] | None) -> None:
    """16 replicas: DeepSpeed has hpZ from 0.10 on, and MiCS until 0.19.6. Beside MiCS no second copy is tried, and the answer says so."""
    search = plan(request("deepspeed", version))["search"]
    assert search["space"]["zero_shard_size"] == ["all replicas", *shards]
    assert search["space"].get("zero_param_shard_size") == (copies and ["no second copy", *copies])
    assert ("zero_param_shard_size" in search["not_searched"]) == (version == "0.16")


def test_a_second_copy_inside_a_node_is_found_where_it_gains() -> None:
    """32 GPUs on a slow network: listing the sizes finds no better plan than saying nothing, and without copies none as good."""
    slow = {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8, "nics_per_node": 1, "nic_gbit_per_s": 100}
    fixed = {"tp": 1, "pp": 1, "cp": 1, "dp": 32, "zero": 3}
    asked = request("deepspeed") | {"model": {"preset": "llama-3.2-1b"}, "cluster": slow}
    best = plan(asked | {"constraints": {"fixed": fixed}})["plans"][0]
    whole, listed = (
        plan(asked | {"constraints": {"fixed": fixed, "allowed": {"zero_param_shard_size": sizes}}})["plans"][0]
        for sizes in ([32], [2, 4, 8, 16, 32])
    )
    assert best["strategy"]["zero_param_shard_size"] in (2, 4, 8)
    assert best["evaluation"]["step_time_s"] == listed["evaluation"]["step_time_s"]
    assert best["evaluation"]["step_time_s"] < 0.9 * whole["evaluation"]["step_time_s"]


def test_a_group_of_one_node_is_worth_it_on_a_slow_network() -> None:
    """64 GPUs whose nodes share one 100 Gbit/s link: among all of them every layer's parameters cross it twice in each
    micro-batch, among the eight of a node never.
    """
    slow = {"gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8, "nics_per_node": 1, "nic_gbit_per_s": 100}
    fixed = {"tp": 1, "cp": 1, "dp": 64, "zero": 3, "micro_batch_size": 1}
    asked = request("fsdp") | {"model": {"preset": "llama-3.2-1b"}, "cluster": slow}
    best = plan(asked | {"constraints": {"fixed": fixed}})["plans"][0]
    among_all = plan(asked | {"constraints": {"fixed": {**fixed, "zero_shard_size": 64}}})["plans"][0]
    assert best["strategy"]["zero_shard_size"] == 8
    assert best["evaluation"]["step_time_s"] < 0.8 * among_all["evaluation"]["step_time_s"]
