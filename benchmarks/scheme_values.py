"""Every right value of the remaining schemes beside what the product computes for it, with the difference.

    python -m benchmarks.scheme_values [--keep]

The right values come from programs that move every byte (tests/oracle has their like), from papers and from sources; each is named with
its line of schemes.md, the text that issue 19 follows. A value agrees where it rounds to the printed digits. Where the product differs on purpose, the row says
why. tests/api/test_replicas_api.py asks for the same table, so that a value that moves fails there. `--keep` writes the figure to benchmarks/results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from app.service.main import create_app
from app.settings import Settings
from benchmarks.record import record
from cost_models.hardware import nccl, nccl_tuner, textbook
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.nccl_tuner import Group, Way, nccl_ways
from cost_models.hardware.textbook import Link
from cost_models.inputs.model import resolve_model
from cost_models.operations import Op
from cost_models.replicas.averaging import between_islands_s, exposed_per_step_s
from cost_models.replicas.gossip import gossip_degree, gossip_s
from cost_models.replicas.parameter_server import byteps_ratio
from cost_models.replicas.staleness import stale_step_ratio
from cost_models.runs.stops import goodput, optimal_interval_s, young_interval_s
from cost_models.runs.whole_run import whole_run
from cost_models.step.fsdp_comm import backward_gathers
from cost_models.step.offload import ZENFLOW_STALL, offload_s
from cost_models.step.overlap_conditions import dp_ratio, pp_ratio, tp_ratio, zero3_ratio
from cost_models.step.zero_plus import node_traffic
from cost_models.strategies.expert_spread import expected_places
from planner.request.job import resolve_job
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies

Document = dict[str, Any]
US, MB, HOUR_S = 1e-6, 1e6, 3600.0
LLAMA = {"preset": "llama-3.1-8b"}
H200 = {"preset": "dgx-h200", "num_nodes": 2}
ISLANDS = {"count": 2, "link_gbit_per_s": 10}
PARAMETERS = 8_030_261_248
ON_INTEL = "20.4 GB/s is what LL moves at most between more than two nodes on Intel hosts (tuning.cc, llMaxBws); the text took AMD's 19.0"


@dataclass(frozen=True, slots=True)
class Value:
    """One right value and ours."""

    line: int
    """Of schemes.md."""
    what: str
    right: str
    """As printed: its last digit is the tolerance."""
    ours: float
    why: str = ""
    """Where ours differs on purpose."""

    @property
    def difference(self) -> float:
        """Ours over the right one, less 1."""
        right = float(self.right)
        return self.ours / right - 1.0 if right else self.ours

    @property
    def agrees(self) -> bool:
        """Whether ours rounds to what is printed."""
        digits = len(self.right.partition(".")[2])
        # A little more than half a digit, for figures that lie on the edge in binary.
        return abs(self.ours - float(self.right)) <= 0.5001 * 10.0**-digits


def array(value: float) -> np.ndarray:
    """An array of one number."""
    return np.array([float(value)])


def evaluated(client: TestClient, rows: list[Document]) -> list[Document]:
    """The service's answers to these rows."""
    # A busy machine may not have started the service's first process yet, which it says with 503.
    for _ in range(5):
        response = client.post("/v1/evaluate", json=rows)
        if response.status_code != 503:
            break
    assert response.status_code == 200, response.text
    answers: list[Document] = response.json()
    return answers


def textbooks() -> Iterator[Value]:
    """Closed forms of collectives, 5 us a message and 1 ns a byte for 7,680 bytes."""
    link, near, far = Link(5e-6, 1e9), Link(1e-6, 1e10), Link(5e-6, 1e9)
    for ranks, right in ((4, "41.52"), (5, "52.288"), (8, "83.44"), (16, "164.4")):
        ring = textbook.ring(array(7680), array(ranks), link, rounds_of=2.0)
        yield Value(22, f"ring all-reduce of {ranks}, us", right, ring.seconds[0] / US)
    for ranks, right in ((4, "31.52"), (8, "43.44"), (16, "54.40"), (5, "56.88"), (6, "56.88"), (12, "68.80")):
        halved = textbook.halving_doubling(array(7680), members=array(ranks), nodes=array(1), near=link, far=link)
        yield Value(22, f"halving and doubling of {ranks}, us", right, halved.seconds[0] / US)
    for k, nodes, torus, leaders in (
        (8, 4, "46.784", "52.128"),
        (8, 2, "26.304", "28.288"),
        (4, 3, "27.856", "30.656"),
    ):
        for name, form, right in (
            ("2-D torus", textbook.torus_2d, torus),
            ("hierarchical", textbook.hierarchical, leaders),
        ):
            found = form(array(960 * k), members=array(k), nodes=array(nodes), near=near, far=far)
            yield Value(23, f"{name} {k} x {nodes}, us", right, found.seconds[0] / US)
    for ranks, chunks, right in ((4, 1, "3"), (4, 8, "1.25"), (8, 64, "1.09375")):
        found = textbook.chain(array(1.0), array(ranks), Link(0.0, 1.0), chunks=float(chunks))
        yield Value(18, f"chain broadcast to {ranks} in {chunks}, of one link's time", right, found.seconds[0])


