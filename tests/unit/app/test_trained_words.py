"""What tables and pages say of frozen parts and of towers."""

from __future__ import annotations

from typing import Any

from app.trained_words import tower_sentences, trained_words

PART = {"trainable_parameters": 7_660_000_000, "stored_parameters": 8_290_000_000}


def test_frozen_towers_are_named_with_frozen_parts() -> None:
    towers = {"vision": "frozen", "audio": "none", "projector": "trained"}
    assert trained_words(PART, {"towers": towers}) == "vision tower frozen"
    both = {"frozen": ["mlp"], "towers": {**towers, "projector": "frozen"}}
    assert trained_words(PART, both) == "mlp, vision tower, projector frozen"
    adapter = {"rank": 8, "target_modules": ["q_proj"]}
    said = trained_words(PART, {"adapter": adapter, "towers": towers})
    assert said == "adapters of rank 8 on q_proj beside a frozen base, vision tower frozen"


def test_without_a_request_the_rest_is_frozen() -> None:
    """A line of an evaluation says how much is trained, but not which parts are not."""
    assert trained_words(PART, {}) == "the rest is frozen"


def test_nothing_is_said_where_everything_is_trained() -> None:
    whole = {"trainable_parameters": 8_290_000_000, "stored_parameters": 8_290_000_000}
    assert trained_words(whole, {"towers": {"vision": "trained", "projector": "trained"}}) == ""
    assert trained_words({}, {}) == ""


def test_a_tower_is_told_in_a_sentence() -> None:
    tower: dict[str, Any] = {
        "tower": "vision", "state": "frozen", "parameters": 632_000_000, "projector_parameters": 44_600_000,
        "tokens_per_sequence": 4096.0, "step_s": 0.996,
    }  # fmt: skip
    told = "The frozen vision tower with its projector (677M parameters) yields 4,096 tokens of a sequence and takes 0.996 s of a step"
    assert tower_sentences({"towers": [tower], "memory": {"stages": [{}]}}) == [f"{told}."]
    assert tower_sentences({"towers": [tower], "memory": {"stages": [{}, {}]}}) == [f"{told} on the first stage."]
    assert tower_sentences({}) == []


def test_padding_and_an_average_are_told_in_sentences() -> None:
    average = {"device": "gpu", "dtype": "fp32", "sharded": True, "gib_per_rank": 1.4961, "step_s": 0.0018}
    padding, kept = tower_sentences({"padding_share": 0.5625, "ema": average})
    assert padding == "56.2% of all tokens is padding; tokens a second, MFU and costs count the others."
    assert (
        kept
        == "A moving average of the weights takes 1.50 GiB of each GPU, which keeps its shard of what it holds, and 0.00180 s of a step."
    )
    (whole,) = tower_sentences({"ema": {**average, "device": "cpu", "sharded": False}})
    assert "of each process in host memory, which keeps all of what it holds" in whole
