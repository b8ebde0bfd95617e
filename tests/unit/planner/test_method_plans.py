"""Plans and rows under other ways of keeping replicas together: what they cost, where they are listed, and what refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.schemas import Evaluation
from planner.schemas.plan_response import PlanResponse
from planner.why_not import why_not

Document = dict[str, Any]
ISLANDS = {"count": 2, "link_gbit_per_s": 10}
TRAINING = {"seq_length": 4096, "global_batch_size": 256, "precision": "bf16", "framework": "torchtitan"}
DILOCO = {"method": "diloco", "sync_every": 100}


def row(
    strategy: Document,
    *,
    framework: str = "fsdp",
    cluster: Document | None = None,
    model: str = "llama-3.2-1b",
    **training: Any,
) -> Document:
    return {
        "model": {"preset": model},
        "cluster": {"preset": "dgx-h200", "num_nodes": 2, **(cluster or {})},
        "training": {**TRAINING, "framework": framework, "global_batch_size": 64, **training},
        "strategy": {"micro_batch_size": 1, "recompute": "full", **strategy},
    }


def answer(document: Document) -> Document:
    (found,) = evaluate_rows([document])
    Evaluation.model_validate(found)
    return found


def refusal(document: Document) -> list[str]:
    found = answer(document)
    assert found["verdict"] == "invalid"
    return [reason["code"] for reason in found["reasons"]]


def request(allowed: Document, **changed: Any) -> Document:
    return {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"preset": "dgx-h200", "num_nodes": 4, "islands": ISLANDS},
        "training": TRAINING,
        "constraints": {"allowed": allowed},
        "top_k": 3,
        **changed,
    }


class TestEvaluated:
    def test_diloco_between_two_islands_waits_for_a_hundredth_of_a_synchronisation(self) -> None:
        """8.03e9 fp32 parameters over 1.25e9 bytes a second: 25.70 s, once in 100 steps."""
        cluster = {"islands": ISLANDS}
        found = answer(row({"zero": 3, "sync": DILOCO}, framework="torchtitan", cluster=cluster, model="llama-3.1-8b"))
        exchange = found["exchange"]
        assert (found["mathematics"], exchange["groups"]) == ("changed", 2)
        assert round(exchange["synchronisation_s"], 2) == 25.70
        assert exchange["exposed_s"] == pytest.approx(0.2570, abs=5e-5)
        assert "arXiv 2311.08105" in found["changes"][0]["source"]

    def test_islands_are_priced_like_one_island_but_for_what_crosses(self) -> None:
        """One of two islands by itself, with half of the batch, takes as long as both do between two synchronisations."""
        islands = {"islands": ISLANDS}
        never = {"method": "diloco", "sync_every": 10_000_000}
        both = answer(row({"zero": 3, "sync": never}, framework="torchtitan", cluster=islands))
        one = answer(row({"zero": 3}, framework="torchtitan", cluster={"num_nodes": 1}, global_batch_size=32))
        for term in ("gemm", "attention", "dp_comm", "optimizer"):
            assert both["time_breakdown_s"][term] == pytest.approx(one["time_breakdown_s"][term], rel=1e-3), term

    def test_outer_momentum_and_pseudo_gradients_take_eight_bytes_a_parameter(self) -> None:
        """1,235,814,400 parameters over 8 ranks of an island: 4 + 4 bytes on the device, and a pinned copy of 4 on the host."""
        cluster = {"islands": ISLANDS, "host_memory_gib": 2000}
        plain = answer(row({"zero": 3}, framework="torchtitan", cluster={"num_nodes": 1}, global_batch_size=32))
        own = answer(row({"zero": 3, "sync": DILOCO}, framework="torchtitan", cluster=cluster))
        held = [e["memory"]["stages"][0]["breakdown_bytes"]["optimizer_states"] for e in (plain, own)]
        assert held[1] - held[0] == pytest.approx(8 * 1_235_814_400 / 8, rel=1e-6)
        assert own["memory"]["host_bytes_per_node"] >= 4 * 1_235_814_400

    def test_fragments_behind_steps_cost_nothing(self) -> None:
        fast = {"islands": {"count": 2, "link_gbit_per_s": 400}}
        streamed = {"method": "diloco", "sync_every": 96, "fragments": 8, "delay_steps": 1}
        found = answer(row({"zero": 3, "sync": streamed}, framework="torchtitan", cluster=fast))
        assert found["exchange"]["exposed_s"] == 0.0

    def test_gradients_that_cross_islands_at_every_step_are_warned_of(self) -> None:
        found = answer(row({"zero": 3}, framework="torchtitan", cluster={"islands": ISLANDS}))
        assert (found["mathematics"], found["warnings"]) == ("exact", ["replicas-across-islands"])
        assert found["time_breakdown_s"]["dp_comm"] > 1.0

    def test_only_hooks_of_whole_replicas_know_a_warm_up(self) -> None:
        """20 % of 500,000 steps before 1-bit begins leave a quarter of fp16's volume: 1 / (0.2 + 0.8 / 16) = 4.0."""
        given = {
            "framework": "deepspeed",
            "framework_version": "0.19.6",
            "precision": "fp16",
            "total_tokens": 4096 * 64 * 500_000,
        }
        onebit = {"zero": 0, "compression": {"kind": "onebit", "freeze_steps": 100_000}}
        found = answer(row(onebit, **given))["exchange"]
        assert (found["warm_up_fraction"], round(found["volume_ratio"], 6)) == (0.2, 4.0)

    def test_a_bf16_hook_halves_fp32_gradients_and_is_rounded(self) -> None:
        given = {"grad_reduce_dtype": "fp32", "param_dtype": "fp32"}
        plain, cast = (answer(row({"zero": 0, **each}, **given)) for each in ({}, {"compression": {"kind": "bf16"}}))
        assert (cast["mathematics"], cast["exchange"]["volume_ratio"]) == ("rounded", 2.0)
        assert plain["mathematics"] == "exact"

    def test_parameter_servers_are_exact_and_more_of_them_are_no_slower(self) -> None:
        slow = {"num_nodes": 8, "nic_gbit_per_s": 10}
        steps = [
            answer(
                row(
                    {"zero": 0, "sync": {"method": "parameter-server", "servers": k}},
                    cluster=slow,
                    global_batch_size=256,
                )
            )
            for k in (0, 4, 8)
        ]
        assert {each["mathematics"] for each in steps} == {"exact"}
        times = [each["step_time_s"] for each in steps]
        assert times[0] > times[1] > times[2]

    def test_nothing_is_said_of_an_exchange_where_nothing_is_asked(self) -> None:
        assert "exchange" not in answer(row({"zero": 0}))


