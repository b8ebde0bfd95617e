"""The profiling agent: measures the machine that training will run on, and writes a calibration that prices plans on it.

| file | what is there |
| --- | --- |
| `agent.py` | one measurement from start to end: what `meshwright profile run` calls (`measure`, `Settings`) |
| `bench/` | the benchmarks, one module per kind of operation, and `bench/__init__.py` says how they are cut into tasks |
| `machine/` | which machine this is, how its devices are linked and what state they are in; `machine/doctor.py` looks before measuring |
| `tasks.py`, `scale.py`, `rank_groups.py` | what a task is, at which sizes it measures, and among which groups of ranks |
| `rig.py`, `timing.py` | what a benchmark runs on, and the only stopwatch |
| `ranks.py`, `watch.py` | this process's place among the others, and what ends a measurement early |
| `state_file.py`, `fit.py`, `outbox.py` | finished tasks on disk, the document made of them, and documents that wait for a service |

Nothing here imports torch before something is measured, and nothing here knows the planner or the service.
"""
