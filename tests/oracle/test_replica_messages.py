"""Parameter servers, gossip and stale steps against programs that send every message and start every step by itself."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest

from cost_models.replicas.gossip import gossip_degree
from cost_models.replicas.parameter_server import byteps_ratio
from cost_models.replicas.staleness import stale_step_ratio

Message = tuple[str, str, Fraction]


def busiest_card(messages: list[Message]) -> Fraction:
    """Bytes that the busiest network card carries in one direction; cards send and receive at once."""
    out: Counter[str] = Counter()
    into: Counter[str] = Counter()
    for source, target, size in messages:
        if source != target:
            out[source] += size  # type: ignore[assignment]
            into[target] += size  # type: ignore[assignment]
    return Fraction(max([*out.values(), *into.values()], default=0))


def push_and_pull(workers: int, servers: int, own_share: Fraction, server_share: Fraction) -> list[Message]:
    """Every worker's messages to and from every process that serves a share of the parameters."""
    serving = [(f"w{i}", own_share) for i in range(workers)] + [(f"s{i}", server_share) for i in range(servers)]
    assert sum(share for _, share in serving) == 1
    return [
        message
        for worker in range(workers)
        for name, share in serving
        for message in ((f"w{worker}", name, share), (name, f"w{worker}", share))
    ]


def best_split_s(workers: int, servers: int) -> Fraction:
    """Least load of the busiest card over all ways to share parameters between workers' machines and servers, in steps of 1/2520."""
    parts, best = 2520, None
    for on_servers in range(0, parts + 1, 7):
        each = Fraction(on_servers, parts * servers) if servers else Fraction(0)
        own = (1 - each * servers) / workers
        load = busiest_card(push_and_pull(workers, servers, own, each))
        best = load if best is None else min(best, load)
    assert best is not None
    return best


def test_no_split_of_the_parameters_beats_the_byteps_optimum() -> None:
    draw = Random(19)
    for _ in range(6):
        workers, servers = draw.randint(2, 9), draw.randint(0, 4)
        servers = min(servers, workers)
        least, told = float(best_split_s(workers, servers)), float(byteps_ratio(float(workers), float(servers)))
        assert told <= least + 1e-12
        assert least == pytest.approx(told, rel=0.01), (workers, servers)


def test_one_server_of_eight_workers() -> None:
    """Its card carries 8 S one way and 8 S the other: 16 S one after the other, 8 S overlapped."""
    messages = push_and_pull(8, 1, Fraction(0), Fraction(1))
    pushed = [each for each in messages if each[1] == "s0"]
    pulled = [each for each in messages if each[0] == "s0"]
    assert (busiest_card(pushed) + busiest_card(pulled), busiest_card(messages)) == (16, 8)


@pytest.mark.parametrize(
    ("topology", "distances"), [("one-peer-exp", (4,)), ("ring", (1, -1)), ("static-exp2", (1, 2, 4, 8))]
)
def test_gossip_sends_as_often_as_its_degree(topology: str, distances: tuple[int, ...]) -> None:
    messages = [(f"r{i}", f"r{(i + by) % 16}", Fraction(1)) for i in range(16) for by in distances]
    assert float(gossip_degree(topology, 16.0)) == busiest_card(messages)  # type: ignore[arg-type]


def stale_run(draw: Random, workers: int, staleness: int, noise: float, spread: float, steps: int) -> float:
    """Mean step of the last worker, with every start worked out from the whole table of ends."""
    own = [1.0 + spread * draw.gauss(0, 1) for _ in range(workers)]
    ends = [[0.0] * workers]
    for step in range(1, steps + 1):
        row = []
        for worker in range(workers):
            start = ends[step - 1][worker]
            if step - 1 >= staleness:
                start = max(start, *ends[step - 1 - staleness])
            row.append(start + max(own[worker] + noise * draw.gauss(0, 1), 0.01))
        ends.append(row)
    return max(ends[-1]) / steps


@pytest.mark.parametrize(
    ("noise", "spread", "right"), [(0.05, 0.0, (1.118, 1.008, 1.006)), (0.0, 0.012, (1.029, 1.029, 1.029))]
)
def test_staleness_removes_noise_and_no_slow_gpu(noise: float, spread: float, right: tuple[float, ...]) -> None:
    """64 workers, s of 0, 1 and 3. Random draws differ, so that values agree to within their own spread."""
    told = [stale_step_ratio(64, s, noise=noise, spread=spread) for s in (0, 1, 3)]
    assert told == [pytest.approx(value, abs=0.004) for value in right]


def test_stale_steps_of_a_simulation_with_a_table() -> None:
    draw = Random(7)
    for _ in range(4):
        workers, staleness = draw.randint(2, 12), draw.randint(0, 4)
        noise, spread = draw.uniform(0.0, 0.1), draw.uniform(0.0, 0.02)
        told = stale_step_ratio(workers, staleness, noise=noise, spread=spread, steps=150, runs=12)
        simulated = sum(stale_run(draw, workers, staleness, noise, spread, 150) for _ in range(12)) / 12
        assert told == pytest.approx(simulated, abs=0.015), (workers, staleness, noise, spread)
