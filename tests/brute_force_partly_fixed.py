"""Small requests of which some fields are fixed, some listed and most left open, with every strategy that they allow.

The axes are those of the contract: every divisor, every count, every stage and schedule, whether or not a search tries it. `evaluate`
says which of them are legal and what they take. A search need not find a row of which it says by name that it was left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, product
from random import Random
from typing import Any

from brute_force import SAME, Document, Finding, divisors, values_of
from brute_force_jobs import KEEPS_ON_THE_GPU, made_up_gpu
from meshwright import evaluate

FRAMEWORKS = (
    "megatron", "megatron", "megatron", "torchtitan", "torchtitan", "fsdp", "deepspeed", "nanotron", "megatron-deepspeed",
)  # fmt: skip
VERSIONS = {
    "megatron": ("0.10", "0.12", "0.14", "0.16", "0.19"), "torchtitan": ("0.1", "0.2", "0.3"), "megatron-deepspeed": ("2022", "2023", "2024"),
}  # fmt: skip
V_SHAPED = ("zb-v", "dualpipe-v")
HEADROOM = 0.03
"""The contract's default."""
STRATEGY_FIELDS = frozenset({"grad_sync", "recompute", "sequence_parallel", "schedule", "moe_dispatcher", "cp_comm"})
"""What evaluate fills in of a strategy and a search may settle, beside the parts of `overlap`."""


@dataclass(frozen=True)
class Priced:
    """A row with everything that evaluate filled in of its strategy, by dotted names."""

    strategy: Document
    values: dict[str, Any]
    step_s: float
    gpus: int


def partly_fixed_request(seed: int, *, most_rows: int) -> tuple[Document, list[Document]]:
    """A request, and every strategy that its lists allow, of which some fit and some do not."""
    for attempt in range(1000):
        draw = Random(1000 * seed + attempt)
        request = _drawn(draw)
        strategies = _constrained(draw, request, most_rows)
        if strategies is None:
            continue
        needs = sorted(
            each["memory"]["peak_device_range_bytes"][1] / 2**30
            for each in _evaluated(request, strategies)
            if each["memory"]
        )
        if len(needs) < 3:
            continue
        need = needs[min(int(draw.choice([0.1, 0.3, 0.6, 1.0]) * len(needs)), len(needs) - 1)]
        request["cluster"]["gpu"]["memory_gib"] = round(need / (1 - HEADROOM) + 0.7, 2)
        return request, strategies
    raise AssertionError(f"no instance of seed {seed} has at most {most_rows} rows")


def _drawn(draw: Random) -> Document:
    framework = draw.choice(FRAMEWORKS)
    nodes, gpus = draw.choice([(1, 2), (1, 4), (1, 4), (2, 2), (2, 4), (1, 8), (3, 2), (1, 1)])
    training: Document = {
        "framework": framework, "precision": draw.choice(["bf16", "bf16", "bf16", "fp16"]), "cross_entropy": "unfused",
        "seq_length": draw.choice([256, 512, 1024, 1542, 2048, 4096]), "global_batch_size": draw.choice([2, 4, 6, 8, 12, 16]),
    }  # fmt: skip
    if framework in VERSIONS and draw.random() < 0.6:
        training["framework_version"] = draw.choice(VERSIONS[framework])
    if framework == "torchtitan":
        training |= {"attention_kernel": "sdpa"} if draw.random() < 0.5 else {}
        training |= {"compile": draw.choice([True, False])} if draw.random() < 0.5 else {}
    if framework == "megatron" and draw.random() < 0.3:
        training["transformer_impl"] = draw.choice(["local", "transformer-engine"])
    gpu = made_up_gpu("X", 1000) | {"nvlink_gb_per_s": draw.choice([25, 300])}
    gpu["peak_tflops"] = {"bf16": draw.choice([100, 312, 1000]), "fp16": 312}
    return {
        "model": _model(draw),
        "cluster": {
            "gpu": gpu, "num_nodes": nodes, "gpus_per_node": gpus, "nics_per_node": 1, "nic_gbit_per_s": draw.choice([10, 100, 400]),
            "network": {"fabric": "infiniband"},
        },
        "training": training,
        "constraints": {"fixed": {"offload": KEEPS_ON_THE_GPU}, "allowed": {}, "allow_idle_gpus": draw.random() < 0.4},
        "top_k": draw.choice([1, 1, 3, 10, 50]),
        "objective": draw.choice(["step_time", "step_time", "step_time", "cost"]),
    }  # fmt: skip