def chooser() -> Iterator[Value]:
    """NCCL's choice on nodes of eight H100, 16 channels of 24 GB/s, without the 1.4 of large rings."""
    asked: tuple[tuple[Op, int, int, str, str, str], ...] = (
        ("all_reduce", 64, 2**16, "56.7", "tree/LL", ON_INTEL), ("all_reduce", 64, 2**20, "93.1", "tree/LL128", ""),
        ("all_reduce", 64, 2**30, "6090", "ring/Simple", ""), ("all_gather", 64, 2**20, "135.8", "ring/LL", ON_INTEL),
        ("all_gather", 512, 2**24, "1164.6", "ring/LL128", ""),
    )  # fmt: skip
    for op, ranks, size, right, way, why in asked:
        group = Group(array(ranks), array(8), array(ranks / 8), "nvlink", "hopper", 384e9, 384e9)
        ways = [
            each for each in nccl_ways(op, array(size), group) if each.possible.all() and each.algorithm != "collnet"
        ]
        best = min(ways, key=_seconds)
        what = f"NCCL {op} of {ranks}, {size:,} B, us"
        yield Value(24, what, right, _seconds(best) / US, why)
        yield Value(24, f"{what}: {way} is chosen", "1", float(f"{best.algorithm}/{best.protocol}" == way))
    # What a ring would move over what the switch moves, each way: 2 (n - 1) / n over 2 (n + 1) / n.
    group = Group(array(8), array(8), array(1), "nvlink", "hopper", 384e9, 384e9)
    switch = next(each for each in nccl_ways("all_reduce", array(2**30), group) if each.algorithm == "nvls")
    moved = switch.bandwidth_s[0] * nccl_tuner.NVLS_EFFICIENCY["hopper"] * 384e9 / 2**30
    yield Value(
        19, "in-network all-reduce of 8, bus factor 7/9", "0.7778", bus_factor("all_reduce", array(8))[0] / (2 * moved)
    )
    for name, right, ours in (
        ("NCCL base of trees, LL", "6.8", nccl.BASE_US["tree"][0]), ("base of rings, LL", "6.6", nccl.BASE_US["ring"][0]),
        ("base, LL128", "14", nccl.BASE_US["ring"][1]), ("base, Simple", "8.4", nccl.BASE_US["ring"][2]),
        ("hop of a tree on NVLink, LL128", "1.25", nccl.HOP_US["nvlink"]["tree"][1]),
        ("hop of a ring on NVLink, Simple", "3.4", nccl.HOP_US["nvlink"]["ring"][2]),
        ("hop of a tree in the network, LL128", "8.5", nccl.HOP_US["network"]["tree"][1]),
        ("hop of a ring in the network, LL", "2.7", nccl.HOP_US["network"]["ring"][0]),
        ("latency factor of large rings", "1.4", nccl.RING_SIMPLE_ALL_REDUCE),
        ("NVLS efficiency, Hopper", "0.85", nccl_tuner.NVLS_EFFICIENCY["hopper"]),
        ("NVLS efficiency, Blackwell", "0.74", nccl_tuner.NVLS_EFFICIENCY["blackwell"]),
    ):  # fmt: skip
        yield Value(20, name, right, ours)


def _seconds(way: Way) -> float:
    plateau = 1.4 if (way.algorithm, way.protocol) == ("ring", "Simple") else 1.0
    return float(np.ravel(way.latency_s)[0] / plateau + way.bandwidth_s[0])


