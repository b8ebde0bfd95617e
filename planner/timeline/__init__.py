"""The pipeline schedule of a plan as a timeline: every task of one step with its start and end, and what repeats of it.

| look for | file |
| --- | --- |
| the events of a plan's step, from its evaluate row | `step` |
| the order of tasks on every rank, by schedule | `orders` |
| when every task starts and ends | `play` |
| seconds of every task, from the cost models | `seconds` |
| warm-up, one period, how often it repeats, cool-down | `fold` |
| memory of one stage over the step | `memory` |
"""
