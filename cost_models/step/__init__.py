"""From layers to a training step: what the named time terms of a step are and how they add up.

| look for | file |
| --- | --- |
| the step time, its terms, the wait for the slowest rank | `total` |
| the slowest pipeline stage and its terms | `stages` |
| pipeline bubble of every schedule; sends between stages | `pipeline` |
| gradient reduction; FSDP's all-gather and reduce-scatter; what hides them | `data_parallel` (calls of one unit: `unit_collectives`) |
| optimizer step, gradient accumulation | `optimizer` |
| state, parameters and activations in host memory | `offload` |
| parameters that a rank of each stage holds | `stage_parameters` |
| the 80 % range of time, ties between plans | `ranges` (which links a term depends on: `exposure`) |
"""
