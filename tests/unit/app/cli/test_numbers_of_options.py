"""Numbers as people write them: what each means, and what is refused with which words."""

from __future__ import annotations

import pytest

from app.cli.commands.plan_options import included, numbers, training_fields
from app.quantities import count, duration_h, duration_s, rate
from cost_models.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192), ("8,192", 8192), ("131_072", 131_072), ("8k", 8192), ("8K", 8192), (" 8 k ", 8192), ("128k", 131_072),
        ("1.5k", 1536), (".5k", 512), ("4M", 4_194_304), ("1e6", 1_000_000), ("+7", 7), ("1", 1),
    ],
)  # fmt: skip
def test_lengths_and_batches_are_powers_of_two(text: str, number: int) -> None:
    """A context of 128k tokens has 131,072: 128 x 1024."""
    assert count(text, option="--seq-length", base=1024) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("15T", 15 * 10**12), ("300B", 3 * 10**11), ("300G", 3 * 10**11), ("0.3T", 3 * 10**11), ("1e12", 10**12), ("2m", 2 * 10**6)],
)  # fmt: skip
def test_what_is_trained_on_is_counted_in_thousands(text: str, number: int) -> None:
    assert count(text, option="--total-tokens", base=1000) == number


@pytest.mark.parametrize("text", ["", "k", "many", "1,5", "128kb", "8kk", "1.2.3", "nan", "inf", "1e999", "9" * 41])
def test_what_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        count(text, option="--seq-length", base=1024)
    (problem,) = caught.value.problems
    assert problem.message.startswith("--seq-length is '")
    assert problem.message.endswith(", which is not a number")
    assert problem.hint == "Write it like 8192, 8k (8,192) or 128k (131,072)."


@pytest.mark.parametrize(("text", "told"), [("0", ""), ("-3", ""), ("1.5", ""), ("0.3k", ", or 307.2")])
def test_a_count_is_a_whole_number_of_at_least_one(text: str, told: str) -> None:
    """What a suffix makes of a number is said, because it explains the refusal: 0.3 x 1024 = 307.2."""
    with pytest.raises(InvalidInputError) as caught:
        count(text, option="--global-batch-size", base=1024)
    (problem,) = caught.value.problems
    assert problem.message == f"--global-batch-size is '{text}'{told}; it must be a whole number of at least 1"
    assert ("A k stands for 1,024 here." in problem.hint) == bool(told)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("30", 30), ("500ms", 0.5), ("5m", 300), ("5 min", 300), ("1.5h", 5400), ("1d", 86_400), ("1ms", 0.001)],
)  # fmt: skip
def test_times_are_seconds_where_no_unit_is_given(text: str, seconds: float) -> None:
    assert duration_s(text, option="--time-limit", least_s=0.001) == seconds


@pytest.mark.parametrize("text", ["0", "0.9ms", "25h", "-5s", "soon", "5 weeks"])
def test_times_lie_between_the_least_and_a_day(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a time between 1ms and 24h"):
        duration_s(text, option="--time-limit", least_s=0.001)


def test_deadlines_are_hours_where_no_unit_is_given_and_may_be_long() -> None:
    assert [duration_h(text, option="--deadline-h") for text in ("720", "30d", "90m", "720h")] == [720, 720, 1.5, 720]
    with pytest.raises(InvalidInputError, match="--deadline-h '-1' is not a time above 0"):
        duration_h("-1", option="--deadline-h")


def test_rates_are_above_zero_and_need_not_be_whole() -> None:
    assert [rate(text, option="--x") for text in ("1.5M", "250k", "0.5")] == [1_500_000, 250_000, 0.5]
    for text in ("0", "-2", "fast"):
        with pytest.raises(InvalidInputError, match="must be a number above 0"):
            rate(text, option="--x")


def test_all_wrong_options_are_told_at_once_and_by_their_names() -> None:
    with pytest.raises(InvalidInputError) as caught:
        numbers(seq_length="long", global_batch_size="64", time_limit_s="later", min_tokens_per_s="0", deadline_h=None)
    assert [problem.message.split()[0] for problem in caught.value.problems] == [
        "--seq-length", "--time-limit", "--target-min-tokens-per-s",
    ]  # fmt: skip


def test_counts_of_training_fields_may_be_written_alike() -> None:
    fields = training_fields(["seq_length=32k", "total_tokens=2T", "optimizer=sgd", "dropout=0.1"])
    assert fields == {"seq_length": 32_768, "total_tokens": 2 * 10**12, "optimizer": "sgd", "dropout": 0.1}
    with pytest.raises(InvalidInputError, match="--training seq_length is 'long'"):
        training_fields(["seq_length=long"])


def test_analyses_are_added_to_those_of_the_file_once_each() -> None:
    assert included({"include": ["pareto"]}, ["what-if, open_splits", "pareto"]) == {
        "include": ["pareto", "what_if", "open_splits"]
    }
    assert included({}, []) == included({}, [","]) == {}
    assert included({"include": "pareto"}, ["what_if"]) == {}