def zero_plus(client: TestClient) -> Iterator[Value]:
    """Bytes between nodes over those of the parameters; ZeRO++'s over HTTP, plain stage 3's by the model."""
    training = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"}
    row = {"model": LLAMA, "cluster": {"preset": "dgx-h100", "num_nodes": 8}, "training": training}
    job = resolve_job(row)
    batch = resolve_strategies(job, [StrategyInput.model_validate({"zero": 3, "micro_batch_size": 1})]).strategies
    assert batch is not None
    plain = node_traffic(job, batch, regathers=backward_gathers(job, batch))
    yield Value(31, "plain stage 3, M", "3", float(plain.first[0]))
    hpz = {"zero": 3, "micro_batch_size": 1, "recompute": "full", "zero_param_shard_size": 8}
    every = {**hpz, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    first, second = (a["node_traffic"] for a in evaluated(client, [{**row, "strategy": each} for each in (hpz, every)]))
    yield Value(31, "hpZ, first micro-batch, M", "2", first["first"])
    yield Value(31, "hpZ, later micro-batches, M", "1", first["later"])
    yield Value(31, "ZeRO++, M", "0.75", second["first"])
    for name, right in (("forward_gather", "0.50"), ("backward_gather", "0.00"), ("reduction", "0.25")):
        yield Value(31, f"ZeRO++, {name}, M", right, second[name])


def offload() -> Iterator[Value]:
    """7e9 parameters' state on a node's drives, 25 GB/s read and 12 written, less what a host in memory takes."""
    gpu = {
        "name": "unit",
        "memory_gib": 80,
        "peak_tflops": {"bf16": 100},
        "memory_bandwidth_gb_per_s": 1000,
        "nvlink_gb_per_s": 100,
    }
    job = resolve_job({
        "model": LLAMA,
        "cluster": {"gpu": gpu, "num_nodes": 1, "gpus_per_node": 8, "host_link_gb_per_s": 50, "host_adam_gb_per_s": 1e9,
                    "nvme": {"read_gb_per_s": 25, "write_gb_per_s": 12}},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"},
    })  # fmt: skip
    seconds = {}
    for device, overlap in (("cpu", "none"), ("nvme", "none"), ("nvme", "pipelined")):
        own = {"optimizer_fraction": 1.0, "optimizer_device": device, "optimizer_overlap": overlap}
        given = StrategyInput.model_validate({"zero": 3, "micro_batch_size": 1, "offload": own})
        batch = resolve_strategies(job, [given]).strategies
        assert batch is not None
        sizes = {"dense": array(7e9), "expert": array(0.0), "forward_s": array(1e6), "backward_s": array(1e6)}
        seconds[device, overlap] = float(offload_s(job, batch, **sizes)[0])
    in_memory = seconds["cpu", "none"]
    yield Value(36, "7B on NVMe, one after the other, s", "10.36", seconds["nvme", "none"] - in_memory)
    yield Value(36, "7B on NVMe, pipelined, s", "7.0", seconds["nvme", "pipelined"] - in_memory)
    yield Value(39, "ZenFlow, stalls that are left", "0.15", ZENFLOW_STALL.value)


def compressed(client: TestClient) -> Iterator[Value]:
    """What 1-bit Adam and PowerSGD send, over HTTP."""
    training = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"}
    signs = {
        **training,
        "framework": "deepspeed",
        "framework_version": "0.19.6",
        "precision": "fp16",
        "total_tokens": 4096 * 64 * 100_000,
    }
    plain = {"zero": 0, "micro_batch_size": 1, "recompute": "full"}
    steps = ((15_000, "4.92"), (20_000, "4.0"), (25_000, "3.37"))
    ranks = ((1, "81920"), (4, "327680"), (32, "2621440"))
    rows = [(signs, {"kind": "onebit", "freeze_steps": first}) for first, _ in steps]
    rows += [(training, {"kind": "powersgd", "rank": rank}) for rank, _ in ranks]
    given = [
        {"model": LLAMA, "cluster": H200, "training": own, "strategy": {**plain, "compression": compression}}
        for own, compression in rows
    ]
    told = [answer["exchange"] for answer in evaluated(client, given)]
    for (first, right), each in zip(steps, told[:3], strict=True):
        yield Value(59, f"1-bit Adam, {first:,} of 100,000 steps whole: volume", right, each["volume_ratio"])
    yield Value(59, "PowerSGD, elements of a layer's matrices", "218103808", told[3]["matrices"]["layer_elements"])
    for (rank, right), each in zip(ranks, told[3:], strict=True):
        yield Value(
            59, f"PowerSGD of rank {rank}, elements sent of a layer", right, each["matrices"]["layer_sent_elements"]
        )


def averaged(client: TestClient) -> Iterator[Value]:
    """DiLoCo of 8.03e9 fp32 parameters on two islands at 10 Gbit/s, steps of 5 s."""
    row = {
        "model": LLAMA, "cluster": {**H200, "islands": ISLANDS},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "torchtitan"},
    }  # fmt: skip
    ways: tuple[Document, ...] = ({}, {"quantize": "fp8"}, {"fragments": 4, "delay_steps": 1})
    strategies = [
        {"zero": 3, "micro_batch_size": 1, "sync": {"method": "diloco", "sync_every": 100, **way}} for way in ways
    ]
    told = [each["exchange"] for each in evaluated(client, [{**row, "strategy": s} for s in strategies])]
    yield Value(60, "DiLoCo, one synchronisation, s", "25.70", told[0]["synchronisation_s"])
    yield Value(60, "DiLoCo in fp8, s", "6.42", told[1]["synchronisation_s"])
    whole, part = (
        float(between_islands_s(PARAMETERS * 4.0 / parts, islands=2.0, link_bytes_per_s=1.25e9, latency_s=0.0))
        for parts in (1, 8)
    )
    for every, right in ((1, "16.3"), (10, "66.1"), (100, "95.1"), (500, "99.0")):
        waits = float(exposed_per_step_s(whole, step_s=5.0, sync_every=every, fragments=1, delay_steps=0))
        yield Value(60, f"DiLoCo, H {every}: time that islands train, %", right, 100 * 5.0 / (5.0 + waits))
    hidden = float(exposed_per_step_s(part, step_s=5.0, sync_every=100, fragments=8, delay_steps=1))
    yield Value(60, "streaming DiLoCo, one of 8 fragments, s", "3.21", part)
    yield Value(60, "streaming DiLoCo, exposed with tau 1, s", "0", hidden)