def _model(draw: Random) -> Document:
    heads = draw.choice([4, 4, 6, 8])
    hidden = 128 * heads * draw.choice([1, 2])
    model: Document = {
        "num_layers": draw.choice([2, 3, 4, 4, 5, 6]), "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([heads, heads // 2]), "intermediate_size": 4 * hidden,
        "vocab_size": draw.choice([4000, 32000, 128000]), "tie_word_embeddings": draw.random() < 0.15,
    }  # fmt: skip
    if draw.random() < 0.4:
        model["moe"] = {"num_experts": draw.choice([2, 4, 8]), "top_k": 2, "expert_intermediate_size": hidden}
        if draw.random() < 0.4:
            model["moe"] |= {"num_shared_experts": 1, "shared_expert_intermediate_size": hidden}
        model["moe"] |= draw.choice([{}, {}, {"first_dense_layers": 1}, {"moe_layer_freq": 2}])
    return model


# --- Every strategy ---------------------------------------------------------------------------------------------------------


def _axes(request: Document) -> dict[str, list[Any]]:
    """What a user could set on each axis; a value that nothing can run is for evaluate to refuse."""
    model, cluster, training = (request[name] for name in ("model", "cluster", "training"))
    gpus, batch, moe = cluster["num_nodes"] * cluster["gpus_per_node"], training["global_batch_size"], model.get("moe")
    return {
        "tp": [each for each in divisors(model["num_attention_heads"]) if each <= gpus],
        "pp": list(range(1, min(model["num_layers"] + 2, gpus) + 1)),
        "cp": [each for each in divisors(training["seq_length"]) if each <= gpus],
        "dp": [each for each in divisors(batch) if each <= gpus],
        "micro_batch_size": divisors(batch),
        "ep": divisors(moe["num_experts"]) if moe else [1],
        "etp": [each for each in divisors(moe["expert_intermediate_size"]) if each <= gpus] if moe else [1],
        "vpp": list(range(1, model["num_layers"] + 3)),
        "sequence_parallel": [False, True],
        "zero": [0, 1, 2, 3],
        "zero_shard_size": [None, *divisors(gpus)],
        "schedule": ["1f1b", "interleaved", "gpipe", "zb-h1", *V_SHAPED],
        "recompute": ["none", "selective", "full"],
        "overlap.tp_comm": [False, True],
        "overlap.moe_all_to_all": [False, True] if moe else [False],
        "moe_dispatcher": ["allgather", "alltoall", "flex"] if moe else ["alltoall"],
    }


def _constrained(draw: Random, request: Document, most_rows: int) -> list[Document] | None:
    """Fixes and lists fields, the degrees first where there are too many rows; None where there still are, or next to none."""
    axes, order = (
        _axes(request),
        ["tp", "pp", "cp", "dp", "micro_batch_size", "ep", "etp", "vpp", "zero", "sequence_parallel"],
    )
    names = draw.sample(sorted(axes), draw.choice([0, 1, 2, 3])) + draw.sample(order, len(order)) + sorted(axes)
    wanted = draw.choice([0, 1, 2, 3])
    for number, name in enumerate(dict.fromkeys(names)):
        if number >= wanted:
            rows = _rows(request, axes, most_rows)
            if rows is not None:
                return rows if len(rows) >= 3 else None
        values = [each for each in axes[name] if each is not None]
        some = draw.sample(values, 1 if draw.random() < 0.6 else min(len(values), 3))
        axes[name] = some
        _state(request["constraints"], name, some, fixed=len(some) == 1 and draw.random() < 0.5)
    return None


def _state(constraints: Document, name: str, values: list[Any], *, fixed: bool) -> None:
    place, value = (constraints["fixed"], values[0]) if fixed else (constraints["allowed"], values)
    group, _, part = name.rpartition(".")
    (place.setdefault(group, {}) if group else place)[part] = value


