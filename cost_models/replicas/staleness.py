"""Steps of workers that need not wait for each other at once: simulated, since no closed form holds. [T-10]

Under stale-synchronous training a worker may be s steps ahead of the slowest; under asynchronous training it never waits. No
framework here runs either, so that the answer is only what they could save: at most what workers lose to the jitter of each other's
steps. A worker that is always slower holds the others back whatever s is.
"""

from __future__ import annotations

import numpy as np


def stale_step_ratio(
    workers: int, staleness: int, *, noise: float, spread: float, steps: int = 400, runs: int = 5, seed: int = 0
) -> float:
    """Mean step time of stale-synchronous workers over that of one worker by itself, from a seeded simulation. [T-10]

        start of step k of worker i = max(end of its step k - 1, ends of step k - 1 - s of all workers)

    Args:
        workers: that share the parameters.
        staleness: s, steps that one may be ahead of the slowest; 0 is synchronous training, `steps` asynchronous.
        noise: standard deviation of a step's seconds from step to step, as a share of the mean.
        spread: standard deviation of the workers' own means, as a share.
        steps: of each simulated run.
        runs: that the ratio is averaged over.
        seed: of the random numbers.

    Source: Ho et al. 2013 (stale synchronous parallel, NIPS), the rule of the slowest clock.
    """
    generator = np.random.default_rng(seed)
    return float(np.mean([_one_run(generator, workers, staleness, noise, spread, steps) for _ in range(runs)]))


def _one_run(
    generator: np.random.Generator, workers: int, staleness: int, noise: float, spread: float, steps: int
) -> float:
    # Drawn once: a slow GPU stays slow for the whole run.
    means = 1.0 + spread * generator.standard_normal(workers)
    own = np.zeros(workers)
    # Ends of the last steps of the slowest worker, oldest first: only those that somebody may still wait for.
    slowest = np.zeros(steps + 1)
    for step in range(1, steps + 1):
        start = own
        if step - 1 - staleness >= 0:
            start = np.maximum(own, slowest[step - 1 - staleness])
        own = start + np.maximum(means + noise * generator.standard_normal(workers), 0.01)
        slowest[step] = own.max()
    # The run is over when the last worker has done its steps.
    return float(own.max()) / steps