def others() -> Iterator[Value]:
    """Parameter servers, gossip and stale steps."""
    for workers, servers, right in ((8, 0, "1.75"), (8, 1, "1.60"), (8, 4, "1.2727"), (8, 8, "1.0"), (32, 8, "1.5696")):
        ours = float(byteps_ratio(float(workers), float(servers)))
        yield Value(60, f"BytePS, {workers} workers and {servers} servers, S/B", right, ours)
    alone = "one server by itself is run by no framework here: BytePS's processes on the workers serve as well (tests/oracle counts both)"
    yield Value(60, "one server of 8 workers, push and pull overlapped, S/B", "8", float(byteps_ratio(8.0, 1.0)), alone)
    size, ranks = 25.5e6 * 4.0, 256
    own_s = float(gossip_s(size, degree=gossip_degree("one-peer-exp", ranks), bytes_per_s=1e9, latency_s=0.0))
    ring_s = textbook.ring(array(size), array(ranks), Link(0.0, 1e9), rounds_of=2.0).seconds[0]
    yield Value(61, "gossip over a ring, ResNet-50 on 256", "0.50", own_s / ring_s)
    for noise, spread, rights in ((0.05, 0.0, ("1.118", "1.008", "1.006")), (0.0, 0.012, ("1.029", "1.029", "1.029"))):
        for staleness, right in zip((0, 1, 3), rights, strict=True):
            ours = stale_step_ratio(64, staleness, noise=noise, spread=spread)
            drawn = "random draws: five runs of 64 workers scatter by 0.004"
            what = f"64 workers, noise {noise}, spread {spread}, staleness {staleness}"
            yield Value(61, what, right, ours, drawn if abs(ours - float(right)) < 0.004 else "")


def experts() -> Iterator[Value]:
    """DeepSeek-V3's dispatch of 4,096 tokens over eight nodes."""
    model = resolve_model({"preset": "deepseek-v3"})
    assert model.moe is not None
    sent = 4096 * model.hidden_size * float(expected_places(model.moe, array(8.0))[0])
    copies = 4096 * model.hidden_size * model.moe.top_k * 2.0
    yield Value(66, "fp8 dispatch to nodes, MB", "117.4", sent / MB)
    yield Value(66, "bf16 combine from nodes, MB", "234.9", 2.0 * sent / MB)
    yield Value(66, "a copy for each expert, MB", "469.8", copies / MB)
    yield Value(66, "times less", "2.67", 2.0 * copies / (3.0 * sent))


