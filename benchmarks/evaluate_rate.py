"""Strategies per second through the full evaluation: every time and memory term, ranges, verdict, on one core.

The batch is what a real search would price: legal strategies of a 70B model on 1,024 GPUs, drawn evenly from the whole space, without
rows that rules or bounds prune. Run: python benchmarks/evaluate_rate.py.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.record import record
from cost_models.evaluate import evaluate
from cost_models.hardware import load_calibration
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.job import Job
from cost_models.strategies.strategy import Strategies, concatenated
from planner.rules import violations
from planner.schemas import Constraints
from planner.strategies.axes import build_space

NUM_STRATEGIES = 200_000
GOAL = ">= 500000"
SEED = 0


def job() -> Job:
    """Llama-3.1-70B, 128 nodes of 8 H100, sequence 8192, Megatron."""
    model = resolve_model({"preset": "llama-3.1-70b"})
    cluster = resolve_cluster({"preset": "dgx-h100", "num_nodes": 128})
    training = {"seq_length": 8192, "global_batch_size": 2048, "precision": "bf16", "framework": "megatron"}
    resolved = resolve_training(training, model=model, cluster=cluster)
    return Job(model=model, cluster=cluster, training=resolved, calibration=load_calibration(cluster))


def legal_strategies(priced: Job, *, num_strategies: int = NUM_STRATEGIES) -> Strategies:
    """This many legal strategies: random base rows, each with all of its expansions that break no rule."""
    space = build_space(priced, Constraints())
    base = space.base()
    # In random order: neighbours in the space share degrees, and a batch of neighbours would flatter every table that is gathered from.
    order = np.random.default_rng(SEED).permutation(len(base))
    batches: list[Strategies] = []
    total = 0
    for start in range(0, len(base), 256):
        rows = space.expand(base.take(order[start : start + 256])).rows
        legal = rows.take(violations(priced, rows).legal)
        batches.append(legal)
        total += len(legal)
        if total >= num_strategies:
            break
    return concatenated(batches).take(np.arange(min(total, num_strategies)))


def rate(*, num_strategies: int = NUM_STRATEGIES, repeats: int = 3) -> float:
    """Strategies per second, best of `repeats`."""
    priced = job()
    strategies = legal_strategies(priced, num_strategies=num_strategies)
    evaluate(priced, strategies)  # tables that depend on the job alone are built once
    times_s = []
    for _ in range(repeats):
        begin = time.perf_counter()
        evaluated = evaluate(priced, strategies)
        times_s.append(time.perf_counter() - begin)
        assert np.isfinite(evaluated.step_time_s).all()
    # The best run and not the mean: whatever else the machine does can only slow one down.
    return len(strategies) / min(times_s)


if __name__ == "__main__":
    record("evaluate_rate", value=rate(), unit="strategies/s", goal=GOAL, strategies=NUM_STRATEGIES)
