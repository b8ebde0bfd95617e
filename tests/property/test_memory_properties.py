"""What holds of memory for any legal-looking strategy: sums, batches, slots, monotonicity, the single-GPU case."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import job_of
from cost_models.hardware import load_calibration
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.job import Job
from cost_models.memory import StageMemory, stage_memory
from cost_models.strategies.fields import RARE, Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, build_strategies
from cost_models.terms import MEMORY_NAMES

LAYERS = 24
MODELS = {
    "dense": {"num_layers": LAYERS, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
              "intermediate_size": 4096, "vocab_size": 32000},
    "tied": {"num_layers": LAYERS, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
             "vocab_size": 32000, "gated_mlp": False, "norm": "layernorm", "tie_word_embeddings": True},
    "mixture": {"num_layers": LAYERS, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 16,
                "intermediate_size": 4096, "vocab_size": 32000,
                "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512, "first_dense_layers": 3}},
}  # fmt: skip
FRAMEWORKS = ("megatron", "megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron")
ZEROS = {"megatron": (0, 1, 2, 3), "deepspeed": (0, 1, 2, 3), "torchtitan": (0, 2, 3), "fsdp": (0, 2, 3)}


@lru_cache(maxsize=64)
def job(model: str, framework: str) -> Job:
    return job_of(MODELS[model], framework, num_nodes=16, global_batch_size=1024)


def layout(draw: st.DrawFn, *, uneven: bool) -> Layout:
    pp = draw(st.sampled_from([1, 2, 3, 4, 6]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    stages = pp * vpp
    layers = [LAYERS // stages] * stages
    if uneven and stages > 1:
        for _ in range(3):
            giver, taker = draw(st.integers(0, stages - 1)), draw(st.integers(0, stages - 1))
            if layers[giver] > 1:
                layers[giver] -= 1
                layers[taker] += 1
    return Layout(pp, vpp, tuple(layers))


@st.composite
def cases(draw: st.DrawFn, *, size: int = 6, uneven: bool = False) -> tuple[Job, Strategies]:
    """A job and a batch; degrees need not fit the cluster, only make sense together."""
    framework = draw(st.sampled_from(FRAMEWORKS))
    name = draw(st.sampled_from(sorted(MODELS)))
    table: dict[Layout, int] = {}
    rows = [row(draw, framework, name, table, uneven=uneven) for _ in range(size)]
    found = job(name, framework)
    layouts = build_layouts(list(table), model=found.model)
    columns = {field: [r.get(field, RARE.get(field, 0)) for r in rows] for field in ARRAY_FIELDS}
    return found, build_strategies(columns, layouts=layouts)


def row(draw: st.DrawFn, framework: str, name: str, table: dict[Layout, int], *, uneven: bool) -> dict[str, float]:
    held = layout(draw, uneven=uneven)
    tp, cp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    zero = draw(st.sampled_from(ZEROS.get(framework, (0, 1))))
    schedule = Schedule.INTERLEAVED if held.vpp > 1 else draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE]))
    return {
        "tp": tp, "cp": cp, "dp": dp, "pp": held.pp, "vpp": held.vpp, "layout": table.setdefault(held, len(table)),
        "ep": draw(st.sampled_from([1, dp])) if name == "mixture" else 1, "etp": 1, "zero": zero,
        "zero_shard_size": dp * cp, "zero_param_shard_size": dp * cp, "grad_sync_each": zero >= 2,
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])), "num_micro_batches": held.pp * draw(st.sampled_from([1, 2, 5])),
        "recompute": draw(st.integers(0, 2)), "recompute_method": draw(st.integers(0, 2)),
        "recompute_num_layers": draw(st.integers(1, 3)), "recompute_modules": 0, "schedule": int(schedule),
        "moe_dispatcher": 1,
        "flex_backend": 0,
    }  # fmt: skip


def peaks(found: StageMemory) -> np.ndarray:
    return np.stack([found.allocated, found.reserved, found.device, found.device_low, found.device_high])


@given(cases())
@settings(max_examples=60)
def test_terms_sum_to_the_allocated_bytes_to_the_last_bit(case: tuple[Job, Strategies]) -> None:
    found = stage_memory(*case)
    for index in range(len(case[1])):
        for slot in range(found.allocated_KN.shape[0]):
            terms = found.breakdown(slot, index)
            assert tuple(terms) == MEMORY_NAMES
            assert sum(terms.values()) == found.allocated_KN[slot, index]
            assert min(terms.values()) >= 0


@given(cases())
@settings(max_examples=60)
def test_a_batch_equals_its_rows(case: tuple[Job, Strategies]) -> None:
    model_job, strategies = case
    whole = stage_memory(model_job, strategies)
    for index in range(len(strategies)):
        alone = stage_memory(model_job, strategies.take(np.array([index])))
        assert np.array_equal(peaks(whole)[:, index], peaks(alone)[:, 0])
        assert np.array_equal(whole.allocated_KN[:, index], alone.allocated_KN[:, 0])


@given(cases(uneven=True))
@settings(max_examples=150)
def test_the_slots_find_the_heaviest_of_all_stages(case: tuple[Job, Strategies]) -> None:
    model_job, strategies = case
    every = build_layouts(strategies.layouts.table, model=model_job.model, all_stages=True)
    slots, stages = stage_memory(model_job, strategies), stage_memory(model_job, replace(strategies, layouts=every))
    assert np.array_equal(peaks(slots), peaks(stages))


@given(cases())
@settings(max_examples=60)
def test_numbers_grow_from_allocated_to_reserved_to_device(case: tuple[Job, Strategies]) -> None:
    found = stage_memory(*case)
    assert (found.allocated_KN > 0).all()
    assert (found.device_KN > found.allocated_KN).all()
    assert (found.reserved >= found.allocated).all()
    assert (found.device > found.reserved).all()
    assert (found.device_low < found.device).all()
    assert (found.device < found.device_high).all()
    assert np.array_equal(found.allocated, found.allocated_KN.max(axis=0))


@given(cases())
@settings(max_examples=60)
def test_a_bigger_micro_batch_never_needs_less(case: tuple[Job, Strategies]) -> None:
    model_job, strategies = case
    bigger = replace(strategies, micro_batch_size=2 * strategies.micro_batch_size)
    less, more = stage_memory(model_job, strategies), stage_memory(model_job, bigger)
    assert (peaks(more) >= peaks(less)).all()


@given(cases())
@settings(max_examples=60)
def test_more_micro_batches_never_need_less(case: tuple[Job, Strategies]) -> None:
    model_job, strategies = case
    longer = replace(strategies, num_micro_batches=2 * strategies.num_micro_batches)
    less, more = stage_memory(model_job, strategies), stage_memory(model_job, longer)
    assert (more.allocated >= less.allocated).all()


@given(cases())
@settings(max_examples=60)
def test_full_recomputation_never_saves_more_than_none(case: tuple[Job, Strategies]) -> None:
    model_job, strategies = case
    none = replace(strategies, recompute=np.zeros_like(strategies.recompute))
    full = replace(none, recompute=none.recompute + 2, recompute_method=none.recompute_method * 0)
    kept, dropped = (held_activations(stage_memory(model_job, batch)) for batch in (none, full))
    assert (dropped <= kept).all()


def held_activations(found: StageMemory) -> np.ndarray:
    slots, size = found.allocated_KN.shape
    return np.array([[found.breakdown(k, n)["activations"] for n in range(size)] for k in range(slots)])


@given(cases())
@settings(max_examples=60)
def test_more_zero_never_holds_more_state(case: tuple[Job, Strategies]) -> None:
    """Parameters, main copies and moments; gradients too where they exist at all moments."""
    model_job, strategies = case
    levels = ZEROS.get(model_job.training.framework, (0, 1))
    found = [states(model_job, replace(strategies, zero=np.full_like(strategies.zero, level))) for level in levels]
    for less, more in zip(found[1:], found[:-1], strict=True):
        assert (less <= more * (1 + 1e-12)).all()


def states(model_job: Job, strategies: Strategies) -> np.ndarray:
    memory = stage_memory(model_job, strategies)
    names = ("parameters", "main_parameters", "optimizer_states")
    slots, size = memory.allocated_KN.shape
    rows = [[memory.breakdown(k, n) for n in range(size)] for k in range(slots)]
    return np.array([[sum(terms[name] for name in names) for terms in row_] for row_ in rows])


@given(micro_batch=st.integers(1, 16), layers=st.integers(1, 8))
@settings(max_examples=40)
def test_one_gpu_is_the_textbook_sum(micro_batch: int, layers: int) -> None:
    """Megatron, tp = pp = dp = 1: 18 bytes a parameter, layers times their saved bytes, loss, workspaces.

    At the loss: 139400-like sum per token and layer (10h + 2q + 4kv + 6f + 4a + 8), final norm in and out 4h, and 10
    bytes a logit of native fused cross entropy; 64 MiB of workspace and 2 bytes per cached weight shape.
    """
    h, kv, f, a, vocab = 1024, 512, 4096, 16, 32000
    model = resolve_model({**MODELS["dense"], "num_layers": layers})
    cluster = resolve_cluster({"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 1})
    given_ = {"seq_length": 2048, "global_batch_size": 2 * micro_batch, "precision": "bf16", "framework": "megatron",
              "cross_entropy": "fused", "transformer_impl": "transformer-engine"}  # fmt: skip
    training = resolve_training(given_, model=model, cluster=cluster)
    single = Job(model, cluster, training, load_calibration(cluster))
    ones = dict.fromkeys(ARRAY_FIELDS, (1,))
    off = ("zero", "recompute", "recompute_method", "recompute_modules", "schedule", "layout", "cp_comm",
           "sequence_parallel", "grad_sync_each", "offload_optimizer_fraction", "offload_parameters",
           "offload_activation_layers")  # fmt: skip
    rare = {name: (default,) for name, default in RARE.items()}
    columns = ones | dict.fromkeys(off, (0,)) | rare | {"micro_batch_size": (micro_batch,), "num_micro_batches": (2,)}
    layouts = build_layouts([Layout(1, 1, (layers,))], model=model)
    found = stage_memory(single, build_strategies(columns, layouts=layouts))

    tokens = micro_batch * 2048
    matrices = 2 * h * h + 2 * h * kv + 3 * h * f
    parameters = layers * (matrices + 2 * h) + 2 * vocab * h + h
    saved = layers * (10 * h + 2 * h + 4 * kv + 6 * f + 4 * a + 8) * tokens
    workspace = 64 * 2**20 + 2 * (matrices + vocab * h)
    at_loss = 18 * parameters + saved + 4 * h * tokens + 10 * vocab * tokens + workspace
    in_backward = 18 * parameters + saved + 4 * f * tokens + workspace
    assert found.allocated[0] == pytest.approx(max(at_loss, in_backward), rel=1e-12)
