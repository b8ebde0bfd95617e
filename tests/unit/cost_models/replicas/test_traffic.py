"""Right values of what replicas exchange, from the papers and from programs that count every message."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.replicas.averaging import between_islands_s, exposed_per_step_s
from cost_models.replicas.gossip import gossip_degree, gossip_s
from cost_models.replicas.parameter_server import byteps_ratio
from cost_models.replicas.powersgd import layer_elements, model_elements

LLAMA_3_1_8B = 8_030_261_248


def one_sync_s(element_bytes: float, fragments: int = 1) -> float:
    """Two islands at 10 Gbit/s, 1.25e9 bytes a second."""
    size = LLAMA_3_1_8B * element_bytes / fragments
    return float(between_islands_s(size, islands=2.0, link_bytes_per_s=1.25e9, latency_s=0.0))


def test_diloco_of_8b_on_two_islands() -> None:
    """2 (R-1)/R · 8.03e9 · 4 B / 1.25e9 B/s = 25.70 s, and a quarter of it in fp8."""
    assert (round(one_sync_s(4.0), 2), round(one_sync_s(1.0), 2)) == (25.70, 6.42)


@pytest.mark.parametrize(("every", "useful"), [(1, 0.163), (10, 0.661), (100, 0.951), (500, 0.990)])
def test_share_of_time_in_which_islands_train(every: int, useful: float) -> None:
    """Steps of 5 s: H t / (H t + t_sync)."""
    waits = float(exposed_per_step_s(one_sync_s(4.0), step_s=5.0, sync_every=every, fragments=1, delay_steps=0))
    assert round(5.0 / (5.0 + waits), 3) == useful


def test_streaming_hides_fragments_that_travel_for_less_than_a_step() -> None:
    """Eight fragments of 3.21 s each behind one step of 5 s; without the delay they cost as much as the whole."""
    fragment_s = one_sync_s(4.0, fragments=8)
    assert round(fragment_s, 2) == 3.21
    exposed = [
        float(exposed_per_step_s(fragment_s, step_s=5.0, sync_every=100, fragments=8, delay_steps=tau))
        for tau in (0, 1)
    ]
    assert exposed == [pytest.approx(one_sync_s(4.0) / 100), 0.0]


def test_messages_of_a_ring_of_islands_take_their_latency() -> None:
    """Three islands send four messages one after the other: 4 (0.05 + 3e9 / (3 · 1e9)) s."""
    assert float(between_islands_s(3e9, islands=3.0, link_bytes_per_s=1e9, latency_s=0.05)) == pytest.approx(4.2)


@pytest.mark.parametrize(
    ("workers", "servers", "ratio"), [(8, 0, 1.75), (8, 1, 1.60), (8, 4, 1.2727), (8, 8, 1.0), (32, 8, 1.5696)]
)
def test_byteps_optimum(workers: int, servers: int, ratio: float) -> None:
    """Jiang et al. 2020: seconds of a push and pull in units of S / B."""
    assert round(float(byteps_ratio(float(workers), float(servers))), 4) == ratio


def test_more_servers_than_workers_help_no_further_and_one_worker_has_none() -> None:
    assert float(byteps_ratio(8.0, 20.0)) == 1.0
    assert byteps_ratio(np.array([1.0, 1.0]), 1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("rank", "sent"), [(1, 81_920), (4, 327_680), (32, 2_621_440)])
def test_powersgd_of_a_layer_of_llama(rank: int, sent: int) -> None:
    """Seven matrices with 218,103,808 elements: r (rows + columns) of each, added up by hand for r = 1: 81,920."""
    model = resolve_model({"preset": "llama-3.1-8b"})
    found = layer_elements(model, model.layer_kinds[0], rank)
    assert (found.compressed, found.sent, found.whole) == (218_103_808, sent, 0)


def test_powersgd_of_the_whole_model_sends_vectors_whole() -> None:
    """Norms: 32 layers of two vectors of 4,096 and the last norm, 266,240 elements; everything else is a matrix."""
    found = model_elements(resolve_model({"preset": "llama-3.1-8b"}), 1)
    assert (found.whole, found.compressed + found.whole) == (266_240, LLAMA_3_1_8B)


def test_matrices_too_small_to_gain_pass_whole() -> None:
    """Rank 1,000 of a key projection: (4096 + 1024) · 1000 · 2 is more than its 4,194,304 elements."""
    model = resolve_model({"preset": "llama-3.1-8b"})
    found = layer_elements(model, model.layer_kinds[0], 1000)
    assert found.whole == 2 * 1024 * 4096


def test_gossip_against_a_ring_of_256() -> None:
    """ResNet-50, 25.5e6 fp32 parameters: half of a ring without latency (150 / 278 ms = 0.54 were published)."""
    size, ranks = 25.5e6 * 4.0, 256
    ring_s = 2 * (ranks - 1) / ranks * size / 1e9
    own_s = gossip_s(size, degree=gossip_degree("one-peer-exp", ranks), bytes_per_s=1e9, latency_s=0.0)
    assert round(float(own_s) / ring_s, 2) == 0.50


def test_neighbours_of_each_topology() -> None:
    ranks = np.array([1.0, 2.0, 16.0])
    degrees = {name: gossip_degree(name, ranks).tolist() for name in ("one-peer-exp", "ring", "static-exp2")}
    assert degrees == {"one-peer-exp": [0, 1, 1], "ring": [0, 1, 2], "static-exp2": [0, 1, 4]}
