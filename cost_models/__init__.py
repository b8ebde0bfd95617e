"""What a strategy costs: time and memory on a given cluster, with the provenance of every number. Imports nothing else of ours.

The way through: `inputs` (what users write) -> `specs` (what is trained, on what) -> `calibration` and `hardware` (what the
machine does) -> `strategies` (a batch of candidate plans) -> `layers` (one layer, the model's ends) -> `memory` and `step` (a
stage, a step) -> `evaluate`.

| look for | file |
| --- | --- |
| every cost of a batch, the verdict of memory | `evaluate.py` |
| the list of named terms and tiers | `terms.py` |
| pipeline bubble | `step/pipeline.py` |
| FSDP's all-gather; DDP's reduction | `step/fsdp_comm.py`; `step/ddp_comm.py` |
| the 80 % range of time | `step/ranges.py` |
| the range of memory, peak per stage | `memory/stage_memory.py` |
| activations of a layer (gated MLP, say); under recomputation | `memory/activations.py`; `memory/layer_memory.py` |
| seconds of a layer | `layers/costs.py` |
| seconds of a matrix product; of attention | `hardware/gemm.py`; `hardware/attention.py` |
| seconds of a collective | `hardware/collectives.py` |
| a GPU's data sheet (NVLink bandwidth, peaks, memory) | `presets/gpus/NAME.json` |
| measured curves that ship with us | `reference/` |
| what a framework does, keeps, overlaps | `frameworks/` |
| stages on pools of different nodes | `pools/` |
| constants of the time model; of the memory model | `constants.py`; `memory/constants.py` |
| formulas, sources, measured errors | `EQUATIONS.md` |

Each package's `__init__` says in the same way what its files hold.
"""
