"""Every strategy of a small request as a plain evaluate row, priced by `meshwright.evaluate`, to judge what `meshwright.plan` claims.

The enumeration follows the public contract and the frameworks' documentation, not the planner: it lists every value of every
axis and lets `evaluate` refuse what no framework could run. Only the two public functions are used, so nothing that the search
assumes about dominance, bounds or symmetric splits can leak in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from meshwright import evaluate

Document = dict[str, Any]

SAME = 2e-6
"""Times are rounded to 1e-6 relative before they are ranked; two that differ by less than twice that may rank either way."""


def ways_to_share(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every list of `parts` whole numbers, zero allowed, that sums to `total`."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in ways_to_share(total - first, parts - 1):
            yield (first, *rest)


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@dataclass(frozen=True)
class Row:
    """One strategy and what `evaluate` says of it."""

    strategy: Document
    verdict: str
    step_s: float | None
    codes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def has_own_counts(self) -> bool:
        """Whether stages recompute counts of their own, which no framework's option can say: Megatron has one number for all."""
        return "recompute_per_stage" in self.strategy


def priced(request: Document, strategies: list[Document]) -> list[Row]:
    """The rows of these strategies of a request's job, in order."""
    job = {name: request[name] for name in ("model", "cluster", "training")}
    rows = ({**job, "id": index, "strategy": strategy} for index, strategy in enumerate(strategies))
    return [
        Row(strategy, found["verdict"], found["step_time_s"], tuple(reason["code"] for reason in found["reasons"]))
        for strategy, found in zip(strategies, evaluate(rows), strict=True)
    ]


# --- The axes ---------------------------------------------------------------------------------------------------------------


