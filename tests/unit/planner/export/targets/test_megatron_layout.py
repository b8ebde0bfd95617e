"""Layout strings and layer patterns, against the strings that Megatron's own parser was given."""

from __future__ import annotations

import pytest

from planner.export.targets.megatron.layout import (
    layers_of_layout,
    mtp_stage_of_layout,
    numbers_of_pattern,
    pattern,
    pipeline_layout,
)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((3, 4, 4, 3), "Et*3|t*4|t*4|t*3L"),
        ((19, 20, 20, 19), "Et*19|t*20|t*20|t*19L"),
        ((0, 2, 1, 0), "E|t*2|t|L"),
        ((1, 1, 0, 1), "Et|t||tL"),
    ],
)
def test_a_split_is_written_stage_by_stage(layers: tuple[int, ...], text: str):
    assert pipeline_layout(layers) == text
    assert layers_of_layout(text) == layers


def test_layers_of_multi_token_prediction_stand_behind_the_decoder():
    assert pipeline_layout((2, 2), mtp_num_layers=1) == "Et*2|t*2mL"
    assert layers_of_layout("Et*2|t*2mL") == (2, 2)


def test_the_layout_of_deepseek_v3_has_a_stage_of_multi_token_prediction():
    """The example of Megatron Core's documentation; its class takes it, and calls it standalone, for pp 16 and one module."""
    text = "Et*3|(tt|)*29m|L"
    assert mtp_stage_of_layout(text) == 30
    layers = layers_of_layout(text)
    assert layers == (3, *[2] * 29, 0, 0)
    again = pipeline_layout(layers, mtp_num_layers=1, mtp_stage=30)
    assert (layers_of_layout(again), mtp_stage_of_layout(again)) == (layers, 30)
    assert again.endswith("|t*2|m|L")
    assert [mtp_stage_of_layout(each) for each in ("Et|tmL", "Et|t|L", "Et|m|mL")] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Ettt|tttt|tttt|tttL", (3, 4, 4, 3)),
        ("E|(tt|)*6L", (0, 2, 2, 2, 2, 2, 2, 0)),
        ("E|(t|)*3,m|m||L", (0, 1, 1, 1, 0, 0, 0, 0)),
        ("E,t*2|(tt|t|)*2,tL", (2, 2, 1, 2, 1, 1)),
    ],
)
def test_layouts_of_others_are_read(text: str, layers: tuple[int, ...]):
    assert layers_of_layout(text) == layers


@pytest.mark.parametrize(
    "text", ["", "tttt|tttt", "E(tt|L", "Ett)|L", "E*|L", "Et*999999999|L", "Ex|L", "E" + "(" * 40 + "L"]
)
def test_what_is_no_layout_is_not_read(text: str):
    assert layers_of_layout(text) is None


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 0, 0, 1, 1), "([0]*3+[1]*2)"),
        ((1, 0) * 12, "([1]+[0])*12"),
        ((1, 1, 1), "([1])*3"),
    ],
)
def test_a_pattern_repeats_its_shortest_period(numbers: tuple[int, ...], text: str):
    assert pattern(numbers) == text
    assert numbers_of_pattern(text, num_layers=len(numbers)) == numbers


def test_patterns_of_others_are_read():
    """The examples of Megatron's help text; a number N means every N-th layer, from the first on."""
    assert numbers_of_pattern("([1]*3+[0]*1)*2", num_layers=8) == (1, 1, 1, 0, 1, 1, 1, 0)
    assert numbers_of_pattern("[1,1,0]", num_layers=3) == (1, 1, 0)
    assert numbers_of_pattern("2", num_layers=5) == (1, 0, 1, 0, 1)


@pytest.mark.parametrize("text", ["", "0", "[1]*", "__import__('os')", "[1]*999999999", "([1]", "[1]+", "[1]*2"])
def test_what_is_no_pattern_is_not_read(text: str):
    assert numbers_of_pattern(text, num_layers=3) is None
