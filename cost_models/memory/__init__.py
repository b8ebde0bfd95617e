"""Peak memory per pipeline stage in bytes: allocated, reserved, device, with the 80 % range of the last and a breakdown.

| look for | file |
| --- | --- |
| the three numbers, the range of memory, which moment peaks | `stage_memory` |
| the terms at each of the step's moments | `moments` |
| parameters, main copies, gradients, optimizer states, host memory | `states` |
| tensors that one layer saves, such as those of a gated MLP | `activations` |
| what recomputation (full, selective) keeps and makes again | `layer_memory` (one layer), `stage_activations` (a stage) |
| micro-batches in flight under each schedule | `in_flight` |
| logits and cross entropy | `loss` |
| gathered parameters, reduction buckets, workspaces | `communication`, `expert_buffers` |
| allocator cache, CUDA context, communicators | `reserved` |
| constants read off machines | `constants` |

Formulas and their sources are tagged M in EQUATIONS.md.
"""

from cost_models.memory.stage_memory import StageMemory, stage_memory

__all__ = ["StageMemory", "stage_memory"]