class TestRefused:
    @pytest.mark.parametrize(
        ("strategy", "framework", "code"),
        [
            ({"zero": 0, "sync": {"method": "async"}}, "fsdp", "sync-unsupported"),
            ({"zero": 0, "compression": {"kind": "topk"}}, "fsdp", "compression-unsupported"),
            ({"zero": 0, "compression": {"kind": "onebit"}}, "fsdp", "compression-unsupported"),
            ({"zero": 0, "compression": {"kind": "zero-one"}}, "deepspeed", "compression-unsupported"),
            ({"zero": 1, "sync": {"method": "gossip"}}, "megatron", "sync-unsupported"),
            ({"zero": 2, "compression": {"kind": "onebit"}}, "deepspeed", "compression-with-zero"),
            ({"zero": 3, "compression": {"kind": "powersgd"}}, "fsdp", "compression-with-zero"),
            ({"zero": 3, "sync": {"method": "local-sgd", "sync_every": 8}}, "fsdp", "sync-with-zero"),
            ({"zero": 0, "cp": 2, "compression": {"kind": "bf16"}}, "fsdp", "sync-needs-whole-replicas"),
            ({"zero": 3, "sync": DILOCO}, "torchtitan", "sync-needs-islands"),
        ],
    )
    def test_by_a_rule_with_its_source(self, strategy: Document, framework: str, code: str) -> None:
        assert code in refusal(row(strategy, framework=framework))

    def test_signs_left_deepspeed_with_0_19_7(self) -> None:
        """deepspeed/runtime/fp16/onebit is in the source package of 0.19.6 and in neither of the two after it."""
        signs = {"zero": 0, "compression": {"kind": "onebit"}}
        found = {
            version: answer(row(signs, framework="deepspeed", precision="fp16", framework_version=version))
            for version in ("0.18", "0.19.6", "0.19.7", "0.19")
        }
        assert [each["verdict"] for each in found.values()] == ["fits", "fits", "invalid", "invalid"]
        reason = found["0.19"]["reasons"][0]
        assert reason["code"] == "compression-unsupported"
        assert "gone since 0.19.7" in reason["message"]
        assert "deepspeed before 0.19.7" in reason["hint"]

    def test_groups_that_an_island_cuts(self) -> None:
        """dp 1 of 16 GPUs: tp 8 fits a node, but the two stages would lie on different islands."""
        cut = row(
            {"tp": 8, "pp": 2, "zero": 1}, framework="megatron", cluster={"islands": ISLANDS}, model="llama-3.1-8b"
        )
        found = answer(cut)
        assert [reason["code"] for reason in found["reasons"]] == ["island-cut"]
        assert "dp a multiple of islands.count" in found["reasons"][0]["hint"]

    def test_islands_of_unequal_sizes(self) -> None:
        found = answer(row({"zero": 0}, cluster={"num_nodes": 3, "islands": ISLANDS}))
        assert found["reasons"][0]["message"] == "cluster.islands: islands.count 2 does not divide the 3 nodes"

    @pytest.mark.parametrize(
        ("strategy", "at", "message", "remedy"),
        [
            ({"sync": {"method": "diloco"}}, "sync.sync_every", "sync_every is required by diloco", "Add it"),
            (
                {"sync": {"method": "gossip", "sync_every": 3}}, "sync.sync_every",
                "sync_every is 3, but only local-sgd and diloco use it, and method is 'gossip'", "Leave sync_every out.",
            ),
            ({"sync": {**DILOCO, "fragments": 8}}, "sync.fragments", "fragments 8 does not divide sync_every 100", "such as 4"),
            (
                {"sync": {**DILOCO, "fragments": 50, "delay_steps": 2}}, "sync.delay_steps",
                "delay_steps 2 is not below sync_every / fragments = 2", "Lower it to 1 or less",
            ),
            (
                {"compression": {"kind": "fp16", "freeze_steps": 7}}, "compression.freeze_steps",
                "freeze_steps is 7, but only powersgd, onebit and zero-one use it, and kind is 'fp16'", "Leave freeze_steps out.",
            ),
            (
                {"compression": {"kind": "powersgd", "freeze_steps": 1}}, "compression.freeze_steps",
                "freeze_steps is 1; powersgd with error feedback needs 2 or more", "2 or more, or leave it out",
            ),
        ],
    )  # fmt: skip
    def test_fields_that_contradict_each_other(self, strategy: Document, at: str, message: str, remedy: str) -> None:
        """The reason names the field at fault with its value, the rule, and what to do."""
        found = answer(row({"zero": 3, **strategy}, framework="torchtitan", cluster={"islands": ISLANDS}))
        (reason,) = found["reasons"]
        assert reason["message"].startswith(f"strategy.{at}: {message}")
        assert remedy in reason["hint"]

    def test_a_request_that_lists_what_its_framework_does_not_run(self) -> None:
        with pytest.raises(InvalidInputError) as raised:
            plan(request({"compression": [{"kind": "powersgd"}]}))
        (problem,) = raised.value.problems
        assert (problem.pointer, problem.code) == ("/constraints/allowed/compression/0", "compression-unsupported")
        assert "powerSGD_hook.py" in problem.message
        assert problem.hint == "Use fsdp with zero 0."


