"""What one decoder layer, and the ends of the model, cost and hold: operations, parameters, seconds, launches, messages.

| look for | file |
| --- | --- |
| seconds of one layer by part, launches, selective recomputation in time | `costs` |
| shapes of the matrix products | `shapes` |
| attention core; norms, activation, rotary; fp8 casts; copies | `attention_core`, `elementwise`, `casts`, `copies` |
| tensor-, context- and expert-parallel collectives | `communication` (latent attention: `latent_communication`) |
| embedding, head, loss; multi-token prediction | `ends`, `mtp` |
| parameters; operations (FLOPs) | `parameters`, `flops` |
| what selective recomputation repeats and keeps | `selective` |
| experts that run one by one in a Python loop | `expert_loop` |
"""
