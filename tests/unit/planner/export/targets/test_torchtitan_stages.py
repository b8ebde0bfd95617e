"""The modules of torchtitan's pipeline stages."""

from __future__ import annotations

from planner.export.targets.torchtitan.document import modules_of_stages


def test_layers_follow_each_other_and_the_ends_hold_embedding_norm_and_head() -> None:
    """Virtual stages of two layers, none, and three."""
    assert modules_of_stages((2, 0, 3), head="output") == [
        ["tok_embeddings", "layers.0", "layers.1"], [], ["layers.2", "layers.3", "layers.4", "norm", "output"],
    ]  # fmt: skip
    assert modules_of_stages((1,), head="lm_head") == [["tok_embeddings", "layers.0", "norm", "lm_head"]]