def test_asynchronous_replicas_of_one_kind_of_gpu_save_less_than_they_wait_for_the_slowest() -> None:
    """Nobody leaves a slow GPU behind for good, so that what is saved is below the jitter of the step, and staleness 1 saves nearly all."""
    asked = {
        "model": {"preset": "llama-3.2-1b"}, "cluster": {"preset": "dgx-h200", "num_nodes": 2}, "include": ["what_if"], "top_k": 1,
        "training": {**TRAINING, "global_batch_size": 16},
    }  # fmt: skip
    found = plan(asked)
    best, (one, three, never) = found["plans"][0], found["asynchrony"]
    jitter = best["evaluation"]["time_breakdown_s"]["jitter"] / best["evaluation"]["step_time_s"]
    assert 0.0 < one["saved_fraction"] <= three["saved_fraction"] <= never["saved_fraction"] < jitter
    assert (one["staleness"], never["staleness"], one["num_workers"]) == (1, None, best["strategy"]["dp"])


class TestListed:
    def test_changed_plans_have_a_list_ranks_and_a_break_even_of_their_own(self) -> None:
        plain = plan(request({}))
        found = plan(request({"sync": [{**DILOCO, "steps_factor": 1.1}, {**DILOCO, "sync_every": 500}]}))
        PlanResponse.model_validate(found)
        assert [each["strategy"] for each in found["plans"]] == [each["strategy"] for each in plain["plans"]]
        assert plain["changed_plans"] == []
        assert [each["rank"] for each in found["changed_plans"]] == [1, 2, 3]
        first = found["changed_plans"][0]
        assert (first["strategy"]["sync"]["sync_every"], first["evaluation"]["mathematics"]) == (500, "changed")
        ratio = found["plans"][0]["evaluation"]["step_time_s"] / first["evaluation"]["step_time_s"]
        assert first["break_even_extra_steps"] == pytest.approx(ratio - 1.0)
        assert all("sync" not in each["strategy"] for each in found["plans"])

    def test_a_changed_plan_is_priced_again_as_it_was_listed(self) -> None:
        found = plan(request({"sync": [DILOCO]}))
        best = found["changed_plans"][0]
        again = answer(
            {
                **{name: found["request"][name] for name in ("model", "cluster", "training")},
                "strategy": best["strategy"],
            }
        )
        assert again["step_time_s"] == pytest.approx(best["evaluation"]["step_time_s"], rel=1e-9)
        assert again["memory"] == best["evaluation"]["memory"]
        asked_why = why_not(found, best["strategy"])
        assert (asked_why["verdict"], asked_why["rank"]) == ("fits", None)
        assert asked_why["step_time_s"] == pytest.approx(best["evaluation"]["step_time_s"], rel=1e-9)

    def test_its_search_finds_what_pricing_everything_finds(self) -> None:
        """Every micro-batch, recomputation and stage of replicas on both islands, priced one by one."""
        small = request({"sync": [DILOCO]}, model={"preset": "llama-3.2-1b"})
        small["constraints"]["fixed"] = {"tp": 1, "pp": 1, "cp": 1, "sequence_parallel": False}
        found = plan(small)["changed_plans"]
        rows = [
            row(
                {"zero": zero, "micro_batch_size": size, "recompute": mode, "sync": DILOCO}, framework="torchtitan",
                cluster={"num_nodes": 4, "islands": ISLANDS}, global_batch_size=256,
            )
            for zero in (0, 2, 3)
            for size in (1, 2, 4, 8)
            for mode in ("none", "selective", "full")
        ]  # fmt: skip
        priced = [each["step_time_s"] for each in evaluate_rows(rows) if each["verdict"] == "fits"]
        assert found[0]["evaluation"]["step_time_s"] == pytest.approx(min(priced), rel=1e-6)

    def test_rounded_plans_stand_beside_exact_ones_in_tie_groups_of_their_own(self) -> None:
        asked = {
            "model": {"preset": "llama-3.2-1b"},
            "cluster": {"preset": "dgx-h200", "num_nodes": 2, "nic_gbit_per_s": 10},
            "training": {**TRAINING, "framework": "fsdp", "grad_reduce_dtype": "fp32", "param_dtype": "fp32", "global_batch_size": 32},
            "constraints": {"allowed": {"compression": [{"kind": "bf16"}, {"kind": "powersgd"}]}, "fixed": {"zero": 0}, "num_nodes": {"min": 2}},
            "top_k": 8,
        }  # fmt: skip
        found = plan(asked)
        kinds = {each["tie_group"]: each["evaluation"]["mathematics"] for each in found["plans"]}
        assert set(kinds.values()) == {"exact", "rounded"}
        assert all(kinds[each["tie_group"]] == each["evaluation"]["mathematics"] for each in found["plans"])
        assert {each["evaluation"]["mathematics"] for each in found["changed_plans"]} == {"changed"}
        times = [each["evaluation"]["step_time_s"] for each in found["plans"]]
        assert times == sorted(times)
        assert found["plans"][0]["evaluation"]["mathematics"] == "rounded"

    def test_changed_plans_are_compared_with_an_exact_one_that_rounded_ones_leave_no_rank(self) -> None:
        """Over 10 Gbit/s quantised gathers win all ranks, so that no exact plan is listed although there is one."""
        both = {"zero_quantized_weights": [False, True], "zero_quantized_gradients": [False, True]}
        offload = {"optimizer_fraction": [1], "optimizer_overlap": ["none", "zenflow"]}
        asked = {
            "model": {"preset": "llama-3.1-8b"}, "cluster": {"preset": "dgx-h100", "num_nodes": 2, "nic_gbit_per_s": 10},
            "training": {**TRAINING, "framework": "deepspeed", "global_batch_size": 64}, "top_k": 1,
            "constraints": {
                "fixed": {"tp": 1, "pp": 1, "cp": 1, "zero": 3, "recompute": "full"}, "allowed": {**both, "offload": offload},
                "num_nodes": {"min": 2},
            },
        }  # fmt: skip
        found = plan(asked)
        exact = plan(
            {**asked, "constraints": {**asked["constraints"], "allowed": {"offload": {"optimizer_fraction": [1]}}}}
        )
        assert [each["evaluation"]["mathematics"] for each in found["plans"]] == ["rounded"]
        (changed,) = found["changed_plans"]
        ratio = exact["plans"][0]["evaluation"]["step_time_s"] / changed["evaluation"]["step_time_s"]
        assert changed["break_even_extra_steps"] == pytest.approx(ratio - 1.0)
