"""The front against brute force: every strategy that a small request allows, written out as rows, priced one by one and compared.

The rows come from the contract's list of what is searched, and dominance from its definition, over all four objectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

from builders import Document, dense_model, request_of, with_experts
from planner.plan import plan
from planner.rows import evaluate_rows

PARTS = ("model", "cluster", "training")
WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
TIGHT = {
    "name": "unit", "memory_gib": 26, "peak_tflops": {"bf16": 300}, "memory_bandwidth_gb_per_s": 2000,
    "nvlink_gb_per_s": 100,
}  # fmt: skip
NODES = {"gpus_per_node": 4}
REQUESTS: dict[str, tuple[Document, Document, Document]] = {
    # What is searched by name (request, allowed, fixed); each degree that is not named is 1.
    "dense": (
        request_of(dense_model(8, **WIDE), gpu=TIGHT, num_nodes=3, cluster=NODES, global_batch_size=24),
        {"tp": [1, 2], "pp": [1, 2, 4], "zero": [0, 1], "recompute": ["none", "full"], "micro_batch_size": [1, 2]},
        {"cp": 1},
    ),
    "layers that do not divide": (
        request_of(dense_model(6, **WIDE), gpu=TIGHT, num_nodes=2, cluster=NODES, global_batch_size=16, seq_length=4096),
        {
            "pp": [1, 2, 4], "cp": [1, 2], "recompute": ["none", "selective", "full"], "micro_batch_size": [1, 2],
            "layers_per_stage": [[6], [3, 3], [4, 2], [2, 2, 1, 1], [1, 2, 2, 1]],
        },
        {"tp": 2, "zero": 1, "vpp": 1, "sequence_parallel": True},
    ),
    "shards": (
        request_of(dense_model(6, **WIDE), "torchtitan", gpu=TIGHT, num_nodes=4, cluster=NODES, global_batch_size=32),
        {"tp": [1, 2], "zero": [2, 3], "recompute": ["none", "full"], "micro_batch_size": [1, 2, 4]},
        {"pp": 1, "cp": 1, "vpp": 1},
    ),
    "experts": (
        request_of(
            with_experts(dense_model(4, **WIDE), expert_intermediate_size=3584),
            gpu=TIGHT, num_nodes=2, cluster=NODES, global_batch_size=16,
        ),
        {"tp": [1, 2], "pp": [1, 2], "ep": [1, 2, 4], "zero": [0, 1], "recompute": ["none", "full"]},
        {"cp": 1, "etp": 1, "micro_batch_size": 1, "moe_dispatcher": "alltoall"},
    ),
    "deepspeed": (
        request_of(dense_model(6, **WIDE), "deepspeed", gpu=TIGHT, num_nodes=2, cluster=NODES, global_batch_size=32),
        {"zero": [0, 1, 2, 3], "recompute": ["none", "full"], "micro_batch_size": [1, 2, 4, 8]},
        {"tp": 1, "pp": 1, "cp": 1, "sequence_parallel": False, "overlap": {"grad_reduce": True}},
    ),
}  # fmt: skip


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


MODULE_SETS = [chosen for count in (1, 2, 3) for chosen in combinations(("core_attn", "mlp", "layernorm"), count)]
"""What a dense model can be told to recompute (--recompute-modules), by every choice."""


def strategies(request: Document, allowed: Document, fixed: Document) -> Iterator[Document]:
    """Every combination on whole nodes, with every number of virtual stages, shard size, second copy, overlap and count of recomputed
    layers.
    """
    gpus = request["cluster"]["gpus_per_node"]
    worlds = [gpus * nodes for nodes in range(1, request["cluster"]["num_nodes"] + 1)]
    layers, batch = request["model"]["num_layers"], request["training"]["global_batch_size"]
    frees = {name: values for name, values in allowed.items() if name != "recompute"}
    for values in product(worlds, *frees.values()):
        world, chosen = values[0], {"ep": 1, **fixed, **dict(zip(frees, values[1:], strict=True))}
        group = chosen["tp"] * chosen["pp"] * chosen["cp"]
        dp = world // group
        if len(chosen.get("layers_per_stage", range(chosen["pp"]))) != chosen["pp"]:
            continue
        if world % group or batch % (dp * chosen.get("micro_batch_size", 1)):
            continue
        per_stage = layers // chosen["pp"]
        chunks = divisors(per_stage) if chosen["pp"] > 1 and "vpp" not in fixed else [1]
        shards = [size for size in divisors(dp * chosen["cp"]) if size > 1] or [1]
        free = "sequence_parallel" not in fixed and chosen["tp"] > 1
        both = [fixed.get("sequence_parallel", False), *([True] if free else [])]
        overlaps = [(tp, experts) for tp in {False, chosen["tp"] > 1} for experts in {False, chosen["ep"] > 1}]
        each = product(chunks, shards if chosen["zero"] else [None], allowed["recompute"], both, overlaps)
        for vpp, shard, recompute, sequence_parallel, (tp, experts) in each:
            row = {**chosen, "dp": dp, "vpp": vpp, "zero_shard_size": shard, "recompute": recompute}
            row["sequence_parallel"] = sequence_parallel
            row["overlap"] = {**chosen.get("overlap", {}), "tp_comm": tp, "moe_all_to_all": experts}
            yield row
            # DeepSpeed's hpZ: a second copy of the parameters in any smaller group.
            if request["training"]["framework"] == "deepspeed" and chosen["zero"] == 3:
                yield from ({**row, "zero_param_shard_size": size} for size in divisors(shard)[1:-1])
            if recompute == "selective":  # core_attn alone is the default, and stands above
                yield from ({**row, "recompute_modules": list(modules)} for modules in MODULE_SETS[1:])
            if recompute == "full":
                most = max(chosen.get("layers_per_stage", [-(-layers // (chosen["pp"] * vpp))]))
                yield from ({**row, "recompute_method": "block", "recompute_num_layers": n} for n in range(1, most))


def points(request: Document, rows: list[Document]) -> list[tuple[float, float, int, float]]:
    """Time, memory, GPUs and GPU-seconds per token of what fits."""
    tokens = request["training"]["seq_length"] * request["training"]["global_batch_size"]
    shared = {part: request[part] for part in PARTS}
    answers = evaluate_rows([{**shared, "strategy": row} for row in rows])
    return [
        (each["step_time_s"], each["memory"]["peak_device_bytes"], each["num_gpus_used"],
         each["step_time_s"] * each["num_gpus_used"] / tokens)
        for each in answers
        if each["verdict"] == "fits"
    ]  # fmt: skip


def better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """At least as good everywhere, and better somewhere by more than the rounding of times."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b * (1 + 1e-9) for a, b in pairs) and any(a < b * (1 - 2e-6) for a, b in pairs)


