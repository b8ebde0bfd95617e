"""What holds for every job and strategy: a batch equals its rows, terms sum, faster parts never slow a step down, stages
partition the layers, exposed communication never exceeds its link time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.evaluate import Evaluated, evaluate
from cost_models.hardware import load_calibration
from cost_models.inputs.model import resolve_model
from cost_models.job import Job
from cost_models.layers.costs import LAYER_PARTS, layer_costs
from cost_models.layers.ends import end_costs
from cost_models.layers.parameters import count_parameters
from cost_models.specs.training import Framework
from cost_models.step.optimizer import accumulation_s, optimizer_s
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Strategies
from cost_models.terms import TIME_NAMES
from planner.answer.ranking import with_all_stages
from planner.request.job import resolve_job
from planner.rules import violations
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies

DENSE = {
    "num_layers": 12, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 6,
    "intermediate_size": 4608, "vocab_size": 50257, "tie_word_embeddings": True,
}  # fmt: skip
MODELS = {
    "dense": DENSE,
    "moe": {**DENSE, "moe": {"num_experts": 12, "top_k": 2, "expert_intermediate_size": 768, "first_dense_layers": 2}},
    "windows": {**DENSE, "sliding_window": 256, "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 4},
}
TOY = {
    "name": "toy", "memory_gib": 24, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 1500, "nvlink_gb_per_s": 200,
}  # fmt: skip
FASTER = settings(max_examples=20)


@cache
def job_of(framework: str, model: str, gpu: str = "H100-SXM-80GB") -> Job:
    cluster = {"gpu": TOY if gpu == "toy" else gpu, "num_nodes": 6, "gpus_per_node": 8}
    return resolve_job({
        "model": MODELS[model],
        "cluster": cluster,
        "training": {"seq_length": 1536, "global_batch_size": 48, "precision": "bf16", "framework": framework},
    })  # fmt: skip


def small(*values: int):
    return st.sampled_from(values)


SPLITS = {
    2: [(6, 6), (5, 7), (11, 1), (12, 0)], 3: [(4, 4, 4), (2, 5, 5), (3, 6, 3)], 4: [(3, 3, 3, 3), (2, 3, 4, 3), (1, 5, 5, 1)],
}  # fmt: skip
INPUTS = st.fixed_dictionaries(
    {
        "tp": small(1, 2, 3, 6), "pp": small(1, 2, 3, 4), "cp": small(1, 2, 3), "dp": small(1, 2, 3, 4, 8),
        "micro_batch_size": small(1, 2), "zero": small(0, 1, 2, 3), "recompute": st.sampled_from(["none", "selective", "full"]),
    },
    optional={
        "ep": small(1, 2, 3, 4), "vpp": small(1, 2, 3), "sequence_parallel": st.booleans(), "zero_shard_size": small(1, 2, 4),
        "recompute_num_layers": small(1, 2), "split": st.integers(0, 2), "grad_sync": st.sampled_from(["last", "each"]),
        "cp_comm": st.sampled_from(["p2p", "a2a", "allgather"]), "offload": st.just({"optimizer_fraction": 0.5}),
        "overlap": st.fixed_dictionaries({"grad_reduce": st.booleans(), "tp_comm": st.booleans()}),
    },
)  # fmt: skip
JOBS = st.tuples(st.sampled_from(get_args(Framework)), st.sampled_from(sorted(MODELS)))


def strategy_input(given: dict) -> StrategyInput:
    chosen = dict(given)
    split = chosen.pop("split", None)
    if split is not None and chosen["pp"] in SPLITS:
        chosen |= {"vpp": 1, "layers_per_stage": SPLITS[chosen["pp"]][split]}
    if chosen["recompute"] != "full":
        chosen.pop("recompute_num_layers", None)
    return StrategyInput.model_validate(chosen)


def legal(job: Job, inputs: list[dict], *, all_stages: bool = False) -> Strategies | None:
    """The legal ones of these, None where there is none."""
    found = resolve_strategies(job, [strategy_input(given) for given in inputs], all_stages=all_stages).strategies
    if found is None:
        return None
    kept = found.take(violations(job, found).legal)
    return kept if len(kept) else None


MEMORY_NUMBERS = ("allocated", "reserved", "device", "device_low", "device_high", "host_bytes_per_node")


def numbers(found: Evaluated, index: int) -> dict[str, float]:
    """Everything that is answered about one strategy."""
    return {
        **{f"term.{name}": float(found.terms_s[name][index]) for name in TIME_NAMES},
        **{f"memory.{name}": float(getattr(found.memory, name)[index]) for name in MEMORY_NUMBERS},
        **{f"tier.{name}": float(found.tiers[name][index]) for name in TIME_NAMES},
        "verdict": float(found.verdict[index]),
        "host_exceeded": float(found.host_exceeded[index]),
        "low": float(found.step_time_low_s[index]),
        "high": float(found.step_time_high_s[index]),
        "total": float(found.step_time_s[index]),
    }


@settings(max_examples=80)
@given(JOBS, st.lists(INPUTS, min_size=8, max_size=24))
def test_a_batch_equals_its_rows(which, inputs) -> None:
    job = job_of(*which)
    batch = legal(job, inputs)
    assume(batch is not None)
    together = evaluate(job, batch)
    for index in range(len(batch)):
        alone = evaluate(job, batch.take(np.array([index])))
        assert numbers(together, index) == pytest.approx(numbers(alone, 0), rel=1e-9, abs=1e-15)


def test_rows_whose_groups_straddle_nodes_differently_keep_their_own_prices() -> None:
    """Three tp ranks on nodes of eight: on 3 GPUs the group sits in a node, on 24 one of eight straddles two."""
    job = job_of("megatron", "dense")
    batch = legal(job, [{"tp": 3, "dp": dp, "micro_batch_size": 1, "recompute": "none", "pp": 1} for dp in (1, 8)])
    together = evaluate(job, batch)
    assert together.terms_s["tp_comm"][1] > together.terms_s["tp_comm"][0] / 8
    for index in range(2):
        assert together.step_time_s[index] == evaluate(job, batch.take(np.array([index]))).step_time_s[0]


@given(JOBS, st.lists(INPUTS, min_size=4, max_size=12))
def test_terms_sum_are_finite_and_lie_in_their_range(which, inputs) -> None:
    job = job_of(*which)
    batch = legal(job, inputs)
    assume(batch is not None)
    found = evaluate(job, batch)
    terms = np.stack([found.terms_s[name] for name in TIME_NAMES])
    assert np.isfinite(terms).all()
    assert (terms >= 0).all()
    assert terms.sum(axis=0) == pytest.approx(found.step_time_s, rel=1e-12)
    assert (found.step_time_low_s > 0).all()
    assert (found.step_time_low_s < found.step_time_s).all()
    assert (found.step_time_s < found.step_time_high_s).all()
    for name in TIME_NAMES:
        assert (found.tiers[name][found.terms_s[name] == 0] == 0).all()


@given(JOBS, st.lists(INPUTS, min_size=4, max_size=12))
def test_the_representative_stages_stand_for_all(which, inputs) -> None:
    """Step time, terms and memory over the slots are those over every stage."""
    job = job_of(*which)
    batch = legal(job, inputs)
    assume(batch is not None)
    few, all_of_them = evaluate(job, batch), evaluate(job, with_all_stages(job, batch))
    assert few.step_time_s == pytest.approx(all_of_them.step_time_s, rel=1e-12)
    assert few.memory.device == pytest.approx(all_of_them.memory.device, rel=1e-12)
    assert few.memory.allocated == pytest.approx(all_of_them.memory.allocated, rel=1e-12)
    assert few.verdict.tolist() == all_of_them.verdict.tolist()


def faster(job: Job, **changes: float) -> Job:
    """The same job where these parts of the cluster are better by a factor."""
    gpu, network = job.cluster.gpu, job.cluster.network
    if "peak" in changes:
        peaks = {name: peak * changes["peak"] for name, peak in gpu.peak_flops_per_s.items()}
        gpu = replace(gpu, peak_flops_per_s=peaks)
    gpu = replace(gpu, memory_bytes_per_s=gpu.memory_bytes_per_s * changes.get("memory_bandwidth", 1.0))
    gpu = replace(gpu, link_bytes_per_s=gpu.link_bytes_per_s * changes.get("link", 1.0))
    gpu = replace(gpu, memory_bytes=gpu.memory_bytes * changes.get("memory", 1.0))
    network = replace(network, nic_wire_bytes_per_s=network.nic_wire_bytes_per_s * changes.get("nic", 1.0))
    link = job.cluster.intra_bytes_per_s * changes.get("link", 1.0)
    cluster = replace(job.cluster, gpu=gpu, network=network, intra_bytes_per_s=link)
    return Job(model=job.model, cluster=cluster, training=job.training, calibration=load_calibration(cluster))


@pytest.mark.parametrize("part", ["link", "nic", "memory_bandwidth", "peak"])
@FASTER
@given(JOBS, st.lists(INPUTS, min_size=6, max_size=12), st.sampled_from([1.1, 1.5, 4.0]))
def test_a_faster_part_never_makes_a_step_slower(part, which, inputs, factor) -> None:
    """One part at a time, whatever then becomes the slowest stage or stops hiding behind it."""
    job = job_of(*which, "toy")
    batch = legal(job, inputs)
    assume(batch is not None)
    before, after = evaluate(job, batch), evaluate(faster(job, **{part: factor}), batch)
    assert (after.step_time_s <= before.step_time_s * (1 + 1e-9)).all()


@FASTER
@given(JOBS, st.lists(INPUTS, min_size=6, max_size=12), st.sampled_from([1.1, 1.5, 4.0]))
def test_more_memory_never_fits_fewer_plans(which, inputs, factor) -> None:
    job = job_of(*which, "toy")
    batch = legal(job, inputs)
    assume(batch is not None)
    before, after = evaluate(job, batch), evaluate(faster(job, memory=factor), batch)
    assert (after.verdict <= before.verdict).all()
    assert after.step_time_s.tolist() == before.step_time_s.tolist()


@given(st.sampled_from(get_args(Framework)), st.sampled_from(sorted(MODELS)), small(1, 2, 3), st.booleans())
def test_one_gpu_is_the_single_gpu_formula(framework, model, micro_batch_size, recompute) -> None:
    """m (layers + ends + accumulation + recomputation - the host's lead over head and loss) + optimizer, and no communication of
    any kind.
    """
    job = job_of(framework, model)
    given = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "micro_batch_size": micro_batch_size, "zero": 0}
    batch = legal(job, [{**given, "recompute": "full" if recompute else "none"}])
    assume(batch is not None)
    found = evaluate(job, batch)
    for name in (
        "tp_comm",
        "cp_comm",
        "ep_comm",
        "pp_comm",
        "pp_bubble",
        "dp_comm",
        "tied_embedding_comm",
        "jitter",
        "offload",
    ):
        assert found.terms_s[name][0] == 0
    layers, ends = layer_costs(job, batch), end_costs(job, batch)
    counts_J = np.array([job.model.layer_kinds.count(kind) for kind in job.model.distinct_kinds], float)
    held = count_parameters(job.model)
    in_layers = np.array([float(sum(held.per_layer))])
    whole = counts_J @ (layers.parts_JPU.sum(axis=1)[:, 0] + recompute * layers.again_JU[:, 0])
    whole += accumulation_s(job, batch, dense=in_layers, expert=np.zeros(1), sharded=np.array([False]))[0]
    whole += (ends.embedding + ends.head + ends.loss)[0]
    if job.has_hf_modules:
        waits_J = layers.parts_JPU[:, LAYER_PARTS.index("launch"), 0]
        more_J = recompute * (layers.again_JU - layers.forward_JU)[:, 0]
        whole -= min(counts_J @ (waits_J + more_J), (ends.head + ends.loss)[0])
    padding = 50257 if framework in ("deepspeed", "torchtitan", "fsdp", "nanotron") else 50304
    total = np.array([float(held.total + (padding - 50257) * 1536)])
    update = optimizer_s(job, batch, dense=total, expert=np.zeros(1))[0]
    assert found.step_time_s[0] == pytest.approx(48 / micro_batch_size * whole + update, rel=1e-9)


@given(JOBS, st.lists(INPUTS, min_size=4, max_size=12))
def test_overlapping_never_exposes_more_than_the_link_takes(which, inputs) -> None:
    """Exposed data-parallel time with overlap is at most that without, and without is the link's own time."""
    job = job_of(*which)
    batch = legal(job, inputs)
    assume(batch is not None)
    off = np.zeros(len(batch), np.bool_)
    exposed = evaluate(job, batch)
    plain = evaluate(job, replace(batch, overlap_grad_reduce=off, overlap_param_gather=off, overlap_tp_comm=off))
    alone = evaluate(job, replace(batch, overlap_p2p=off, overlap_moe_all_to_all=off))
    same = exposed.terms_s["gemm"] == plain.terms_s["gemm"]  # the slowest stage is the same one
    for name in ("dp_comm", "tp_comm"):
        assert (exposed.terms_s[name][same] <= plain.terms_s[name][same] * (1 + 1e-9)).all()
    assert (exposed.terms_s["pp_comm"] <= alone.terms_s["pp_comm"] * (1 + 1e-9)).all()


OVERLAPPED = given(JOBS, st.lists(INPUTS, min_size=4, max_size=12))


def check_overlapped_tensor_parallelism(which, inputs) -> None:
    """What lets a search take the overlap wherever a framework can run it, without trying the alternative."""
    job = job_of(*which)
    batch = legal(job, inputs)
    assume(batch is not None)
    on, off = (replace(batch, overlap_tp_comm=np.full(len(batch), value)) for value in (True, False))
    overlapped, plain = evaluate(job, on), evaluate(job, off)
    assert (overlapped.step_time_s <= plain.step_time_s * (1 + 1e-9)).all()
    for name in MEMORY_NUMBERS:
        assert np.array_equal(getattr(overlapped.memory, name), getattr(plain.memory, name))


@settings(max_examples=60)
@OVERLAPPED
def test_overlapped_tensor_parallelism_is_never_slower_and_needs_no_memory(which, inputs) -> None:
    check_overlapped_tensor_parallelism(which, inputs)


@pytest.mark.proof
@settings(max_examples=1000)
@OVERLAPPED
def test_overlapped_tensor_parallelism_is_never_slower_in_a_thousand_draws(which, inputs) -> None:
    check_overlapped_tensor_parallelism(which, inputs)


@given(JOBS, st.lists(INPUTS, min_size=4, max_size=12))
def test_gpipe_is_never_better_than_1f1b(which, inputs) -> None:
    """What lets a search leave GPipe out wherever 1F1B runs: the same time, and no less memory."""
    job = job_of(*which)
    batch = legal(job, [each for each in inputs if each.get("vpp", 1) == 1])
    assume(batch is not None)
    gpipe, plain = (
        evaluate(job, replace(batch, schedule=np.full(len(batch), value, np.int8)))
        for value in (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
    )
    assert (gpipe.step_time_s == plain.step_time_s).all()
    for name in MEMORY_NUMBERS:
        assert (getattr(gpipe.memory, name) >= getattr(plain.memory, name)).all()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["dense", "moe", "windows"]),
)
def test_stages_partition_the_layers(layers, vpp, kinds) -> None:
    """Every layer of every kind lies on exactly one stage, however uneven the split."""
    assume(sum(layers) > 0)
    assume(len(layers) % vpp == 0)
    sizes = {
        "num_layers": sum(layers),
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    if kinds == "moe":
        sizes["moe"] = {
            "num_experts": 2,
            "top_k": 1,
            "expert_intermediate_size": 64,
            "first_dense_layers": sum(layers) // 3,
        }
    if kinds == "windows":
        types = ["sliding_attention" if index % 3 else "full_attention" for index in range(sum(layers))]
        sizes |= {"sliding_window": 16, "layer_types": types}
    model, layout = resolve_model(sizes), Layout(len(layers) // vpp, vpp, tuple(layers))
    layouts = build_layouts([layout], model=model, all_stages=True)
    expected = [model.layer_kinds.count(kind) for kind in model.distinct_kinds]
    assert layouts.layers_LKJ[0].sum(axis=0).tolist() == expected
    assert layouts.held_LS[0].sum() == model.num_layers
    assert [layout.layers_on_stage(stage) for stage in range(layout.pp)] == layouts.held_LS[0].tolist()
    few = build_layouts([layout], model=model)
    assert (few.layers_LKJ[0].max(axis=0) == layouts.layers_LKJ[0].max(axis=0)).all()
    assert few.largest_chunk_layers_LK[0].max() == layouts.largest_chunk_layers_LK[0].max() == max(layers)
