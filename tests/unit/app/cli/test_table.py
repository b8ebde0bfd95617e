"""The table: which columns a width shows, how numbers are written, what the footer tells."""

from __future__ import annotations

import copy
import re
from itertools import takewhile
from typing import Any

import pytest

from app.cli.rendering.plan_table import print_response
from app.cli.rendering.plan_table import title as title_of
from app.plan_cells import seconds

GIB = 2**30


def ranked(rank: int, *, tie_group: int, **strategy: Any) -> dict[str, Any]:
    """A plan of 10 s per step: 7 of matrix multiplications, 2 of exposed communication, 1 of bubble."""
    return {
        "rank": rank,
        "tie_group": tie_group,
        "strategy": {"tp": 4, "pp": 2, "dp": 16, "cp": 1, "ep": 1, "vpp": 5, "zero": 1, "micro_batch_size": 2}
        | {"recompute": "full", "recompute_num_layers": 3}
        | strategy,
        "evaluation": {
            "verdict": "fits",
            "num_gpus_used": 128,
            "step_time_s": 10.0,
            "step_time_range_s": [9.5, 11.25],
            "tokens_per_s_per_gpu": 3276.8,
            "mfu": 0.4321,
            "time_breakdown_s": {"gemm": 7.0, "tp_comm": 1.5, "dp_comm": 0.5, "pp_bubble": 1.0, "offload": 0.0},
            "memory": {"peak_device_bytes": 60.25 * GIB, "capacity_bytes": 79.1 * GIB},
            "provenance": {
                "calibration": "reference-h100",
                "terms": {
                    "gemm": "interpolated",
                    "tp_comm": "measured",
                    "dp_comm": "extrapolated",
                    "pp_bubble": "measured",
                    "offload": "nominal",
                },
            },
        },
    }


RESPONSE: dict[str, Any] = {
    "request": {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"gpu": {"name": "H100-SXM-80GB"}, "num_nodes": 16, "gpus_per_node": 8},
        "training": {
            "seq_length": 8192,
            "global_batch_size": 512,
            "precision": "bf16",
            "framework": "megatron",
            "framework_version": "0.16",
        },
    },
    "plans": [ranked(1, tie_group=1), ranked(2, tie_group=1, tp=2), ranked(3, tie_group=2)],
    "search": {
        "methods": ["exhaustive"],
        "space": {"tp": [1, 2, 4], "pp": [1, 2], "cp": [1]},
        "total": 4_000,
        "bounded": 635,
        "evaluated": 345,
        "feasible": 345,
        "unsearched": 0,
        "elapsed_s": 0.25,
        "proof": {"optimal": True, "gap": 0.0, "lower_bound_s": 10.0},
    },
    "rejected": {"heads-not-divisible": 20, "out-of-memory": 3000},
    "nearest_infeasible": [],
    "inexpressible_best": None,
    "warnings": ["network latency was not given"],
}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def show(response: dict[str, Any], *, width: int | str, quiet: bool = False) -> tuple[str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        print_response(response, quiet=quiet)
        return capsys.readouterr()

    return show


def row_of(text: str, rank: int) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [str(rank)])