@pytest.fixture(scope="module", params=REQUESTS)
def answered(request: pytest.FixtureRequest) -> tuple[Document, list[tuple[float, float, int, float]]]:
    asked, allowed, fixed = REQUESTS[request.param]
    rows = list(strategies(asked, allowed, fixed))
    response = plan({**asked, "constraints": {"allowed": allowed, "fixed": fixed}, "include": ["pareto"], "top_k": 5})
    return response, points(asked, rows)


def test_the_front_is_what_no_row_beats(answered: Any) -> None:
    response, every = answered
    front = [
        (each["step_time_s"], each["peak_device_bytes"], each["num_gpus"], each["cost_per_token"])
        for each in response["pareto"]
    ]
    assert {each["method"] for each in response["pareto"]} == {"exhaustive"}
    assert len(every) > 25
    assert len(front) > 5
    for point in front:
        assert not any(better(other, point) for other in every)
        assert any(point == pytest.approx(other, rel=1e-9) for other in every)
    for point in every:  # each is beaten by the front, or on it
        assert any(
            better(other, point) or all(a <= b * (1 + 2e-6) for a, b in zip(other, point, strict=True))
            for other in front
        )


def test_a_front_with_open_splits_begins_with_the_first_plan() -> None:
    """Seven layers and a large head: the best split is none that would be listed, and without it the front is slower."""
    request = request_of(dense_model(7, **WIDE) | {"vocab_size": 250_000}, seq_length=4096)
    fixed = {"pp": 2, "tp": 2, "cp": 1, "zero": 1, "vpp": 1}
    asked = {**request, "constraints": {"fixed": fixed, "allowed": {"recompute": ["none", "full"]}}}
    listed, opened = (plan({**asked, "include": include}) for include in (["pareto"], ["open_splits", "pareto"]))
    first, fastest = opened["plans"][0], opened["pareto"][0]
    assert fastest["strategy"]["layers_per_stage"] == first["strategy"]["layers_per_stage"]
    assert fastest["step_time_s"] == pytest.approx(first["evaluation"]["step_time_s"], rel=1e-9)
    assert fastest["step_time_s"] < listed["pareto"][0]["step_time_s"]


def test_the_front_begins_with_a_plan_as_fast_as_the_first(answered: Any) -> None:
    response, _ = answered
    assert response["pareto"][0]["step_time_s"] == pytest.approx(
        response["plans"][0]["evaluation"]["step_time_s"], rel=1e-6
    )