def _rows(request: Document, axes: dict[str, list[Any]], most: int) -> list[Document] | None:
    """Every strategy of these axes, or None where there are more than so many."""
    found: list[Document] = []
    given = values_of(request)
    for degrees in _degrees(request, axes):
        for state, way, knobs in product(
            list(_states(axes, degrees, "zero_shard_size" in given)),
            _ways(request, axes, degrees),
            list(_knobs(axes, degrees, given)),
        ):
            found.append({**degrees, **state, **way, **knobs, "offload": KEEPS_ON_THE_GPU})
            if len(found) > most:
                return None
    return found


def _degrees(request: Document, axes: dict[str, list[Any]]) -> Iterator[Document]:
    cluster, batch = request["cluster"], request["training"]["global_batch_size"]
    per_node, gpus = cluster["gpus_per_node"], cluster["num_nodes"] * cluster["gpus_per_node"]
    idle, layers = request["constraints"]["allow_idle_gpus"], request["model"]["num_layers"]
    names = ("tp", "pp", "cp", "dp", "micro_batch_size", "ep", "etp", "vpp", "sequence_parallel", "schedule")
    for values in product(*(axes[name] for name in names)):
        row = dict(zip(names, values, strict=True))
        ranks, vpp, schedule = row["tp"] * row["cp"] * row["dp"], row["vpp"], row["schedule"]
        world = ranks * row["pp"]
        if world > gpus or world % per_node or (world < gpus and not idle):
            continue
        if (
            batch % (row["dp"] * row["micro_batch_size"])
            or ranks % (row["ep"] * row["etp"])
            or row["pp"] * vpp > layers + 2
        ):
            continue
        # Without a pipeline there is nothing to schedule, and without tensor parallelism no sequence to split.
        if (row["pp"] == 1 and (vpp > 1 or schedule != axes["schedule"][0])) or (
            row["tp"] == 1 and row["sequence_parallel"]
        ):
            continue
        if vpp != 2 if schedule in V_SHAPED else (vpp > 1) != (schedule == "interleaved") and row["pp"] > 1:
            continue
        if "moe" not in request["model"]:
            del row["etp"]
        yield row


def _states(axes: dict[str, list[Any]], degrees: Document, sizes_are_given: bool) -> Iterator[Document]:
    replicas = degrees["dp"] * degrees["cp"]
    for zero in axes["zero"]:
        for size in axes["zero_shard_size"]:
            if size is None and not sizes_are_given:
                yield {"zero": zero}
            elif size is not None and (sizes_are_given or (zero and size < replicas and replicas % size == 0)):
                yield {"zero": zero, "zero_shard_size": size}