@pytest.mark.parametrize("width", [80, 96, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(printed: Any, width: int) -> None:
    out, _ = printed(RESPONSE, width=width)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out


def test_wide_table_shows_every_column(printed: Any) -> None:
    """Bubble 1/10 = 10 %, communication (1.5 + 0.5)/10 = 20 %; offload takes no time, so its tier is not the worst."""
    out, _ = printed(RESPONSE, width=160)
    shown = row_of(out, 1)
    assert shown == [
        *("1", "4", "2", "16", "1", "1", "5", "1", "2", "full", "3", "10.0", "9.50-11.2"),
        *("3,277", "43.2%", "60.2/79.1", "10.0%", "20.0%", "extrapolated"),
    ]


def test_pipeline_sends_are_communication_and_no_bubble(printed: Any) -> None:
    """Of 12 s: 1 s of bubble is 8.3 %; 2.4 s of sends with 1.5 + 0.5 s of other communication, 36.7 %; offload is neither."""
    plan = ranked(1, tie_group=1)
    plan["evaluation"] |= {"step_time_s": 12.0}
    plan["evaluation"]["time_breakdown_s"] |= {"pp_comm": 2.4, "gemm": 6.2, "offload": 0.4}
    plan["evaluation"]["provenance"]["terms"] |= {"pp_comm": "measured"}
    out, _ = printed(RESPONSE | {"plans": [plan]}, width=160)
    assert row_of(out, 1)[-3:] == ["8.3%", "36.7%", "nominal"]


@pytest.mark.parametrize("term", ["tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "tied_embedding_comm"])
def test_every_kind_of_communication_counts_once(printed: Any, term: str) -> None:
    plan = ranked(1, tie_group=1)
    plan["evaluation"]["time_breakdown_s"] = {"gemm": 5.5, term: 3.5, "pp_bubble": 1.0}
    plan["evaluation"]["provenance"]["terms"] = dict.fromkeys(("gemm", term, "pp_bubble"), "measured")
    out, _ = printed(RESPONSE | {"plans": [plan]}, width=160)
    assert row_of(out, 1)[-3:] == ["10.0%", "35.0%", "measured"]


def test_narrow_table_folds_the_degrees_and_says_what_is_missing(printed: Any) -> None:
    out, _ = printed(RESPONSE, width=80)
    assert "tp4 pp2 dp16 vpp5 z1" in out
    assert "widen the terminal" in out


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (128, ()),  # with two blanks between columns, which end at 126
        (127, ()),
        (110, ()),  # with one
        (109, ("80 % range",)),
        (99, ("80 % range",)),
        (98, ("80 % range", "worst tier")),
        (86, ("80 % range", "worst tier")),
        (85, ("80 % range", "worst tier", "vpp")),  # the degrees share one column
        (83, ("80 % range", "worst tier", "vpp")),
        (82, ("80 % range", "worst tier", "vpp", "bubble", "comm")),
        (70, ("80 % range", "worst tier", "vpp", "bubble", "comm")),
        (69, ("80 % range", "worst tier", "vpp", "bubble", "comm", "MFU")),
        (64, ("80 % range", "worst tier", "vpp", "bubble", "comm", "MFU")),
        (63, ("80 % range", "worst tier", "vpp", "bubble", "comm", "MFU", "tok/s/GPU")),
        (54, ("80 % range", "worst tier", "vpp", "bubble", "comm", "MFU", "tok/s/GPU")),
    ],
)
def test_a_column_goes_where_the_table_is_one_character_too_wide(
    printed: Any, width: int, left_out: tuple[str, ...]
) -> None:
    """The narrowest table: rank 1, split 20, mb 2, recompute 9, step 6 and memory 9 characters, six blanks, and one at the edge."""
    out, _ = printed(RESPONSE, width=width)
    (titles,) = [line for line in out.splitlines() if line.lstrip().startswith("#")]
    for title in ("vpp", "step s", "80 % range", "tok/s/GPU", "MFU", "GiB/GPU", "bubble", "comm", "worst tier"):
        assert (title in titles) == (title not in left_out), title
    assert ("split" in titles) == ("vpp" in left_out)
    assert ("widen the terminal" in " ".join(out.split())) == bool(left_out)
    assert "…" not in titles
    assert ("#  tp" in titles) == (width == 128)


@pytest.mark.parametrize(
    ("width", "vocabulary", "count", "shown"),
    [(32, 15_616_972, 999_500_000, "1.00B"), (16, 3_123_254, 99_950_000, "100M"), (8, 624_520, 9_995_000, "10.0M")],
)
def test_a_size_never_gets_a_fourth_digit_by_rounding(
    printed: Any, width: int, vocabulary: int, count: int, shown: str
) -> None:
    """One layer with 100 features inside, two tables and a norm: the smallest counts that are rounded up."""
    model = {"num_layers": 1, "hidden_size": width, "num_attention_heads": 2, "intermediate_size": 100,
             "vocab_size": vocabulary}  # fmt: skip
    assert 4 * width**2 + 3 * width * 100 + 2 * width + 2 * width * vocabulary + width == count
    out, _ = printed(RESPONSE | {"request": RESPONSE["request"] | {"model": model}}, width=160)
    assert f"({shown} parameters)" in out


@pytest.mark.parametrize(
    ("preset", "shown"),
    [
        ("llama-3.2-1b", "1.24B"), ("llama-3.1-8b", "8.03B"), ("llama-2-13b", "13.0B"), ("llama-3.1-70b", "70.6B"),
        ("gpt-oss-120b", "117B"), ("gpt3-175b", "175B"), ("megatron-1t", "1.01T"),
    ],
)  # fmt: skip
def test_published_sizes_are_shown_with_three_digits(printed: Any, preset: str, shown: str) -> None:
    """Parameters as the publications count them: 1.24, 8.03, 13.0, 70.6, 117, 175 and 1,008 billion; a token meets 5.1 of
    gpt-oss-120b's according to its model card, which leaves the embedding's 0.58 out.
    """
    out, _ = printed(RESPONSE | {"request": RESPONSE["request"] | {"model": {"preset": preset}}}, width=160)
    active = ", 5.71B active" if preset == "gpt-oss-120b" else ""
    assert f"({shown} parameters{active})" in out


@pytest.mark.parametrize(
    ("plans", "most", "ranks"),
    [
        ([None, None, None], None, [1, 2, 3]),
        ([None, None, None], 3, [1, 2, 3]),
        ([None, None, None], 2, [1, 2]),
        ([None, 1, None, 1, None], 2, [1, 3]),
        ([None, 1, None, 1], 2, [1, 3]),
        ([None, 1, None, 1, None], 1, [1]),
    ],
)
def test_a_limit_counts_plans_and_not_their_near_copies(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    plans: list[int | None],
    most: int | None,
    ranks: list[int],
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    given = [ranked(rank, tie_group=rank) | {"folded_under": leader} for rank, leader in enumerate(plans, 1)]
    print_response(RESPONSE | {"plans": given}, most=most, quiet=True)
    assert shown_ranks(capsys.readouterr().out) == ranks


def test_a_title_names_what_is_known(printed: Any) -> None:
    """A preset of nodes by its name, a GPU by its own, and question marks for what a request leaves to its preset."""
    request = RESPONSE["request"] | {"model": {}, "cluster": {"preset": "dgx-h100"}, "training": {"seq_length": 512}}
    plan = ranked(1, tie_group=1)
    shown = RESPONSE | {
        "plans": [plan],
        "request": request | {"cluster": {"preset": "dgx-h100", "num_nodes": 16, "gpus_per_node": 8}},
    }
    assert printed(shown, width=160)[0].startswith("model on 16 x 8 dgx-h100, sequence 512, batch ?\n")
    pools = {
        "pools": [{"gpu": "A", "num_nodes": 8, "gpus_per_node": 8}, {"gpu": "B", "num_nodes": 4, "gpus_per_node": 16}]
    }
    shown = RESPONSE | {"plans": [plan], "request": RESPONSE["request"] | {"cluster": pools}}
    assert "on 8 x 8 A + 4 x 16 B, sequence 8,192, batch 512, bf16, megatron 0.16" in printed(shown, width=160)[0]


def test_the_header_says_where_the_request_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_response(RESPONSE, quiet=True, source="from job.json and options")
    first = capsys.readouterr().out.splitlines()[0].rstrip()
    assert first.endswith("sequence 8,192, batch 512, bf16, megatron 0.16 (from job.json and options)")


def test_the_legend_explains_what_the_table_has_and_nothing_else(printed: Any) -> None:
    """The first plan recomputes three layers of a stage in full; its least certain time is extrapolated."""
    legend = (
        "mb: sequences of a micro-batch; full 3: so many layers of each stage are recomputed; GiB/GPU: peak memory / "
    )
    legend += "what a process can use"
    shares = "; bubble, comm: share of the step spent waiting and communicating"
    tier = "; worst tier: how its least certain time is known (extrapolated: beyond measurements)"

    def told(response: dict[str, Any], *, width: int) -> str:
        return " ".join(printed(response, width=width)[0].split())

    assert f" {legend}{shares}{tier}. " in told(RESPONSE, width=160)
    assert f" {legend}{shares}. " in told(RESPONSE, width=90)
    assert f" {legend}. " in told(RESPONSE, width=80)
    assert "mb:" not in told(RESPONSE | {"plans": []}, width=160)
    risky = ranked(1, tie_group=1, recompute="none")
    risky["evaluation"] |= {"verdict": "at-risk"}
    assert "; !: may run out of memory; bubble" in told(RESPONSE | {"plans": [risky]}, width=160)
    assert "recomputed" not in told(RESPONSE | {"plans": [risky]}, width=160)


def test_plans_that_may_not_fit_are_marked_and_all_gpus_counted_where_they_differ(printed: Any) -> None:
    risky = ranked(1, tie_group=1)
    risky["evaluation"] = risky["evaluation"] | {"verdict": "at-risk", "num_gpus_used": 64}
    out, _ = printed(RESPONSE | {"plans": [risky, ranked(2, tie_group=2)]}, width=160)
    assert "60.2/79.1!" in row_of(out, 1)
    assert (row_of(out, 1)[1], row_of(out, 2)[1]) == ("64", "128")
    assert {"209,715", "419,430"} <= {*row_of(out, 1), *row_of(out, 2)}


def test_what_fits_nowhere_is_cut_and_keeps_the_columns_of_the_narrowest_table(printed: Any) -> None:
    out, _ = printed(RESPONSE, width=51)
    (titles,) = [line for line in out.splitlines() if line.lstrip().startswith("#")]
    assert titles.split() == ["#", "split", "mb", "recompu…", "step", "s", "GiB/GPU"]


def test_only_plans_that_may_not_fit_are_coloured(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    yellow = "\x1b[33m"
    risky = ranked(1, tie_group=1)
    risky["evaluation"] = risky["evaluation"] | {"verdict": "at-risk"}
    assert yellow in printed(RESPONSE | {"plans": [risky]}, width=160)[0]
    assert yellow not in printed(RESPONSE, width=160)[0]


def test_marks_tell_apart_what_the_degrees_do_not(printed: Any) -> None:
    """16 replicas of 1 context rank: state over 8 of them is marked, over all 16 is not."""
    marked = ranked(1, tie_group=1, sequence_parallel=True, zero_shard_size=8)
    plain = ranked(2, tie_group=2, sequence_parallel=False, zero_shard_size=16)
    out, _ = printed(RESPONSE | {"plans": [marked, plain]}, width=160)
    assert row_of(out, 1)[1:9] == ["4sp", "2", "16", "1", "1", "5", "1/8", "2"]
    assert row_of(out, 2)[1:9] == ["4", "2", "16", "1", "1", "5", "1", "2"]
    assert "sp: sequence parallel" in out
    assert "zero 1/8: ZeRO stage 1 over groups of 8 ranks, each group with a copy of its own; mb" in out
    fours = ranked(1, tie_group=1, zero=2, zero_shard_size=4)
    assert "zero 2/4: ZeRO stage 2 over groups of 4 ranks" in printed(RESPONSE | {"plans": [fours]}, width=160)[0]
    assert "tp4sp pp2 dp16 vpp5 z1/8" in printed(RESPONSE | {"plans": [marked, plain]}, width=80)[0]


def test_footer_tells_ties_search_rejections_and_prices(printed: Any) -> None:
    out, _ = printed(RESPONSE, width=160)
    assert "Too close to call: plans 1 and 2. Measuring plans 1 and 2 first would tell you the most." in out
    assert "Searched tp pp: 4,000 strategies, 345 priced, 635 excluded by bounds, 0.25 s; optimal in the" in out
    assert (
        "Of the other strategies, 3,000 need more memory than a GPU has (out-of-memory); 20 have a tp that does not divide the "
        "attention heads (heads-not-divisible)."
    ) in out.replace("\n", " ")
    assert "Prices from reference-h100." in out


def shown_ranks(out: str) -> list[int]:
    """Ranks of the rows, which stand between the rule under the titles and the sentences below the table."""
    _, table = re.split(r"─ *\n", out, maxsplit=1)
    return [int(row.split()[0]) for row in takewhile(str.strip, table.splitlines())]


def test_near_copies_are_folded_and_ties_are_of_shown_plans(printed: Any) -> None:
    """Plans 2 and 4 are near-copies of 1; 3 ties with 1 by its group, 5 with nothing, 6 with a near-copy alone."""
    folded, groups = (None, 1, None, 1, None, None), (1, 2, 1, 2, 3, 2)
    plans = [ranked(rank, tie_group=group) for rank, group in enumerate(groups, 1)]
    for plan, leader in zip(plans, folded, strict=True):
        plan |= {"folded_under": leader, "against_next": "0.5% faster than plan 3, too close to call"}
        plan["strategy"] = plan["strategy"] | {"vpp": plan["rank"]}
    out, _ = printed(RESPONSE | {"plans": plans}, width=160)
    assert shown_ranks(out) == [1, 3, 5, 6]
    assert "2 near-copies of plans above (other vpp; as fast to within 1 %) are left out.\n" in out
    assert "Plan 1 is 0.5% faster than plan 3, too close to call.\n" in out
    assert "Too close to call: plans 1 and 3. Measuring plans 1 and 3 first would tell you the most." in out


def test_claims_are_the_same_however_many_plans_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan 2 is a near-copy of 1; 3 is the next one. Of the tie of 1, 3 and 4 the last differs most: measure 1 and 4."""
    monkeypatch.setenv("COLUMNS", "400")
    plans = [ranked(rank, tie_group=1, dp=rank) | {"folded_under": leader, "against_next": "0.3% faster than plan 3"}
             for rank, leader in enumerate([None, 1, None, None], 1)]  # fmt: skip
    plans[3]["evaluation"]["time_breakdown_s"] = {
        "gemm": 5.0,
        "tp_comm": 3.5,
        "dp_comm": 0.5,
        "pp_bubble": 1.0,
        "offload": 0.0,
    }
    told = {}
    for most in (1, 2, 3):
        print_response(RESPONSE | {"plans": plans}, most=most, quiet=True)
        told[most] = capsys.readouterr().out
    assert [shown_ranks(out) for out in told.values()] == [[1], [1, 3], [1, 3, 4]]
    described = "tp4 pp2 dp{} vpp5 z1 mb2 full 3"
    assert f"faster than plan 3. Plan 3, which is not shown, is {described.format(3)}." in told[1]
    assert "faster than plan 3.\n" in told[2]
    unseen = f"Measuring plans 1 and 4 ({described.format(4)}) first would tell you the most."
    assert f"Too close to call: plan 1 and 2 more not shown. {unseen}" in told[1]
    assert f"Too close to call: plans 1 and 3, and 1 more not shown. {unseen}" in told[2]
    assert "Too close to call: plans 1, 3 and 4. Measuring plans 1 and 4 first would tell you the most." in told[3]


def test_gpus_left_idle_are_counted_and_rates_are_of_the_whole_job(printed: Any) -> None:
    """96 of 128 GPUs at 3,276.8 tokens/s each are 314,573 tokens/s, which is 2,457.6 for each of the 128."""
    idle = ranked(1, tie_group=1)
    idle["evaluation"] = idle["evaluation"] | {"num_gpus_used": 96}
    full = ranked(2, tie_group=2)
    out, _ = printed(RESPONSE | {"plans": [idle, full]}, width=160)
    assert "tok/s/GPU" not in out
    assert row_of(out, 1)[1] == "96"
    assert {"314,573"} <= set(row_of(out, 1))
    assert {"419,430"} <= set(row_of(out, 2))  # 128 x 3,276.8
    told = "Plan 1 uses 96 of the 128 GPUs and leaves 32 idle: 3,277 tok/s on each GPU in use, 2,458 over all."
    assert told in out.replace("\n", " ")
    assert "constraints.allow_idle_gpus" in out
    later, _ = printed(RESPONSE | {"plans": [full | {"rank": 1}, idle | {"rank": 2}]}, width=160)
    assert "Plan 2 leaves GPUs idle; tok/s counts the whole job." in later
    assert "idle" not in printed(RESPONSE, width=160)[0]


def test_the_objective_has_a_column_of_its_own(printed: Any) -> None:
    """128 GPUs for 10 s are 1,280 GPU-seconds; at 4.5 an hour 128 x 4.5 x 10 / 3600 = 1.6."""
    cost = RESPONSE | {"request": RESPONSE["request"] | {"objective": "cost"}}
    out, _ = printed(cost, width=160)
    assert "GPU-s/step" in out
    assert "1,280" in row_of(out, 1)
    priced = copy.deepcopy(cost)
    priced["request"]["cluster"]["price_per_gpu_hour"] = 4.5
    out, _ = printed(priced, width=160)
    assert "cost/step" in out
    assert "1.6" in row_of(out, 1)
    assert "GPU-s/step" not in printed(RESPONSE, width=160)[0]


@pytest.mark.parametrize("layers", [4, 32])
def test_the_title_counts_parameters(printed: Any, layers: int) -> None:
    """A layer of width 64: 4 x 64 x 64 of attention, 3 x 64 x 176 of MLP, 2 norms; two tables of 5,000 x 64, and a norm."""
    model = {"name": "tiny", "num_layers": layers, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 176,
             "vocab_size": 5000}  # fmt: skip
    count = layers * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 2 * 5000 * 64 + 64
    out, _ = printed(RESPONSE | {"request": RESPONSE["request"] | {"model": model}}, width=160)
    assert f"tiny ({count / 1e6:.2f}M parameters) on 16 x 8" in out


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"tp": [1], "pool_per_stage": ["stages on every pool"]}, "pool_per_stage"),
        ({"tp": [1], "layers_per_stage": ["even"], "pool_per_stage": [["old", "new"]]}, "nothing"),
        ({"tp": [1], "layers_per_stage": ["even", "the best of all"]}, "layers_per_stage"),
    ],
)
def test_what_was_searched_is_told(printed: Any, space: dict[str, Any], told: str) -> None:
    search = RESPONSE["search"] | {"space": space, "bounded": 0}
    out, _ = printed(RESPONSE | {"search": search}, width=160)
    assert f"Searched {told}: 4,000 strategies, 345 priced, 0.25 s; optimal" in out


def test_priced_strategies_that_miss_a_target_and_what_a_stop_left_are_told(printed: Any) -> None:
    search = RESPONSE["search"] | {"feasible": 300, "bounded": 600, "unsearched": 35}
    out, _ = printed(RESPONSE | {"search": search}, width=160)
    assert "4,000 strategies, 345 priced (300 feasible), 600 excluded by bounds, 35 not searched, 0.25 s" in out


def test_warnings_go_to_stderr_unless_quiet(printed: Any) -> None:
    out, err = printed(RESPONSE, width=120)
    assert "network latency" in err
    assert "network latency" not in out
    _, err = printed(RESPONSE, width=120, quiet=True)
    assert err == ""


def test_no_plan_names_the_nearest_and_its_smallest_change(printed: Any) -> None:
    response = copy.deepcopy(RESPONSE) | {"plans": []}
    response["nearest_infeasible"] = [
        {
            "strategy": {"tp": 8, "pp": 1, "dp": 1, "zero": 3, "micro_batch_size": 1},
            "reasons": [{"code": "out-of-memory", "message": "needs 95.0 GiB of 79.1 GiB", "hint": ""}],
            "smallest_change": "pp=2",
        }
    ]
    out, _ = printed(response, width=120)
    assert "No plan fits." in out
    assert "tp8 z3 mb1: needs 95.0 GiB of 79.1 GiB" in out
    assert "smallest change: pp=2" in out


def test_a_better_plan_that_cannot_be_expressed_is_told(printed: Any) -> None:
    best = {"strategy": {}, "reasons": [{"message": "unequal stages"}], "step_time_s": 9.0, "gain_fraction": 0.1}
    out, _ = printed(RESPONSE | {"inexpressible_best": best}, width=120)
    assert "A plan 10.0% faster cannot be expressed in this framework: unequal stages." in out


def test_what_a_request_included_is_told(printed: Any) -> None:
    asked = {
        "field": "as asked", "value": None, "num_gpus": 16, "step_time_s": 6.4, "tokens_per_s_per_gpu": 10240.0, "mfu": 0.5,
        "peak_device_bytes": 53.5 * GIB, "plan": {"tp": 2, "pp": 1, "dp": 8, "cp": 1, "zero": 2},
    }  # fmt: skip
    none = {"field": "cluster.num_nodes", "value": 1, "plan": None, "reason": "of the strategies, 8 need more memory"}
    out, _ = printed(RESPONSE | {"what_if": [asked, none], "pareto": [{}, {}, {}]}, width=160)
    assert "  as asked: 6.40 s, 10,240 tok/s/GPU, MFU 50.0%, 16 GPUs, 53.5 GiB/GPU, tp2 dp8 z2\n" in out
    assert "  num_nodes 1: no plan; of the strategies, 8 need more memory\n" in out
    assert (
        "The front of time, memory, GPUs and cost has 3 plans; --json prints them, and `meshwright report` draws them."
        in out
    )


def test_what_is_indented_goes_on_further_in(printed: Any) -> None:
    reasons = [{"message": "the fullest stage needs 180.9 GiB of the 79.1 GiB that a process can use on this GPU"}]
    nearest = {"strategy": {"tp": 2, "micro_batch_size": 1}, "reasons": reasons, "smallest_change": "more nodes"}
    out, _ = printed(RESPONSE | {"plans": [], "nearest_infeasible": [nearest]}, width=70)
    assert out.endswith(
        "Nearest:\n  tp2 z0 mb1: the fullest stage needs 180.9 GiB of the 79.1 GiB that\n    a process can use on this GPU\n"
        "    smallest change: more nodes\n"
    )


def test_no_color_leaves_plain_text(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in printed(RESPONSE, width=120)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in printed(RESPONSE, width=120)[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(123.4, "123"), (99.96, "100"), (12.34, "12.3"), (9.996, "10.0"), (9.8, "9.80"), (0.01234, "0.0123")],
)
def test_seconds_have_three_digits(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("columns", "width"), [("0", 20), ("7", 20), ("100", 100), ("-5", 120), ("abc", 120), ("", 120)]
)
def test_the_width_is_that_of_the_environment_where_it_is_one(printed: Any, columns: str, width: int) -> None:
    """A name without spaces fills its line."""
    named = {**RESPONSE["request"], "model": {"name": 300 * "x"}}
    out, _ = printed(RESPONSE | {"request": named}, width=columns)
    assert out.splitlines()[0] == width * "x"


def test_the_title_counts_the_text_model_alone() -> None:
    training = {"seq_length": 4096, "towers": {"vision": "frozen"}}
    asked = {"model": {"preset": "llama-3.2-1b", "name": "vl"}, "cluster": {"preset": "dgx-h100"}, "training": training}
    assert title_of(asked).plain.startswith("vl (1.24B parameters without towers) on ")
    assert title_of({**asked, "training": {"seq_length": 4096}}).plain.startswith("vl (1.24B parameters) on ")
