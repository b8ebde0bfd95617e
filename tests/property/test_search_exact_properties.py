"""The search against brute force: everything expanded, every rule and cost evaluated, all sorted by the same key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.evaluate import Verdict, evaluate
from cost_models.strategies.fields import MoeDispatcher, Schedule
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies
from planner.request.job import resolve_job
from planner.rules import RULES, rule_codes, violations
from planner.rules.rule import rule_fields
from planner.schemas import PlanRequest
from planner.search import exhaustive
from planner.search.base_rows import BASE_CODES, base_codes
from planner.search.bounds import build_bounds, floors_s
from planner.search.exhaustive import Exhaustive
from planner.search.found import Found
from planner.search.leanest import least_memory
from planner.search.objective import build_goal, ranked_order, rounded
from planner.search.pareto import pareto_front
from planner.strategies.axes import build_space
from planner.strategies.space import Space

LARGEST = 30_000
"""Strategies of the largest problem: all of them are evaluated."""
VERSIONS = {"torchtitan": ("0.2", "0.3"), "megatron": ("0.16", "0.19")}
"""Releases that know other optimizers, or lay their buffers out otherwise."""
BASE_FIELDS = frozenset(
    {"tp", "pp", "cp", "dp", "ep", "etp", "micro_batch_size", "num_micro_batches", "sequence_parallel"}
)


def of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def models(draw) -> dict[str, Any]:
    heads = draw(of(4, 6, 12))
    hidden, layers = 128 * heads, draw(of(4, 6, 7, 8, 12))
    model = {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": draw(of(heads, heads // 2)), "intermediate_size": 4 * hidden,
        "vocab_size": draw(of(1000, 32000, 128000)), "tie_word_embeddings": draw(st.booleans()),
    }  # fmt: skip
    kind = draw(of("dense", "dense", "moe", "alternating", "windows", "hybrid", "tower"))
    if kind in ("moe", "alternating"):
        model["moe"] = {"num_experts": draw(of(4, 6)), "top_k": 2, "expert_intermediate_size": 2 * hidden}
    if kind == "alternating":
        model["moe"]["moe_layer_freq"] = 2
    if kind == "tower":
        tower = {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 6,
            "intermediate_size": 512,
            "image_size": 64,
            "patch_size": 4,
        }
        model["multimodal"] = {"model_type": "llava", "vision_config": tower}
    if kind == "hybrid":
        types = ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(layers)]
        model |= {
            "layer_types": types,
            "recurrent": {"kind": "mamba2", "num_heads": 8, "num_groups": 2, "head_dim": 64},
        }
    if kind == "windows":
        types = ["full_attention" if index % 3 == 2 else "sliding_attention" for index in range(layers)]
        model |= {"sliding_window": 128, "layer_types": types}
    return model


@st.composite
def constraints(draw, layers: int) -> dict[str, Any]:
    fixed = draw(of({}, {"tp": 2}, {"cp": 1}, {"tp": 1, "cp": 1}, {"micro_batch_size": 1}))
    allowed = draw(
        of(
            {}, {}, {"pp": [1, 2, 4]}, {"zero": [1, 0]}, {"recompute": ["none", "full", "selective"]},
            {"recompute": ["full", "none"], "recompute_num_layers": [3, 1]}, {"vpp": [3, 1, 2]}, {"cp_comm": ["a2a", "p2p"]},
            {"overlap": {"tp_comm": [False, True]}}, {"overlap": {"grad_reduce": [False, True], "moe_all_to_all": [False, True]}},
            {"moe_dispatcher": ["allgather", "alltoall"]}, {"offload": {"optimizer_fraction": [0.0, 1.0]}},
            {"schedule": ["1f1b", "interleaved"]}, {"schedule": ["gpipe", "zb-h1"]}, {"zero_shard_size": [4, 1, 2]},
            {"pp": [2], "layers_per_stage": [[layers - 1, 1], [1, layers - 1], [layers // 2, layers - layers // 2]]},
        )
    )  # fmt: skip
    return {
        "fixed": fixed,
        "allowed": allowed,
        "allow_at_risk": draw(st.booleans()),
        "memory_headroom_fraction": draw(of(0.03, 0.2)),
        "allow_idle_gpus": draw(st.booleans()),
    }


@st.composite
def requests(draw) -> dict[str, Any]:
    """A small problem: up to 24 GPUs, often too little memory."""
    model = draw(models())
    gpu = {
        "name": "toy", "memory_gib": draw(of(6, 10, 16, 40)), "peak_tflops": {"bf16": draw(of(100, 1000))},
        "memory_bandwidth_gb_per_s": 2000, "nvlink_gb_per_s": draw(of(50, 450)),
    }  # fmt: skip
    objective = draw(of("step_time", "step_time", "cost", "fewest_gpus"))
    framework = draw(of("megatron", "megatron", "torchtitan", "fsdp", "deepspeed", "nanotron", "megatron-deepspeed"))
    seen = framework in ("megatron", "fsdp", "deepspeed") and "multimodal" in model
    towers = {"vision": draw(of("frozen", "trained")), "images_per_sequence": draw(of(0.5, 2.0))} if seen else None
    return {
        "model": model,
        "cluster": {"gpu": gpu, "num_nodes": draw(of(1, 2, 3)), "gpus_per_node": draw(of(2, 4, 6, 8))},
        "training": {
            "seq_length": draw(of(512, 1536)), "global_batch_size": draw(of(8, 12, 24)), "precision": "bf16",
            "framework": framework,
            **({"framework_version": draw(of(*VERSIONS[framework]))} if framework in VERSIONS else {}),
            # Some of them know not every ZeRO stage, and some frameworks have not all of them.
            "optimizer": draw(of("adam", "adam", "adam", "muon", "adafactor", "lion", "adam-4bit", "sgd-momentum")),
            "towers": towers,
        },
        "constraints": draw(constraints(model["num_layers"])),
        "objective": objective,
        "targets": {"min_tokens_per_s": draw(of(1e3, 1e5))} if objective == "fewest_gpus" else {},
        "top_k": draw(of(1, 3, 10, 40)),
    }  # fmt: skip


def built(request: dict[str, Any]) -> tuple[PlanRequest, Space]:
    asked = PlanRequest.model_validate(request)
    space = build_space(resolve_job(request), asked.constraints)
    assume(0 < space.mesh_sizes.sum() <= LARGEST)
    return asked, space


def searched(asked: PlanRequest, space: Space, **options: Any) -> Found:
    return Exhaustive(
        space,
        goal=build_goal(space.job, asked.objective, asked.targets),
        top_k=asked.top_k,
        headroom_fraction=asked.constraints.memory_headroom_fraction,
        allow_at_risk=asked.constraints.allow_at_risk,
        **options,
    ).run()


def fields(rows: Strategies | None) -> list[tuple[Any, ...]]:
    if rows is None:
        return []
    return list(zip(*(getattr(rows, name).tolist() for name in ARRAY_FIELDS), strict=True))


def runs(rows: Strategies) -> list[tuple[Any, ...]]:
    """What each strategy is when it runs: without the fields that say nothing where there is no such group of ranks."""
    alone = {
        "cp_comm": rows.cp == 1,
        "moe_dispatcher": rows.ep * rows.etp == 1,
        "flex_backend": (rows.ep * rows.etp == 1) | (rows.moe_dispatcher != MoeDispatcher.FLEX),
    }
    columns = (np.where(alone.get(name, False), -1, getattr(rows, name)).tolist() for name in ARRAY_FIELDS)
    return list(zip(*columns, strict=True))


def unasked(space: Space, rows: Strategies) -> np.ndarray:
    """What a search that tries knobs of its own accord leaves out unsaid: what cannot run, and an overlap of one micro-batch."""
    found, left_out = violations(space.job, rows), np.zeros(len(rows), np.bool_)
    if "overlap_moe_all_to_all" in space.searched_knobs:
        refused = ~found.only(frozenset({"overlap-unsupported"})).legal | (rows.num_micro_batches == 1)
        left_out |= rows.overlap_moe_all_to_all & refused
    if "moe_dispatcher" in space.searched_knobs:
        left_out |= ~found.only(frozenset({"dispatcher-unsupported"})).legal
    if "schedule" not in space.chosen:
        left_out |= ~found.only(frozenset({"schedule-unsupported"})).legal
        # 1F1B takes as long as GPipe and holds no more (`test_gpipe_is_never_better_than_1f1b`).
        left_out |= (rows.schedule == Schedule.GPIPE) & (rows.num_micro_batches >= rows.pp)
        left_out |= (rows.schedule == Schedule.DUALPIPE_V) & (rows.num_micro_batches < 2 * rows.pp)
    return left_out


class BruteForce:
    """Every strategy of a space, judged and priced one and all."""

    def __init__(self, asked: PlanRequest, space: Space) -> None:
        job, limits = space.job, asked.constraints
        rows = space.expand(space.base()).rows
        first = {run: at for at, run in reversed(list(enumerate(runs(rows))))}
        rows = rows.take(np.array(sorted(first.values())))
        rows = rows.take(~unasked(space, rows))
        found = violations(job, rows)
        self.size = len(rows)
        self.broken = Counter(rule.code for index in np.flatnonzero(~found.legal) for rule in set(found.broken(index)))
        rows = rows.take(found.legal)
        costs = evaluate(job, rows, headroom_fraction=limits.memory_headroom_fraction) if len(rows) else None
        verdict = np.zeros(0, np.int8) if costs is None else costs.verdict
        self.num_fitting = int((verdict == Verdict.FITS).sum())
        self.best, self.step_s = rows.take(np.zeros(len(rows), np.bool_)), np.zeros(0)
        if costs is None:
            return
        goal = build_goal(job, asked.objective, asked.targets)
        kept = (verdict == Verdict.FITS) | (limits.allow_at_risk & (verdict == Verdict.AT_RISK))
        kept &= goal.reached(costs.step_time_s)
        rows, step_s = rows.take(kept), costs.step_time_s[kept]
        order = ranked_order(goal.value(rows, step_s), rows, last=verdict[kept] == Verdict.AT_RISK)[: asked.top_k]
        self.best, self.step_s = rows.take(order), step_s[order]


@settings(max_examples=60)
@given(requests())
def test_the_search_finds_what_brute_force_finds(request) -> None:
    """The same strategies in the same order, and a proof that they are the best."""
    asked, space = built(request)
    brute, found = BruteForce(asked, space), searched(asked, space)
    assert fields(found.best) == fields(brute.best)
    assert found.optimal
    if len(brute.best):
        assert found.lower_bound_s == pytest.approx(brute.step_s.min(), rel=1e-12)
    else:
        assert found.lower_bound_s is None


@settings(max_examples=30)
@given(requests())
def test_a_search_in_blocks_finds_the_same(request) -> None:
    """Blocks of a few base rows: another order, other bounds, the same plans and the same proof."""
    asked, space = built(request)
    whole = searched(asked, space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exhaustive, "MOST_BASE_ROWS", 5)
        parts = searched(asked, space)
    assert fields(parts.best) == fields(whole.best)
    assert (parts.optimal, parts.lower_bound_s) == (True, whole.lower_bound_s)
    assert parts.total == whole.total == parts.feasible + parts.bounded + sum(parts.rejected.values())


@settings(max_examples=30)
@given(requests())
def test_every_strategy_is_feasible_rejected_or_bounded_once(request) -> None:
    """But for repetitions, which count as bounded. Every reason given is a true one."""
    asked, space = built(request)
    brute, found = BruteForce(asked, space), searched(asked, space)
    assert found.total == found.feasible + found.bounded + sum(found.rejected.values())
    assert found.total == len(space.expand(space.base()).rows)
    assert len(fields(found.best)) <= found.feasible <= found.evaluated
    missed = found.evaluated - found.feasible
    assert missed <= found.rejected["misses-target"]
    assert found.evaluated + found.bounded <= found.total
    repeated = found.total - brute.size
    for code in set(found.rejected) & set(rule_codes()):
        assert 0 <= found.rejected[code] <= brute.broken[code] + repeated


@settings(max_examples=80)
@given(requests())
def test_no_strategy_is_faster_than_its_bounds(request) -> None:
    """Of the base row, which holds for all that it stands for, and of each pair by itself."""
    _, space = built(request)
    base = space.base()
    bounds, pairs = build_bounds(space, base), space.pairs(base)
    of_pair, of_base = bounds.paired_s(space, pairs), bounds.step_s[pairs.origin]
    assert (of_base <= of_pair * (1 + 1e-12)).all()
    of_mesh = np.repeat(floors_s(space), space.degrees.sizes)
    assert (of_mesh <= bounds.step_s * (1 + 1e-12)).all()
    expansion = space.expand(base)
    expansion = expansion.take(np.flatnonzero(violations(space.job, expansion.rows).legal))
    rows = expansion.rows
    assume(len(rows))
    step_s = evaluate(space.job, rows).step_time_s
    assert (bounds.paired_s(space, expansion.pairs) <= step_s * (1 + 1e-9)).all()


@settings(max_examples=60)
@given(requests())
def test_no_strategy_needs_less_memory_than_its_bounds(request) -> None:
    """Of the base row and of the pair that shards over all replicas, which holds for its groups of fewer ranks too."""
    _, space = built(request)
    base, pairs = space.base(), space.every_pair(space.base())
    least, rows = least_memory(space, base), space.expand(base, pairs).rows
    legal = np.flatnonzero(violations(space.job, rows).legal)
    device = evaluate(space.job, rows.take(legal)).memory.device if len(legal) else np.zeros(0)
    assert (least.of_rows[pairs.origin] <= least.of_pairs(pairs)).all()
    assert (least.of_pairs(pairs)[legal] <= device * (1 + 1e-12)).all()


@settings(max_examples=30)
@given(requests())
def test_the_front_is_what_nothing_in_the_space_beats(request) -> None:
    asked, space = built(request)
    goal, headroom = build_goal(space.job, asked.objective, asked.targets), asked.constraints.memory_headroom_fraction
    front = pareto_front(space, goal=goal, headroom_fraction=headroom, seed=0)
    rows = space.expand(space.base()).rows
    rows = rows.take(violations(space.job, rows).legal & ~unasked(space, rows))
    assume(len(rows))
    costs = evaluate(space.job, rows, headroom_fraction=headroom)
    kept = (costs.verdict == Verdict.FITS) & goal.reached(costs.step_time_s)
    every = np.column_stack([rounded(costs.step_time_s), costs.memory.device, rows.world])[kept]
    points = np.column_stack([rounded(front.objectives_ND[:, 0]), front.objectives_ND[:, 1:3]])
    no_worse = (every[None] <= points[:, None]).all(axis=2)
    assert not (no_worse & (every[None] < points[:, None]).any(axis=2)).any()
    assert (no_worse.any(axis=1)).all()
    assert (points[None] <= every[:, None]).all(axis=2).any(axis=1).all()


@settings(max_examples=25)
@given(requests())
def test_equal_requests_have_equal_answers(request) -> None:
    one, other = (searched(*built(request)) for _ in range(2))
    assert fields(one.best) == fields(other.best)
    assert fields(one.nearest) == fields(other.nearest)
    assert (one.rejected, one.evaluated, one.bounded) == (other.rejected, other.evaluated, other.bounded)


@settings(max_examples=25)
@given(requests())
def test_every_ranked_strategy_is_legal_and_fits(request) -> None:
    asked, space = built(request)
    found = searched(asked, space)
    assume(found.best is not None)
    assert violations(space.job, found.best).legal.all()
    costs = evaluate(space.job, found.best, headroom_fraction=asked.constraints.memory_headroom_fraction)
    assert (costs.verdict <= (Verdict.AT_RISK if asked.constraints.allow_at_risk else Verdict.FITS)).all()
    assert sorted(costs.verdict.tolist()) == costs.verdict.tolist()  # risky ones last
    assert np.sum(list(costs.terms_s.values()), axis=0) == pytest.approx(costs.step_time_s)
    assert sum(costs.memory.breakdown(0, 0).values()) == pytest.approx(costs.memory.allocated_KN[0, 0])


@settings(max_examples=40)
@given(requests(), st.integers(0, 3))
def test_a_stopped_search_is_honest(request, chunks) -> None:
    """It returns the best so far, claims no more than that, and its bound holds for what the whole search finds."""
    asked, space = built(request)
    answers = iter([False] * chunks)
    found = searched(asked, space, should_stop=lambda: next(answers, True))
    whole = searched(asked, space)
    if found.optimal:
        assert found.stopped is None
        assert fields(found.best) == fields(whole.best)
        return
    assert found.stopped == "cancelled"
    assert 0 < found.unsearched <= found.total
    assert found.total == found.feasible + found.bounded + sum(found.rejected.values()) + found.unsearched
    assert len(fields(found.best)) <= asked.top_k
    if found.best is not None:
        costs = evaluate(space.job, found.best, headroom_fraction=asked.constraints.memory_headroom_fraction)
        assert violations(space.job, found.best).legal.all()
        assert (costs.verdict != Verdict.OOM).all()
        assert found.lower_bound_s <= costs.step_time_s.min()
    if whole.best is not None:
        best_s = evaluate(space.job, whole.best).step_time_s.min()
        assert found.lower_bound_s <= best_s * (1 + 1e-9)


def test_time_runs_out_before_the_first_chunk() -> None:
    request = {
        "model": {"preset": "llama-3.2-1b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    }
    asked, space = (
        PlanRequest.model_validate(request),
        build_space(resolve_job(request), PlanRequest.model_validate(request).constraints),
    )
    found = searched(asked, space, time_limit_s=1e-9)
    assert (found.stopped, found.optimal, found.best, found.evaluated) == ("time", False, None, 0)
    assert found.lower_bound_s <= searched(asked, space).lower_bound_s


def test_progress_is_told_between_chunks() -> None:
    request = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 256, "precision": "bf16", "framework": "megatron"},
    }
    asked = PlanRequest.model_validate(request)
    seen = []
    found = searched(asked, build_space(resolve_job(request), asked.constraints), on_progress=seen.append)
    assert seen
    assert [progress.evaluated for progress in seen] == sorted(progress.evaluated for progress in seen)
    assert seen[-1].evaluated == found.evaluated
    assert seen[-1].best_s == pytest.approx(found.lower_bound_s)
    assert all(progress.best_s is None or progress.best_s >= seen[-1].best_s for progress in seen)


@settings(max_examples=60)
@given(requests())
def test_base_codes_read_base_fields_alone(request) -> None:
    """A base row that breaks such a rule loses every expansion, so no such rule may look at what an expansion chooses."""
    _, space = built(request)
    rows = space.expand(space.base()).rows
    for rule in RULES:
        if rule.code in base_codes(space.job) and rule.applies(space.job):
            assert rule_fields(rule, space.job, rows) <= BASE_FIELDS, rule.code


def test_base_codes_exist() -> None:
    assert set(rule_codes()) >= BASE_CODES


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 15, 40])
def test_a_space_of_many_batches_loses_no_plan_at_the_edge_of_the_k_best(top_k) -> None:
    """56,740 strategies of 554 base rows, of which 1,129 fit: the first batch's few plans are among the best, so a search that
    pruned by them before it knows k of them would lose the k-th.
    """
    gpu = {
        "name": "toy", "memory_gib": 7, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 2000,
        "nvlink_gb_per_s": 200,
    }  # fmt: skip
    request = {
        "model": {
            "num_layers": 24, "hidden_size": 1536, "num_attention_heads": 12, "intermediate_size": 6144,
            "vocab_size": 32000,
        },
        "cluster": {"gpu": gpu, "num_nodes": 3, "gpus_per_node": 8},
        "training": {"seq_length": 1536, "global_batch_size": 48, "precision": "bf16", "framework": "megatron"},
        "constraints": {"fixed": {"cp": 1}},
        "top_k": top_k,
    }  # fmt: skip
    asked = PlanRequest.model_validate(request)
    space = build_space(resolve_job(request), asked.constraints)
    brute, found = BruteForce(asked, space), searched(asked, space)
    assert len(space.base()) > 4 * exhaustive.FIRST_CHUNK
    assert brute.size > 4 * exhaustive.FIRST_ROWS
    assert fields(found.best) == fields(brute.best)
    assert len(fields(found.best)) == top_k
    assert found.optimal
