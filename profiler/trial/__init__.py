"""Real training steps of one plan: what the planner predicts, measured.

A trial builds the model of an evaluate row with random weights, splits it as the row's strategy says, and times whole optimizer steps.
It runs in processes of its own, so that running out of memory, a hang or a crash is a result like any other.

| look for | file |
| --- | --- |
| the entrances: PyTorch's own parallelism, exported launch files | `launch`, `exported` |
| what is left of a trial, and why it failed | `record`, `reasons` |
| the model of a row, what is refused, a model made smaller | `plan`, `refusals`, `smaller` |
| the modules, experts, initial weights | `modules`, `experts`, `weights` |
| how modules are split: ranks, tensors and stages, sequences, recomputation | `mesh`, `parallel`, `context`, `recompute` |
| what one rank runs, its steps, and one step traced | `child`, `steps`, `traced` |
| from a trace to named terms | `host_spans`, `terms` |
| what surrounds a trial: its GPUs, its processes, its deadlines | `attempt`, `gpus`, `processes`, `guard`, `watch` |
"""
