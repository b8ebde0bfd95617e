"""Exchanges that stand for an all-reduce of gradients, against what the programs' own source does, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import UNIT_GPU, dense_model, job_of, row_of
from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.layers.parameters import count_parameters
from cost_models.memory.stage_memory import stage_memory
from cost_models.replicas.powersgd import layer_elements
from cost_models.replicas.signs import variance_updates
from cost_models.specs.cluster import Cluster
from cost_models.specs.method import Compression, Islands, Method, Sync
from cost_models.step.ddp_comm import DdpLinks, ddp_exposed_s
from cost_models.step.exchange import exchange_s, shares_of_run, volume
from cost_models.step.islands import outer
from cost_models.strategies.strategy import Strategies

STEPS = 200_000
SIGNS = "0.19.6"
LONG = np.array([1e6])
NO_LINKS = DdpLinks(np.zeros(1), np.zeros(1), np.zeros(1, np.int8))


def job(framework: str, kind: Any, *, cluster: dict[str, Any] | None = None, **method: Any) -> Job:
    version = {"framework_version": SIGNS} if framework == "deepspeed" else {}
    plain = job_of(dense_model(), framework, gpu=UNIT_GPU, cluster=cluster, **version)
    tokens = float(STEPS * plain.training.seq_length * plain.training.global_batch_size)
    long = replace(plain, training=replace(plain.training, total_tokens=tokens))
    return replace(long, method=Method(compression=Compression(kind, **method)))


def seconds(asked: Job, batch: Strategies, elements: float) -> float:
    """Exposed seconds behind passes that hide every link."""
    found = exchange_s(asked, batch, elements=np.array([elements]), links=NO_LINKS, forward_s=LONG, backward_s=LONG)
    return float(found.exposed[0])


@pytest.mark.parametrize(("steps", "updates"), [(0, 0), (16, 16), (17, 16), (18, 17), (48, 32), (100_000, 201)])
def test_zero_one_adam_updates_its_variance_ever_more_rarely(steps: int, updates: int) -> None:
    """The counters of zoadam.py, step by step."""
    interval, counted, found = 1, 0, 0
    for step in range(1, steps + 1):
        if step % interval == 0:
            found, counted = found + 1, counted + 1
            if counted == 16:
                interval, counted = interval * 2, 0
    assert (found, variance_updates(steps)) == (updates, updates)


def test_zero_one_adam_sends_signs_from_the_beginning() -> None:
    """100,000 of 200,000 steps update the variance 201 times; the others send signs at each step, and the second half every fourth."""
    whole, exchanges = shares_of_run(job("deepspeed", "zero-one", freeze_steps=100_000, sync_every=4))
    assert whole == pytest.approx(201 / STEPS)
    assert exchanges == pytest.approx((99_799 + 100_000 / 4) / STEPS)
    asked = job("deepspeed", "onebit", freeze_steps=50_000)
    assert shares_of_run(asked) == (0.25, 0.75)
    assert volume(asked, 1e9).ratio == pytest.approx(1 / (0.25 + 0.75 / 16))


def test_signs_travel_tensor_by_tensor() -> None:
    """A layer of DeepSpeed's has two norms, q, k, v, o, gate, up and down; embedding, norm and head: 39 tensors, four calls of each."""
    asked = job("deepspeed", "onebit", freeze_steps=0)
    batch = row_of(asked, dp=8, zero=0)
    each = [float(asked.calibration.collective_s(op, np.array([size]), placement=placement(asked, batch)).seconds[0])
            for op, size in (("all_to_all", 1e8 / 8 / 39), ("all_gather", 1e8 / 8 / 39), ("all_gather", 32.0), ("all_gather", 32.0))]  # fmt: skip
    packing = 24 * 1e8 * (1 + 1 / 8) / asked.calibration.memory_bytes_per_s_effective.value
    assert seconds(asked, batch, 1e8) == pytest.approx(39 * sum(each) + packing)


def placement(asked: Job, batch: Strategies) -> Any:
    return groups(batch, asked.cluster).dp_cp


def test_a_hook_casts_divides_and_casts_back() -> None:
    """default_hooks.py: to(bf16) reads 4 and writes 2 bytes, div_ reads 2 and writes 2, copy_ reads 2 and writes 4."""
    asked = job("fsdp", "bf16")
    asked = replace(asked, training=replace(asked.training, grad_dtype="fp32"))
    batch = row_of(asked, dp=8, zero=0)
    link_s = asked.calibration.collective_s("all_reduce", np.array([2e9]), placement=placement(asked, batch)).seconds
    links = replace(NO_LINKS, reduce=link_s)
    waits = ddp_exposed_s(batch, links, forward_s=LONG, backward_s=LONG, num_layers=asked.model.num_layers)
    kernels = seconds(asked, batch, 1e9) - float(waits[0])
    assert kernels == pytest.approx(16e9 / asked.calibration.memory_bytes_per_s_effective.value)


def test_powersgd_orthogonalises_both_factors() -> None:
    """powerSGD_hook.py: P after its sum, and the Q of the step before (warm_start). Rank 4 of a layer: 16 (rows + columns)."""
    asked = job("fsdp", "powersgd", rank=4)
    kind = asked.model.layer_kinds[0]
    square, wide = 2 * 1024, 1024 + 4096
    assert layer_elements(asked.model, kind, 4).column_work == 16 * (4 * square + 3 * wide)


def test_local_sgd_holds_averages_on_the_device() -> None:
    """torchft clones every parameter before it averages (local_sgd.py, _average); nothing of it is in host memory."""
    islands = {"islands": {"count": 2, "link_gbit_per_s": 10}}
    plain = job_of(dense_model(), "torchtitan", gpu=UNIT_GPU, num_nodes=2, cluster=islands)
    local = replace(plain, method=Method(Sync("local-sgd", sync_every=8)))
    batch = row_of(plain, dp=16, zero=3, zero_shard_size=8)
    held, host = zip(*(_held(each, batch) for each in (plain, local)), strict=True)
    parameters = count_parameters(plain.model).total
    assert held[1] - held[0] == pytest.approx(4 * parameters / 8, rel=1e-6)
    assert host[0] == host[1] == 0.0


def _held(asked: Job, batch: Strategies) -> tuple[float, float]:
    memory = stage_memory(asked, batch)
    return float(memory.breakdown(0, 0)["optimizer_states"]), float(memory.host_bytes_per_node[0])


@pytest.mark.parametrize(("strategy", "copies"), [({"zero": 3, "zero_shard_size": 8}, 1), ({"zero": 2, "zero_shard_size": 4}, 2), ({"zero": 0}, 8)])  # fmt: skip
def test_every_rank_that_holds_a_parameter_sends_it_between_islands(strategy: dict[str, Any], copies: int) -> None:
    """torchft's manager.py: one process group for each rank's number. Two islands send what they hold over 1.25e9 bytes a second."""
    plain = job_of(dense_model(), "torchtitan", gpu=UNIT_GPU, num_nodes=2)
    nodes: Cluster = replace(plain.cluster, islands=Islands(2, 1.25e9, 0.0))
    asked = replace(plain, cluster=nodes, method=Method(Sync("diloco", sync_every=8)))
    found = outer(asked, row_of(asked, dp=16, **strategy), inner_s=LONG, forward_s=LONG, backward_s=LONG)
    whole_s = 4 * count_parameters(plain.model).total / 1.25e9
    assert found.sync_s[0] == pytest.approx(copies * whole_s)
