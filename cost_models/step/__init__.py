"""From layers to a training step: what the named time terms of a step are and how they add up.

| look for | file |
| --- | --- |
| the step time, its terms, the wait for the slowest rank | `total` |
| the slowest pipeline stage and its terms; what stages are made of | `stages`; `stage_costs` |
| pipeline bubble of every schedule; sends between stages | `pipeline` (interleaved chunks that differ: `interleaving`) |
| FSDP and ZeRO-3: all-gather and reduce-scatter of each layer, what hides them | `fsdp_comm` (calls of one unit: `unit_collectives`) |
| DDP and ZeRO-1: gradient reduction and parameter gather once a step; tied gradients | `ddp_comm` |
| optimizer step, gradient accumulation | `optimizer` |
| state, parameters and activations in host memory | `offload` |
| parameters that a rank of each stage holds | `stage_parameters` |
| the 80 % range of time, ties between plans | `ranges` (which links a term depends on: `exposure`) |
"""
