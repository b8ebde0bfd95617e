"""Settings of Megatron-LM's command line on their way to the classes that its front ends fill."""

from __future__ import annotations

from planner.export.targets.megatron.attributes import ATTRIBUTES, ELSEWHERE
from planner.export.targets.megatron.names import NAMES

READ_ALONE = {
    "num_layers_per_virtual_pipeline_stage", "recompute_activations", "use_rotary_position_embeddings",
}  # fmt: skip
"""Older words for settings that have others: files may hold them, no writer says them."""


def test_no_setting_is_lost_on_its_way_to_a_front_end():
    named = {each.name for each in ATTRIBUTES}
    assert not named & ELSEWHERE
    assert set(NAMES) - named - ELSEWHERE == READ_ALONE