def recomputes(
    layers: tuple[int, ...], pp: int, *, modes: list[str], per_stage: bool, uniform: bool
) -> Iterator[Document]:
    """Every way to recompute on a split: none, selective, all layers, a number of each chunk's, or of each stage's.

    A block of k layers covers the first k of every model chunk (Megatron Core's recompute.py), so counts matter up to the
    longest chunk, and that one means all layers.
    """
    longest = max(layers)
    for mode in modes:
        yield {"recompute": mode}
        if mode != "full":
            continue
        for count in range(1, longest):
            yield {"recompute": "full", "recompute_method": "block", "recompute_num_layers": count}
        for unit in range(2, longest + 1) if uniform else ():
            yield {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": unit}
        totals = [sum(layers[stage::pp]) for stage in range(pp)]
        for counts in product(*(range(total + 1) for total in totals)) if per_stage else ():
            if any(counts):  # else it is no recomputation, which has a name of its own
                yield {"recompute": "full", "recompute_per_stage": list(counts)}


def shards(zero: int, replicas: int, sizes: list[int] | None) -> Iterator[Document]:
    """The ZeRO stage with every number of ranks that may share one copy of the state."""
    for size in divisors(replicas) if sizes is None else sizes:
        if zero and replicas > 1:
            if size > 1:
                yield {"zero": zero, "zero_shard_size": size}
        elif size == 1 or sizes is not None:
            yield {"zero": zero}
            return


def degrees(request: Document) -> Iterator[Document]:
    """Every combination of the listed degrees that uses the whole cluster, or of fixed ones whatever they use."""
    lists = values_of(request)
    cluster = request["cluster"]
    kinds = cluster.get("pools", [cluster])
    gpus = sum(kind["num_nodes"] * kind["gpus_per_node"] for kind in kinds)
    batch = request["training"]["global_batch_size"]
    for tp, pp, cp, ep, etp, micro, vpp in product(
        *(
            lists.get(name, [None if name == "etp" else 1])
            for name in ("tp", "pp", "cp", "ep", "etp", "micro_batch_size", "vpp")
        )
    ):
        for dp in lists.get("dp", [gpus // (tp * pp * cp)]):
            if tp * pp * cp * dp > gpus or ("dp" not in lists and tp * pp * cp * dp != gpus) or batch % (dp * micro):
                continue
            row = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep, "micro_batch_size": micro, "vpp": vpp}
            yield row if etp is None else {**row, "etp": etp}


def values_of(request: Document) -> dict[str, list[Any]]:
    """The values of each strategy field that the request fixes or lists; a dot reaches inside a group."""
    constraints = request["constraints"]
    found: dict[str, list[Any]] = {}
    for name, value in constraints.get("fixed", {}).items():
        found |= (
            {f"{name}.{part}": [one] for part, one in value.items()} if isinstance(value, dict) else {name: [value]}
        )
    for name, values in constraints.get("allowed", {}).items():
        found |= (
            {f"{name}.{part}": several for part, several in values.items()}
            if isinstance(values, dict)
            else {name: values}
        )
    return found


PLAIN = ("sequence_parallel", "schedule", "cp_comm", "moe_dispatcher", "grad_sync", "zero_param_shard_size")
"""Fields whose listed values multiply with everything else, as do the parts of `overlap` and `offload`."""


def knobs(lists: dict[str, list[Any]]) -> Iterator[Document]:
    """Every combination of the listed knobs, each a part of a strategy."""
    names = [name for name in lists if name in PLAIN or "." in name]
    for values in product(*(lists[name] for name in names)):
        row: Document = {}
        for name, value in zip(names, values, strict=True):
            group, _, part = name.rpartition(".")
            if group:
                row.setdefault(group, {})[part] = value
            else:
                row[name] = value
        yield row


def splits(request: Document, *, pp: int, vpp: int, stage_gpus: int) -> Iterator[Document]:
    """Every split of the layers over the virtual stages, and on pools every place of the stages.

    A request that does not ask for open splits leaves the split out: the framework's own rule applies.
    """
    layers = request["model"]["num_layers"]
    pools = {pool["name"]: pool["num_nodes"] * pool["gpus_per_node"] for pool in request["cluster"].get("pools", [])}
    open_ = "open_splits" in request.get("include", ()) or bool(pools)
    shares = list(ways_to_share(layers, pp * vpp)) if open_ else [None]
    # A pool has room for so many stages of tp * cp * dp ranks; whether they may lie in this order is for evaluate to say.
    placed = [p for p in product(pools, repeat=pp) if all(p.count(name) * stage_gpus <= pools[name] for name in pools)]
    for share, places in product(shares, placed if pools else [None]):
        row: Document = {} if share is None else {"layers_per_stage": list(share)}
        yield row if places is None else {**row, "pool_per_stage": list(places)}


def strategies_of(request: Document, *, per_stage: bool = False, uniform: bool = False) -> Iterator[Document]:
    """Every strategy of a request, legal or not."""
    lists = values_of(request)
    for degree, knob in product(degrees(request), list(knobs(lists))):
        replicas = degree["dp"] * degree["cp"]
        states = [each for zero in lists["zero"] for each in shards(zero, replicas, lists.get("zero_shard_size"))]
        modules = lists.get("recompute_modules", [None])
        for split in splits(request, pp=degree["pp"], vpp=degree["vpp"], stage_gpus=degree["tp"] * replicas):
            layers = tuple(
                split.get("layers_per_stage", [-(-request["model"]["num_layers"] // (degree["pp"] * degree["vpp"]))])
            )
            ways = recomputes(layers, degree["pp"], modes=lists["recompute"], per_stage=per_stage, uniform=uniform)
            for way in ways:
                for chosen in modules if way["recompute"] == "selective" else [None]:
                    named = {} if chosen is None else {"recompute_modules": chosen}
                    for state in states:
                        yield {**degree, **knob, **split, **way, **named, **state}


def num_strategies(request: Document, **asked: bool) -> int:
    """How many there are: instances are drawn small enough to be priced."""
    return sum(1 for _ in strategies_of(request, **asked))


# --- The judgement ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One claim of a plan response that the enumeration contradicts."""

    kind: str
    text: str
    strategy: Document | None = None
    better_s: float | None = None
    answered_s: float | None = None


def family_of(strategy: Document) -> tuple[object, ...]:
    """What an open split leaves as it is: a search answers with the best split, and the best count, of each family."""
    zero, replicas = strategy["zero"], strategy["dp"] * strategy.get("cp", 1)
    size = strategy.get("zero_shard_size") or replicas
    names = ("tp", "pp", "cp", "dp", "ep", "vpp", "micro_batch_size", "recompute")
    return (*(strategy.get(name, 1) for name in names), zero, size if zero and replicas > 1 else None)


def judged(request: Document, response: Document, rows: list[Row]) -> list[Finding]:
    """Every claim of a response that the rows of its request contradict; none where all agree."""
    fitting = sorted((row for row in rows if row.fits), key=lambda row: row.step_s or 0.0)
    shared = [row for row in fitting if not row.has_own_counts]
    return [
        *_beaten(response, shared),
        *_inexpressible(response, fitting, shared),
        *_bounds(response, shared),
        *_listed(request, response),
        *_families(request, response, shared),
    ]


def times_of(response: Document) -> list[float]:
    return [entry["evaluation"]["step_time_s"] for entry in response["plans"]]


def _beaten(response: Document, shared: list[Row]) -> Iterator[Finding]:
    """Plan 1 is the best of all rows that fit, unless the answer says that it may not be."""
    times, proof = times_of(response), response["search"]["proof"]
    if not shared:
        return
    best = shared[0]
    if not times:
        yield Finding("no-plan", "a row fits, but there is no plan", best.strategy, best.step_s)
    elif best.step_s < times[0] * (1 - SAME):
        kind = "beaten-though-proven" if proof["optimal"] else "beaten"
        yield Finding(kind, f"plan 1 is {times[0] / best.step_s - 1:.2%} slower", best.strategy, best.step_s, times[0])


def _inexpressible(response: Document, fitting: list[Row], shared: list[Row]) -> Iterator[Finding]:
    """Where counts of each stage's own win, the answer names the best of them, which no framework can say."""
    if len(fitting) == len(shared):
        return
    best, times, named = fitting[0], times_of(response), response["inexpressible_best"]
    first = min([*times[:1], *(row.step_s for row in shared[:1])], default=float("inf"))
    if best.step_s >= first * (1 - SAME):
        return
    named_s = named["step_time_s"] if named else None
    if named_s is None or best.step_s < named_s * (1 - SAME):
        text = "nothing inexpressible is named" if named is None else "what is named is slower"
        yield Finding("inexpressible-best", text, best.strategy, best.step_s, named_s)


def _bounds(response: Document, shared: list[Row]) -> Iterator[Finding]:
    """No row beats the lower bound; the gap is that of plan 1 to the bound; a proof has no gap."""
    proof, times = response["search"]["proof"], times_of(response)
    bound_s = proof["lower_bound_s"]
    if shared and bound_s is not None and shared[0].step_s < bound_s * (1 - SAME):
        yield Finding("bound", "a row is faster than the bound", shared[0].strategy, shared[0].step_s, bound_s)
    if times and bound_s is not None and bound_s > times[0] * (1 + SAME):
        yield Finding("bound", "the bound is slower than plan 1", None, times[0], bound_s)
    if times and bound_s is not None and abs(proof["gap"] - (1 - bound_s / times[0])) > 1e-5:
        yield Finding("gap", f"the gap is {proof['gap']}, not {1 - bound_s / times[0]}", None, bound_s, times[0])
    if times and proof["optimal"] != (proof["gap"] is not None and proof["gap"] <= SAME):
        yield Finding("gap", f"optimal is {proof['optimal']} with the gap {proof['gap']}")


def _listed(request: Document, response: Document) -> Iterator[Finding]:
    """Every ranked plan fits, takes the time that evaluate says, and stands in its place."""
    times = times_of(response)
    again = priced(request, [entry["strategy"] for entry in response["plans"]])
    for row, step_s in zip(again, times, strict=True):
        if not row.fits:
            yield Finding("plan-does-not-fit", f"evaluate says {row.verdict} {row.codes}", row.strategy, None, step_s)
        elif abs(row.step_s - step_s) > 1e-9 * step_s:
            yield Finding("time", "evaluate takes another time", row.strategy, row.step_s, step_s)
    if any(later < earlier * (1 - SAME) for earlier, later in pairwise(times)):
        yield Finding("order", f"the times do not rise: {times}")
    if len({json.dumps(entry["strategy"], sort_keys=True) for entry in response["plans"]}) < len(times):
        yield Finding("twice", "a strategy is listed twice")
    search = response["search"]
    if len(times) > search["feasible"]:
        yield Finding("counts", f"{len(times)} plans, but only {search['feasible']} feasible")
    counted = search["bounded"] + sum(response["rejected"].values()) + search["feasible"] + search["unsearched"]
    if search["total"] != counted:
        yield Finding("counts", f"the counts add up to {counted}, not to the total: {search}")


def _families(request: Document, response: Document, shared: list[Row]) -> Iterator[Finding]:
    """The best split of each family is listed where it beats the last plan, or where there was room for more plans."""
    times = times_of(response)
    full = len(times) == request["top_k"]
    best: dict[tuple[object, ...], Row] = {}
    for row in shared:
        best.setdefault(family_of(row.strategy), row)
    listed: dict[tuple[object, ...], float] = {}
    for entry, step_s in zip(response["plans"], times, strict=True):
        listed.setdefault(family_of(entry["strategy"]), step_s)
    for row in best.values():
        if full and row.step_s >= times[-1] * (1 - SAME):
            continue
        step_s = listed.get(family_of(row.strategy))
        if step_s is None or row.step_s < step_s * (1 - SAME):
            kind = "family-missing" if step_s is None else "family-beaten"
            yield Finding(kind, f"{family_of(row.strategy)}", row.strategy, row.step_s, step_s)


# --- Listed jobs: nothing is left to the search but the lists ---------------------------------------------------------------


def distinct_times(times: Iterable[float]) -> list[float]:
    """The times in rising order, without those that rounding cannot tell from the one before."""
    found: list[float] = []
    for each in sorted(times):
        if not found or each > found[-1] * (1 + SAME):
            found.append(each)
    return found


def judged_listed(request: Document, response: Document, rows: list[Row]) -> list[Finding]:
    """The findings of `judged`, and those on the whole ranking and its counts."""
    return [*judged(request, response, rows), *_ranking(request, response, rows), *_counts(request, response, rows)]


def _ranking(request: Document, response: Document, rows: list[Row]) -> Iterator[Finding]:
    """The ranked times are the first of all times, none missing and none invented."""
    expected = distinct_times(row.step_s for row in rows if row.step_s is not None and row.fits)
    found = distinct_times(times_of(response))
    if len(response["plans"]) < request["top_k"] and len(found) < len(expected):
        yield Finding(
            "top-k-missing", f"{len(found)} times are ranked, but {len(expected)} strategies of different times fit"
        )
    for position, (truth, answered) in enumerate(zip(expected, found, strict=False)):
        if abs(truth - answered) > 2 * SAME * truth:
            kind = "top-k" if truth < answered else "not-enumerated"
            yield Finding(kind, f"time {position + 1} of the ranking is not that of all rows", None, truth, answered)
            return


def _counts(request: Document, response: Document, rows: list[Row]) -> Iterator[Finding]:
    """With room for every plan no bound can leave one out, so what was priced is feasible, and all of it is ranked."""
    search, ranked = response["search"], len(response["plans"])
    legal, fitting = (sum(row.verdict != "invalid" for row in rows), sum(row.fits for row in rows))
    if search["evaluated"] > legal or search["feasible"] > fitting:
        yield Finding("counts", f"{legal} rows are legal and {fitting} fit, but the search says {search}")
    if ranked < request["top_k"] and not ranked == search["feasible"] <= search["evaluated"]:
        yield Finding("counts", f"{ranked} plans are ranked and there was room for more, but the search says {search}")
