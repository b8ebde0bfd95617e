"""Tuning by real training steps: the plans of a response are measured, and ranked again by what was found.

| look for | file |
| --- | --- |
| what a tuning found, as one JSON document | `document` |
| from a plan to the row that a trial runs | `rows` |
| what runs trials: PyTorch's own parallelism, exported launch files | `backends`, `exports` |
| the loop around a study | `loop` |
| where a tuning is kept, and how it is continued | `stored` |
| who runs a trial, and whether it still does | `owners` |
| whether this machine is the one that was planned for | `machine` |
| what its trials teach of the cost models' terms | `learnt` |
| the run-time knobs of the best plan | `knobs` |
"""
