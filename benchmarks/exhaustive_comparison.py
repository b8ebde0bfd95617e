"""Our exact search beside the fastest existing exhaustive tool on its own job: GPT-3 175B, 4,096 A100, batch 4,096, fp16.

The tool (Calculon, calculon-ai/calculon at caa4b11) prices 7,126,368 candidates one by one. Its candidates are counted here from
its axes, and each is mapped to the strategy of ours that it means, which is checked to be in our space. Three searches of ours are
timed in processes of their own: what a user gets, the tool's axes with bounds, and the tool's axes with every strategy priced.
Run: python -m benchmarks.exhaustive_comparison.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks.record import ROOT, record
from benchmarks.search_proofs import request
from cost_models.evaluate import Verdict, evaluate
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Strategies
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas.plan_request import PlanRequest
from planner.strategies.axes import build_space
from planner.strategies.degrees import DEGREE_AXES
from planner.strategies.space import Space

GPUS, BATCH, LAYERS, HEADS, NETWORKS = 4096, 4096, 96, 96, 2
THEIR_CANDIDATES = 7_126_368
"""The number that the tool itself prints with `-d`. The count made here must equal it."""
THEIR_PER_S = 268.0
"""Candidates per second on one core: 2,993 random ones of this space, the tool as shipped; 2,490 with its logging removed."""
DEGREES = [1, 2, 4, 8, 16, 32]
"""Powers of two that divide 96 heads and 96 layers, which are the tool's tensor and pipeline degrees on 4,096 GPUs."""
SAME_AXES: dict[str, Any] = {
    "fixed": {"cp": 1},
    "num_nodes": {"min": GPUS // 8},
    "allowed": {
        "tp": DEGREES,
        "pp": DEGREES,
        "zero": [0, 1],
        "recompute": ["none", "selective", "full"],
        "recompute_method": ["uniform"],
        "recompute_num_layers": [1],
        "overlap": {"grad_reduce": [True, False], "param_gather": [True, False], "tp_comm": [True, False]},
        "offload": {"optimizer_fraction": [0, 1], "parameters": [False, True], "activation_layers": [0, LAYERS]},
    },
}
"""The tool's axes in our names. Its three ways of tensor-parallel communication are two here, and its two kinds of overlapping it
are one. Which network a group uses follows from the placement."""


OFFLOADS = ("offload_parameters", "offload_activation_layers", "offload_optimizer_fraction")


def job_request(constraints: dict[str, Any]) -> dict[str, Any]:
    """The tool's job as a plan request."""
    asked = request("gpt3-175b", "dgx-a100-80gb", GPUS // 8, 2048, BATCH, precision="fp16")
    return asked | {"constraints": constraints, "include": []}


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def meshes() -> list[tuple[int, int, int]]:
    """(tp, pp, number of interleavings times micro-batch sizes) of the tool's meshes."""
    found = []
    for tp, pp in product(DEGREES, DEGREES):
        interleavings = 1 if pp == 1 else len(divisors(LAYERS // pp))
        found.append((tp, pp, interleavings * len(divisors(BATCH * tp * pp // GPUS))))
    return [mesh for mesh in found if mesh[2]]


def options(*, tp: bool, pp: bool, dp: bool) -> list[tuple[Any, ...]]:
    """What the tool varies on one mesh, given which of tensor, pipeline and data groups have more than one rank."""
    either = (True, False)
    found: list[tuple[Any, ...]] = []
    for recompute, communication in product(("full", "selective", "none"), ("all-reduce", "p2p", "scatter")):
        again = either if communication == "scatter" and recompute != "full" else (False,)
        activations = (False,) if recompute == "full" else either
        networks = range(NETWORKS ** (tp + pp + dp))
        found += product(
            (recompute,), (communication,), again, activations, either if dp else (False,), either if dp else (False,),
            ("none", "ring", "pipe") if tp else ("none",), either, either, networks,
        )  # fmt: skip
    return found


def as_ours(option: tuple[Any, ...], *, tp: bool) -> tuple[Any, ...] | None:
    """The fields of a strategy that a candidate of the tool means; None if no framework that we price can run it."""
    recompute, communication, again, activations, shards, reduces_beside, tp_overlap, weights, optimizer, _ = option
    scatters = communication != "all-reduce" and tp
    gathers_again = again or recompute == "full"
    if tp and (communication == "p2p" or (scatters and not gathers_again)):
        return None  # Megatron's sequence parallelism keeps no gathered input, and has no point-to-point variant
    return recompute, scatters, activations, shards, reduces_beside, tp_overlap != "none", weights, optimizer


def coverage() -> dict[str, int]:
    """How many candidates the tool has, how many of them mean a strategy of ours, and how many strategies those are."""
    counts = dict.fromkeys(("candidates", "meant", "strategies"), 0)
    for tp, pp, times in meshes():
        several = tp > 1, pp > 1, tp * pp < GPUS
        found = options(tp=several[0], pp=several[1], dp=several[2])
        ours = [each for each in (as_ours(option, tp=several[0]) for option in found) if each is not None]
        counts["candidates"] += len(found) * times
        counts["meant"] += len(ours) * times
        counts["strategies"] += len(set(ours)) * times
    return counts


def planned(constraints: dict[str, Any]) -> dict[str, Any]:
    """One exact search: how many strategies it stands for, what it takes, and the best."""
    started = time.perf_counter()
    answer = plan(job_request(constraints))
    seconds = time.perf_counter() - started
    best, report = answer["plans"][0], answer["search"]
    space, _ = _space(constraints)
    return {
        "seconds": seconds,
        "peak_gib": _peak_gib(),
        "strategies": int(space.mesh_sizes.sum()),
        "evaluated": report["evaluated"],
        "proof": report["proof"],
        "step_time_s": best["evaluation"]["step_time_s"],
        "strategy": {name: best["strategy"][name] for name in ("tp", "pp", "dp", "cp", "vpp", "micro_batch_size")},
        "rejected": answer["rejected"],
    }


def every_one_priced() -> dict[str, Any]:
    """The tool's axes without any bound: time and memory of every legal strategy."""
    started = time.perf_counter()
    space, asked = _space(SAME_AXES)
    strategies = legal = fitting = 0
    best_s = np.inf
    for every in _rows(space):
        strategies += len(every)
        rows = every.take(violations(space.job, every).legal)
        legal += len(rows)
        if not len(rows):
            continue
        priced = evaluate(space.job, rows, headroom_fraction=asked.constraints.memory_headroom_fraction)
        fits = priced.verdict == Verdict.FITS
        fitting += int(fits.sum())
        best_s = min(best_s, float(np.min(priced.step_time_s[fits], initial=np.inf)))
    return {
        "seconds": time.perf_counter() - started,
        "peak_gib": _peak_gib(),
        "strategies": strategies,
        "legal": legal,
        "fitting": fitting,
        "step_time_s": best_s,
    }


def _rows(space: Space) -> Iterator[Strategies]:
    """Every strategy that a space stands for, in parts small enough to stay in the processor's cache."""
    base = space.base()
    for start in range(0, len(base), 16):
        yield space.expand(base.take(np.arange(start, min(start + 16, len(base))))).rows


def _meant(rows: Strategies) -> int:
    """How many of these the tool has too: it shards over all replicas, and overlaps both reduction and gather or neither."""
    alone = (rows.dp == 1) & (rows.zero > 0)
    kept = (rows.recompute == Recompute.FULL) & (rows.offload_activation_layers > 0)
    alike = (rows.overlap_param_gather == rows.overlap_grad_reduce) & (rows.zero_shard_size == rows.dp)
    of_theirs = rows.take(~alone & ~kept & ((rows.zero == 0) | alike))
    varied = (*DEGREE_AXES, "vpp", "recompute", "zero", "overlap_grad_reduce", "overlap_tp_comm", *OFFLOADS)
    values = np.stack([getattr(of_theirs, name).astype(np.float64) for name in varied], axis=1)
    return len(np.unique(values, axis=0))


def _space(constraints: dict[str, Any]) -> tuple[Space, PlanRequest]:

    document = job_request(constraints)
    asked = PlanRequest.model_validate(document)
    return build_space(resolve_job(document), asked.constraints), asked


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


PARTS = {
    "as_asked": lambda: planned({}),
    "same_axes": lambda: planned(SAME_AXES),
    "same_axes_every_one_priced": every_one_priced,
}


def measure() -> None:
    """Measures all parts and records them."""
    # Before anything is timed: a count that differs means that their axes were misread, and the comparison would be of two things.
    theirs = coverage()
    assert theirs["candidates"] == THEIR_CANDIDATES, theirs
    parts = {}
    for name in PARTS:
        command = [sys.executable, "-m", "benchmarks.exhaustive_comparison", "--one", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        parts[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, json.dumps(parts[name]))
    # With bounds and without must find the same best, or the bounds would be wrong.
    best_s = {parts[name]["step_time_s"] for name in ("same_axes", "same_axes_every_one_priced")}
    assert max(best_s) - min(best_s) <= 1e-9 * max(best_s), best_s
    meant = sum(_meant(rows) for rows in _rows(_space(SAME_AXES)[0]))
    assert meant == theirs["strategies"], (meant, theirs)
    their_s = theirs["candidates"] / THEIR_PER_S
    record(
        "exhaustive_comparison",
        value=parts["same_axes"]["seconds"],
        unit="s",
        goal=f"< {their_s:.0f}",
        their_candidates=theirs["candidates"],
        their_s=round(their_s),
        their_candidates_that_mean_a_strategy_of_ours=theirs["meant"],
        strategies_that_they_mean=theirs["strategies"],
        **parts,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(PARTS[sys.argv[2]]()))
    else:
        measure()
