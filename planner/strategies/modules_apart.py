"""Where a strategy puts the modules of multi-token prediction apart from the output layer, and what Megatron's layouts allow.

Source: megatron/core/transformer/pipeline_parallel_layer_layout.py (validate_layer_layout): all of them lie on one virtual stage, in the
last chunk of a rank that is not the first, behind all decoder layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.job import Job
from planner.schemas.strategy import StrategyInput

Placed = tuple[int, int] | None
"""The virtual stage that holds the modules and their number, as `Layout.mtp`; None where they lie beside the output layer."""
_HINT = "Leave mtp_stage out, so that the modules lie beside the output layer, or change layers_per_stage."


def modules_apart(job: Job, given: StrategyInput, *, pp: int, split: Sequence[int]) -> tuple[Placed, tuple[str, ...]]:
    """Where the modules lie, and a message with its hint where no layout says that; then they count as beside the output layer.

    Args:
        job: whose modules they are.
        given: the strategy as it was given.
        pp: pipeline stages.
        split: decoder layers of every virtual stage.
    """
    stage, last = given.mtp_stage, len(split) - 1
    # Named where it lies anyway, it is no layout of its own, so that both spellings are priced in one batch.
    if stage is None or stage == last:
        return None, ()
    wrong = ""
    if not job.mtp_num_layers:
        wrong = "is given, but no modules of multi-token prediction are built"
    elif given.layers_per_stage is None or pp == 1:
        wrong = "needs a pipeline whose layers_per_stage is given"
    elif stage > last:
        wrong = f"is not one of the virtual stages 1 to {last}"
    elif stage < last + 1 - pp or stage % pp == 0:
        wrong = f"must be in the last chunk of a rank behind the first, so from {last + 2 - pp} to {last}"
    elif any(split[stage + 1 :]):
        wrong = "has decoder layers behind it, but these come before multi-token prediction"
    return (None, (f"mtp_stage {stage} {wrong}", _HINT)) if wrong else ((stage, job.mtp_num_layers), ())
