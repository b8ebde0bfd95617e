"""Peak memory per pipeline stage: allocated, reserved, device.

Three numbers per stage from model, framework and strategy, with a breakdown at the moment that peaks. Formulas and their
sources are tagged M in EQUATIONS.md.
"""

from cost_models.memory.stage_memory import StageMemory, stage_memory

__all__ = ["StageMemory", "stage_memory"]
