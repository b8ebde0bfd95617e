"""Megatron-LM's arguments as a row: what their absence means, other spellings of the same, and what stays unknown."""

from __future__ import annotations

import pytest

from planner.export.formats.arguments import read_words
from planner.export.settings import Settings
from planner.export.target import RowParts
from planner.export.targets import TARGETS

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 "


def read(text: str) -> tuple[RowParts, list[str]]:
    settings = Settings(read_words("python pretrain_gpt.py " + text, "args"))
    reader = TARGETS["megatron"].read
    assert reader is not None
    return reader(settings), [each.key for each in settings.unknown() if each.key != "@"]


def test_what_is_not_said_is_the_parsers_default():
    """The defaults that megatron-core 0.19.2's parser prints: LayerNorm, GeLU, biases, dropout 0.1, learned positions, no sharding."""
    parts, unknown = read(SHAPE)
    assert unknown == []
    assert parts.strategy["zero"] == 0
    assert parts.strategy["overlap"]["grad_reduce"] is False
    assert parts.training["precision"] == "fp32"
    assert parts.training["dropout"] == 0.1
    assert "seq_length" not in parts.training
    assert parts.model["norm"] == "layernorm"
    assert (parts.model["attention_bias"], parts.model["mlp_bias"]) == (True, True)
    assert parts.model["intermediate_size"] == 4 * 4096
    assert parts.model["tie_word_embeddings"] is True


def test_gated_width_follows_the_parsers_rule():
    """int(4 * 4096 * 2 / 3 / 64) * 64 = 170 * 64 = 10880."""
    assert read(SHAPE + "--swiglu")[0].model["intermediate_size"] == 10880


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5", [7, 10, 10, 5]),
        ("--decoder-last-pipeline-num-layers 2", [10, 10, 10, 2]),
        ("--pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*9L'", [7, 8, 8, 9]),
    ],
)
def test_splits_in_every_spelling(text: str, split: list[int]):
    assert read(SHAPE + f"--pipeline-model-parallel-size 4 {text}")[0].strategy["layers_per_stage"] == split


def test_ends_that_count_as_layers():
    """30 layers, the embedding and the loss are 32: 8 for each of 4 stages, of which the ends have one layer fewer."""
    text = "--num-layers 30 --hidden-size 64 --num-attention-heads 4 --pipeline-model-parallel-size 4 "
    parts, _ = read(text + "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")
    assert parts.strategy["layers_per_stage"] == [7, 8, 8, 7]


def test_virtual_stages_by_their_layers():
    assert (
        read(SHAPE + "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2")[0].strategy["vpp"]
        == 4
    )


def test_two_levels_of_context_parallelism_and_a_stage_of_multi_token_prediction_are_read():
    levels = "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4 "
    layout = "--pipeline-model-parallel-size 4 --mtp-num-layers 1 --pipeline-model-parallel-layout 'Et|t||mL'"
    parts, unknown = read(SHAPE + levels + layout)
    assert unknown == []
    assert (parts.strategy["cp_comm"], parts.strategy["cp_a2a_size"]) == ("a2a+p2p", 2)
    assert "mtp_stage" not in parts.strategy  # beside the loss, where it lies anyway
    apart = read(SHAPE + layout.replace("||mL", "|m|L"))[0].strategy
    assert (apart["layers_per_stage"], apart["mtp_stage"]) == ([1, 1, 0, 0], 2)
    assert read(SHAPE + levels.replace("2 4", "2 2 2"))[1] == ["--hierarchical-context-parallel-sizes"]


@pytest.mark.parametrize(
    "text",
    [
        "--tensor-model-paralel-size 2", "--tensor-model-parallel-size two", "--bf16 yes", "--pipeline-model-parallel-layout 'tt|tt'",
        "--data-parallel-sharding-strategy some", "--attention-backend best", "--window-size 4", "--moe-layer-freq [1]*3",
        "--cp-comm-type a2a+ring", "--attention-dropout 0.2", "--reset-attention-mask", "--lrx 1", "--exp-avg-sq-dtype bf16",
        "--recompute-granularty full", "--moe-token-dispatcher alltoall", "--fp8-formt hybrid", "--use-distributed-optimiser",
    ],
)  # fmt: skip
def test_a_typo_in_any_section_stays_unknown(text: str):
    assert read(SHAPE + text)[1] == [text.split(maxsplit=1)[0]]
