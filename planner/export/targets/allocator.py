"""What tells PyTorch's allocator about expandable segments, for the targets whose memory it holds."""

from __future__ import annotations

from planner.export.quantities import Quantities
from planner.export.target import Variable

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The newer name came with PyTorch 2.9 (c10/core/AllocatorConfig.h), which still reads the older one."""
WHY = "Memory grows in place instead of in new segments, so that less of it is lost to fragmentation; the plan counts on it."


def allocator_variables(quantities: Quantities, *, old_name: bool = False) -> tuple[Variable, ...]:
    """The variable, or none where the plan keeps ordinary segments."""
    if not quantities["training.expandable_segments"]:
        return ()
    return (Variable(NAMES[old_name], "expandable_segments:True", WHY),)
