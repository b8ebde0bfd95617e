"""Peak memory per pipeline stage: allocated, reserved, device.

Three numbers per stage from model, framework and strategy, with a breakdown at the moment that peaks. Formulas and their
sources are tagged M in EQUATIONS.md.
"""

from cost_models.memory.stage_activations import offloaded_activation_bytes
from cost_models.memory.stage_memory import StageMemory, ranks_per_node, stage_memory

__all__ = ["StageMemory", "offloaded_activation_bytes", "ranks_per_node", "stage_memory"]