def conditions() -> Iterator[Value]:
    """What computation could hide on an H100."""
    facts = {"element_bytes": 2.0, "flops_per_s": 989e12}
    yield Value(70, "overlap of zero3", "2.38", float(zero3_ratio(8192, ranks=64, bytes_per_s=50e9, **facts)))
    yield Value(70, "overlap of tp", "1.88", float(tp_ratio(8192, ranks=8, bytes_per_s=450e9, **facts)))
    yield Value(70, "overlap of pp", "0.0151", float(pp_ratio(8192, layers=10, bytes_per_s=50e9, **facts)))
    yield Value(70, "overlap of dp", "0.1486", float(dp_ratio(131_072, ranks=64, bytes_per_s=50e9, **facts)))


def runs(client: TestClient) -> Iterator[Value]:
    """Llama 3's stops, over HTTP and by the model."""
    between_s = 54 * 86_400 / 419
    yield Value(72, "Llama 3, hours between stops", "3.093", between_s / HOUR_S)
    yield Value(72, "Llama 3, hours of one GPU between stops", "50677", between_s / HOUR_S * 16_384)
    yield Value(71, "GPT-3, 300e9 tokens on 1,024 A100 at 0.44, days", "34.6", _gpt3_days())
    row: Document = {
        "model": LLAMA, "strategy": {"tp": 8, "zero": 1, "micro_batch_size": 1},
        "cluster": {"preset": "dgx-h100", "num_nodes": 2048,
                    "reliability": {"gpu_mtbf_h": between_s / HOUR_S * 16_384, "restart_s": 600}},
        "training": {"seq_length": 4096, "global_batch_size": 8192, "precision": "bf16", "framework": "megatron", "total_tokens": 1e12},
    }  # fmt: skip
    saves = ((60, "1156", "0.860"), (5, "334", "0.922"))
    rows = [{**row, "training": {**row["training"], "checkpoint": {"save_s": save}}} for save, _, _ in saves]
    for (save, interval, right), answer in zip(saves, evaluated(client, rows), strict=True):
        yield Value(72, f"interval with saves of {save} s", interval, answer["run"]["stops"]["interval_s"])
        yield Value(72, f"goodput with saves of {save} s", right, answer["run"]["goodput"])
        own_s = young_interval_s(between_s=between_s, save_s=save)
        ours = goodput(interval_s=own_s, save_s=save, between_s=between_s, recovery_s=600.0)
        yield Value(72, f"goodput with saves of {save} s, by the model", right, ours)
    best_s = optimal_interval_s(between_s=between_s, recovery_s=600.0, save_s=60.0)
    yield Value(72, "interval of the greatest availability, save included", "1248", 60.0 + best_s)


def _gpt3_days() -> float:
    tokens, batch = 300e9, 1536
    job = resolve_job({
        "model": {"preset": "gpt3-175b"}, "cluster": {"preset": "dgx-a100-80gb", "num_nodes": 128},
        "training": {"seq_length": 2048, "global_batch_size": batch, "precision": "bf16", "framework": "megatron", "total_tokens": tokens},
    })  # fmt: skip
    given = StrategyInput.model_validate({"tp": 8, "pp": 8, "micro_batch_size": 1})
    strategies = resolve_strategies(job, [given]).strategies
    assert strategies is not None
    step_s = 8 * batch * 2048 * 175e9 / (1024 * 0.44 * 312e12)
    found = whole_run(job.as_only_pool, strategies, 0, step_s=step_s, gpus_by_pool={0: 1024.0})
    assert found is not None
    return found.duration_s / 86_400


def values(client: TestClient) -> list[Value]:
    """Every right value, in the order of the text."""
    return [
        *textbooks(), *chooser(), *zero_plus(client), *offload(), *compressed(client), *averaged(client), *others(), *experts(),
        *conditions(), *runs(client),
    ]  # fmt: skip


def main() -> int:
    """Prints the table; the exit code is 1 if a value differs and nothing says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), pool_size=1, log_level="error", seed_examples=False)
        with TestClient(create_app(settings)) as client:
            found = values(client)
    for each in found:
        said = "" if each.agrees else each.why or "DIFFERS"
        print(f"{each.line}  {each.what:62} {each.right:>10} {each.ours:14.6g} {100 * each.difference:+8.3f} %  {said}")
    off = [each for each in found if not each.agrees]
    unexplained = [each for each in off if not each.why]
    print(f"{len(found)} values, {len(off)} differ, {len(unexplained)} without a reason")
    if asked.keep:
        record(
            "scheme_values", value=len(unexplained), unit="right values missed without a reason", goal="0", compared=len(found),
            on_purpose={each.what: f"{100 * each.difference:+.2f} %: {each.why}" for each in off if each.why},
        )  # fmt: skip
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