def _ways(request: Document, axes: dict[str, list[Any]], degrees: Document) -> list[Document]:
    longest = -(-request["model"]["num_layers"] // (degrees["pp"] * degrees["vpp"])) + 1
    found: list[Document] = []
    for mode in axes["recompute"]:
        found.append({"recompute": mode})
        if mode == "full":
            found += [
                {"recompute": mode, "recompute_method": "block", "recompute_num_layers": n}
                for n in range(1, longest + 1)
            ]
        if mode == "selective" and request["training"]["framework"] == "megatron":
            moe = request["model"].get("moe", {})
            names = ["core_attn", "mlp", "layernorm", *(["moe", "moe_act"] if moe else [])]
            names += ["shared_experts"] if moe.get("num_shared_experts") else []
            sets = chain.from_iterable(combinations(names, size) for size in range(1, len(names) + 1))
            found += [{"recompute": mode, "recompute_modules": list(each)} for each in sets]
    return found


def _knobs(axes: dict[str, list[Any]], degrees: Document, given: dict[str, list[Any]]) -> Iterator[Document]:
    """Overlaps and dispatcher; where they have no effect only what is given is said."""
    experts = degrees["ep"] * degrees.get("etp", 1) > 1
    matters = {
        "overlap.tp_comm": degrees["tp"] > 1,
        "moe_dispatcher": experts,
        "overlap.moe_all_to_all": degrees["ep"] > 1,
    }
    names = [name for name, has_effect in matters.items() if has_effect or name in given]
    for values in product(*(axes[name] for name in names)):
        row: Document = {}
        for name, value in zip(names, values, strict=True):
            group, _, part = name.rpartition(".")
            (row.setdefault(group, {}) if group else row)[part] = value
        yield row


# --- The judgement ----------------------------------------------------------------------------------------------------------


def _evaluated(request: Document, strategies: list[Document]) -> list[Document]:
    job = {name: request[name] for name in ("model", "cluster", "training")}
    return list(evaluate({**job, "strategy": each} for each in strategies))


def fitting(request: Document, strategies: list[Document]) -> list[Priced]:
    """The strategies that fit, each with its time and with what evaluate assumed of it."""
    found = []
    for strategy, answer in zip(strategies, _evaluated(request, strategies), strict=True):
        if answer["verdict"] == "fits":
            known = {n: v for n, v in answer["assumed"].items() if n in STRATEGY_FIELDS or n.startswith("overlap.")}
            found.append(Priced(strategy, known | _flat(strategy), answer["step_time_s"], answer["num_gpus_used"]))
    return found


def _flat(strategy: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in strategy.items():
        found |= {f"{name}.{part}": each for part, each in value.items()} if isinstance(value, dict) else {name: value}
    return found


def judged_partly_fixed(request: Document, response: Document, rows: list[Priced]) -> Iterator[Finding]:
    """Every claim of a response that the rows contradict: plan 1, every later rank, the order, the bound, the counts, the times."""
    per_gpu = request["objective"] == "cost"
    plans = [entry["evaluation"] for entry in response["plans"]]
    ranked = [each["step_time_s"] * (each["num_gpus_used"] if per_gpu else 1) for each in plans]
    truth = sorted(((row.step_s * (row.gpus if per_gpu else 1), row) for row in rows), key=lambda each: each[0])
    if any(later < earlier * (1 - SAME) for earlier, later in pairwise(ranked)):
        yield Finding("order", f"the values do not rise: {ranked}")
    full = len(ranked) == request["top_k"]
    for value, row in truth:
        if full and value >= ranked[-1] * (1 - SAME):
            break
        best = not ranked or value < ranked[0] * (1 - SAME)
        if not any(abs(each - value) <= 2 * SAME * value for each in ranked) and not _left_out(
            response, row, never_gains=best
        ):
            yield Finding(
                "beaten" if best else "rank-missing", f"{value} is not among {ranked[:3]}", row.strategy, row.step_s
            )
            break
    bound_s, search = response["search"]["proof"]["lower_bound_s"], response["search"]
    searched = [row for _, row in truth if not _left_out(response, row, never_gains=True)]
    if not per_gpu and searched and bound_s is not None and searched[0].step_s < bound_s * (1 - SAME):
        yield Finding("bound", "a row is faster than the bound", searched[0].strategy, searched[0].step_s, bound_s)
    if (
        search["total"]
        != search["bounded"] + sum(response["rejected"].values()) + search["feasible"] + search["unsearched"]
    ):
        yield Finding("counts", f"the counts do not add up to the total: {search} {response['rejected']}")
    for entry, again in zip(
        response["plans"], _evaluated(request, [entry["strategy"] for entry in response["plans"]]), strict=True
    ):
        said_s = entry["evaluation"]["step_time_s"]
        if again["verdict"] != "fits" or abs(again["step_time_s"] - said_s) > 1e-9 * said_s:
            yield Finding(
                "plan",
                f"evaluate says {again['verdict']}, {again['reasons']}",
                entry["strategy"],
                again["step_time_s"],
                said_s,
            )


def _left_out(response: Document, row: Priced, *, never_gains: bool) -> bool:
    """Whether a value of the row is one that the answer names as not searched.

    Where a reason is that a value never gains, and it does not offer to list it, the row must not be the best: `never_gains` is
    whether it would be.
    """
    space, reasons = response["search"]["space"], response["search"]["not_searched"]
    for name, value in row.values.items():
        if name == "recompute_modules" and name not in reasons and value not in space[name]:
            return (
                not never_gains
            )  # another set saves no less and repeats no longer: it need not be ranked, but must not win
        if name not in reasons or (never_gains and "constraints.allowed" not in reasons[name]):
            continue
        if name in space:
            left_out = value not in space[name]
        else:  # an overlap that a search always takes where it can, or never does
            left_out = name.startswith("overlap.") and value is reasons[name].startswith("It stays off")
        if left_out:
            return True
    return False
