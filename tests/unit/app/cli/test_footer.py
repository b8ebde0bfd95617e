"""The sentences under the table: how many reasons and candidates are listed, which ranks are named, what idle GPUs mean."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.rendering.plan_footer import footer

CODES = (
    "out-of-memory", "heads-not-divisible", "kv-heads-not-divisible", "layers-not-divisible", "vocab-not-divisible",
    "too-many-gpus", "batch-not-divisible", "sequence-not-divisible",
)  # fmt: skip


def ranked(rank: int, *, tie_group: int | None = None, gpus: int = 32, **strategy: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "tie_group": rank if tie_group is None else tie_group,
        "strategy": {"tp": 2, "pp": 4, "dp": 4, "zero": 1, "micro_batch_size": 3} | strategy,
        "evaluation": {
            "num_gpus_used": gpus, "tokens_per_s_per_gpu": 1000.0, "step_time_s": 10.0 + rank,
            "time_breakdown_s": {"gemm": 9.0 + rank, "dp_comm": 1.0}, "provenance": {"calibration": None, "terms": {}},
        },
    }  # fmt: skip


def response_of(plans: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    search = {
        "proof": {"optimal": True, "gap": 0.0}, "space": {"tp": [1, 2]}, "elapsed_s": 0.5,
        "total": 9050, "bounded": 9000, "evaluated": 50, "feasible": 40, "unsearched": 0,
    }  # fmt: skip
    return {
        "request": {"cluster": {"num_nodes": 4, "gpus_per_node": 8}}, "plans": plans, "search": search, "rejected": {},
        "nearest_infeasible": [], **fields,
    }  # fmt: skip


def told(plans: list[dict[str, Any]], *, shown: int | None = None, **fields: Any) -> str:
    return "\n".join(line.plain for line in footer(response_of(plans, **fields), plans[:shown]))


def candidate(number: int) -> dict[str, Any]:
    strategy = {"tp": number, "zero": 2, "micro_batch_size": None if number == 3 else 5}
    reasons = [{"message": f"first of {number}"}, {"message": f"second of {number}"}]
    return {"strategy": strategy, "reasons": reasons, "smallest_change": f"pp={number}"}


def test_what_is_trained_is_said_with_its_share() -> None:
    """41,943,040 of 8,072,204,288 parameters are 0.5196 %; 524,288,000 of 8,000,000,000 are 6.55 %."""
    request = response_of([])["request"]
    plan = ranked(1)
    adapted = {"adapter": {"rank": 16, "target_modules": ["q_proj", "v_proj"], "quantized_base": "nf4"}}
    plan["evaluation"] |= {"trainable_parameters": 41_943_040, "stored_parameters": 8_072_204_288}
    text = told([plan], request={**request, "training": adapted})
    assert (
        "Trains 41.9M of 8.07B parameters (0.52 %): adapters of rank 16 on q_proj, v_proj beside a base in nf4." in text
    )
    plan["evaluation"] |= {"trainable_parameters": 524_288_000, "stored_parameters": 8_000_000_000}
    text = told([plan], request={**request, "training": {"frozen": ["mlp", "norms"]}})
    assert "Trains 524M of 8.00B parameters (6.6 %): mlp, norms frozen. MFU counts" in text
    assert "Trains" not in told([ranked(1)])


def test_six_nearest_candidates_are_listed_with_what_would_make_them_fit() -> None:
    text = told([], nearest_infeasible=[candidate(number) for number in range(2, 10)])
    lines = text.partition("Nearest:\n")[2].splitlines()
    assert len(lines) == 12
    assert lines[:4] == [
        "  tp2 z2 mb5: first of 2; second of 2", "    smallest change: pp=2",
        "  tp3 z2 mb1: first of 3; second of 3", "    smallest change: pp=3",
    ]  # fmt: skip
    assert lines[-1].endswith("pp=7")
    assert "Nearest" not in told([])
    assert "Prices from" not in text


@pytest.mark.parametrize(("plans", "count"), [([ranked(1)], 3), ([], 6)])
def test_three_reasons_are_listed_beside_plans_and_six_where_there_are_none(
    plans: list[dict[str, Any]], count: int
) -> None:
    text = told(plans, rejected={code: 100 - place for place, code in enumerate(CODES)})
    assert [code in text for code in CODES] == [place < count for place in range(len(CODES))]
    assert ("optimal in the searched space" in text) == bool(plans)
    assert ("all of the searched space" in text) == (not plans)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (
            {},
            "Searched tp: 9,050 strategies, 50 priced (40 feasible), 9,000 excluded by bounds, 0.50 s; optimal in the searched space.",
        ),
        ({"evaluated": 40}, "Searched tp: 9,050 strategies, 40 priced, 9,000 excluded by bounds, 0.50 s; optimal"),
        ({"bounded": 0, "unsearched": 9000}, "50 priced (40 feasible), 9,000 not searched, 0.50 s; optimal"),
        ({"proof": {"optimal": False, "gap": 0.125}}, "excluded by bounds, 0.50 s; not proved optimal, gap 12.5%."),
        ({"proof": {"optimal": False, "gap": None}}, "excluded by bounds, 0.50 s; not proved optimal."),
        ({"proof": {"optimal": True, "gap": None}}, "optimal in the searched space."),
        ({"space": {"tp": [2], "pp": []}}, "Searched nothing: 9,050"),
        ({"space": {"tp": [2, 4], "dp": [1, 2, 3], "cp": [1]}}, "Searched tp dp: 9,050"),
        ({"space": {"pool_per_stage": [["a"]], "layers_per_stage": ["even"]}}, "Searched nothing"),
        ({"space": {"pool_per_stage": ["stages on every pool"]}}, "Searched pool_per_stage"),
    ],
)
def test_what_was_searched_and_how_sure_the_answer_is(search: dict[str, Any], words: str) -> None:
    usual = response_of([])["search"]
    assert words in told([ranked(1)], search=usual | search)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([24, 32, 32], "Plan 1 uses 24 of the 32 GPUs and leaves 8 idle: 1,000 tok/s on each GPU in use, 750 over all. For plans"),
        ([24, 16, 32], "750 over all. Plan 2 leaves GPUs idle, too. For plans on all GPUs"),
        ([24, 16, 8], "750 over all. Plans 2 and 3 leave GPUs idle, too. For plans"),
        ([32, 16, 32], "Plan 2 leaves GPUs idle; tok/s counts the whole job."),
        ([32, 16, 8], "Plans 2 and 3 leave GPUs idle; tok/s counts the whole job."),
    ],
)  # fmt: skip
def test_plans_that_leave_gpus_idle_are_named(gpus: list[int], words: str) -> None:
    plans = [ranked(rank, gpus=count) for rank, count in enumerate(gpus, 1)]
    assert words in told(plans)
    cheapest = told(plans, request={"cluster": {"num_nodes": 4, "gpus_per_node": 8}, "objective": "cost"})
    assert words.removesuffix(" For plans on all GPUs").removesuffix(" For plans") in cheapest
    assert "constraints.allow_idle_gpus" not in cheapest


def test_ties_are_looked_for_among_the_first_ten_however_few_are_shown() -> None:
    plans = [ranked(rank, tie_group=1, dp=rank) for rank in range(1, 13)]
    assert "Too close to call: plan 1 and 9 more not shown." in told(plans, shown=1)
    assert "Too close to call: plans 1 and 2, and 8 more not shown." in told(plans, shown=2)
    assert "Too close to call: plans 1-3, and 7 more not shown." in told(plans, shown=3)
    assert "Too close to call: plans 1-12." in told(plans)


def test_ranks_in_a_row_are_shortened_from_three_on() -> None:
    def ties(*groups: int) -> str:
        return told([ranked(rank, tie_group=group) for rank, group in enumerate(groups, 1)])

    assert "Too close to call: plans 1 and 2." in ties(1, 1, 3)
    assert "Too close to call: plans 1-3." in ties(1, 1, 1, 4)
    assert "Too close to call: plans 1, 2 and 4; plans 3 and 5." in ties(1, 1, 2, 1, 2)
    assert "Too close" not in ties(1, 2, 3)


def test_the_pair_to_measure_is_described_where_the_table_does_not_show_it() -> None:
    plans = [ranked(1, tie_group=1), ranked(2, tie_group=1, tp=8, recompute="full", micro_batch_size=None)]
    unseen = "Measuring plans 1 and 2 (tp8 pp4 dp4 z1 mb1 full) first would tell you the most."
    assert unseen in told(plans, shown=1)
    assert "Measuring plans 1 and 2 first" in told(plans)


def test_the_pair_to_measure_is_among_the_first_ten_if_any_of_these_tie() -> None:
    """The twelfth plan of a tie differs most from the first; of the first ten it is the seventh."""
    plans = [ranked(rank, tie_group=1) for rank in range(1, 13)]
    for plan in plans:
        comm_s = {7: 4.0, 12: 9.0}.get(plan["rank"], 1.0)
        plan["evaluation"] |= {"step_time_s": 10.0, "time_breakdown_s": {"gemm": 10.0 - comm_s, "dp_comm": comm_s}}
    assert "Measuring plans 1 and 7 first" in told(plans)
    late = [ranked(rank, tie_group=min(rank, 11)) for rank in range(1, 13)]
    assert "Too close to call: plans 11 and 12. Measuring plans 11 and 12 first" in told(late)
    assert "Too close" not in told(late, shown=10)


def test_prices_and_pools_are_those_of_the_best_plan() -> None:
    plans = [ranked(1, pool_per_stage=["old"], layers_per_stage=[7]), ranked(2)]
    plans[0]["evaluation"]["provenance"] = {"calibration": "mine", "terms": {}}
    assert "Prices from mine." in told(plans)
    assert "Plan 1 puts 1 stage on old (7 layers)." in told(plans)
    assert "puts" not in told(plans[::-1])


def test_near_copies_are_counted_with_what_sets_them_apart() -> None:
    """Plan 3 differs from 1 in virtual stages and recomputation, 4 in virtual stages alone, 5 from 2 in nothing that the table has."""
    plans = [ranked(1), ranked(2), ranked(3, vpp=2, recompute="full"), ranked(4, vpp=4), ranked(5)]
    for each, leader in zip(plans, (None, None, 1, 1, 2), strict=True):
        each["folded_under"] = leader
    (line,) = [line for line in told(plans).splitlines() if "near-copies" in line]
    assert line.startswith("3 near-copies of plans above (other ")
    assert set(line.partition("(other ")[2].partition(";")[0].split(", ")) == {"vpp", "recompute"}
    assert line.endswith("; as fast to within 1 %) are left out.")
    (line,) = [line for line in told([plans[1], plans[4]]).splitlines() if "near-copy" in line]
    assert line == "A near-copy of a plan above (other details; as fast to within 1 %) is left out."
    assert "near-cop" not in told(plans[:2])


def test_the_time_of_all_tokens_is_told_where_the_request_names_them() -> None:
    """32 GPUs at 1,000 tokens/s each need 86.4e9 / 32e3 = 2.7e6 s for 86.4 billion tokens, which are 31.25 days, 31.2 in three digits."""
    request = response_of([])["request"]
    told_of = {tokens: told([ranked(1)], request={**request, "training": {"total_tokens": tokens}})
               for tokens in (86.4e9, 2.88e9)}  # fmt: skip
    assert "Plan 1 takes 31.2 days for 86,400,000,000 tokens, if nothing interrupts it." in told_of[86.4e9]
    assert "Plan 1 takes 25.0 hours for 2,880,000,000 tokens" in told_of[2.88e9]
    assert "Plan 1 takes" not in told([ranked(1)])


def test_the_time_of_all_tokens_holds_what_failures_take() -> None:
    """31.25 days of training at a goodput of 0.8 are 39.06 days."""
    plan = ranked(1)
    plan["evaluation"]["run"] = {
        "gpu_hours": 30_000.0,
        "cost": 60_000.0,
        "energy_kwh": 21_000.0,
        "co2_kg": None,
        "goodput": 0.8,
    }
    request = {**response_of([])["request"], "training": {"total_tokens": 86.4e9}}
    assert (
        "Plan 1 takes 39.1 days for 86,400,000,000 tokens at a goodput of 80.0%: 30,000 GPU-hours, a cost of 60,000, 21,000 kWh."
        in told([plan], request=request)
    )


def test_the_next_plan_is_described_where_the_table_does_not_show_it() -> None:
    plans = [ranked(1) | {"against_next": "3% faster than plan 2"}, ranked(2, cp=2)]
    assert "Plan 1 is 3% faster than plan 2. Plan 2, which is not shown, is tp2 pp4 dp4 cp2 z1 mb3 none." in told(
        plans, shown=1
    )
    assert "Plan 1 is 3% faster than plan 2.\n" in told(plans)
    assert "Plan 1 is 3% faster than plan 2.\n" in told(plans[:1])
    assert "Plan 2, which is not shown" in told([*plans, ranked(3)], shown=1)


def test_layers_of_virtual_stages_count_for_the_pool_of_their_stage() -> None:
    """Three stages with two virtual ones each: 3 + 1, 2 + 5 and 4 + 6 layers."""
    plans = [ranked(1, pool_per_stage=["old", "new", "new"], layers_per_stage=[3, 2, 4, 1, 5, 6])]
    assert "Plan 1 puts 1 stage on old (4 layers), then 2 stages on new (7+10 layers)." in told(plans)
    assert "puts" not in told([ranked(1)])


def test_what_if_answers_name_the_field_and_its_value() -> None:
    answer = {
        "field": "training.seq_length", "value": 8192, "plan": {"tp": 2, "pp": 3}, "num_gpus": 6, "peak_device_bytes": 1.5 * 2**30,
        "step_time_s": 2.5, "tokens_per_s_per_gpu": 1234.5, "mfu": 0.25,
    }  # fmt: skip
    text = told([ranked(1)], what_if=[answer])
    assert "  seq_length 8192: 2.50 s, 1,234 tok/s/GPU, MFU 25.0%, 6 GPUs, 1.5 GiB/GPU, tp2 pp3 z0" in text
    assert "Prices from nominal data sheets." in text


@pytest.mark.parametrize(
    ("corrections", "factors", "warnings", "said"),
    [
        ("auto", {}, [], ""),
        ({"corrections": []}, {"gemm": 1.25}, [], "Corrected by measured runs: gemm x 1.25."),
        ({"corrections": []}, {}, [], "Not corrected by measured runs: no correction is kept and switched on."),
        ({"corrections": []}, {}, ["corrections-of-another-scope"], ""),
    ],
)
def test_whoever_gives_corrections_is_told_what_became_of_them(
    corrections: Any, factors: dict[str, float], warnings: list[str], said: str
) -> None:
    plan = ranked(1)
    plan["evaluation"]["provenance"]["corrections"] = factors
    request = response_of([])["request"] | {"corrections": corrections}
    lines = told([plan], request=request, warnings=warnings).splitlines()
    assert [line for line in lines if "orrected" in line] == [said] * bool(said)
