"""What is trained and on what: documents as users write them, and the frozen dataclasses that everything inside works with.

Boundary models (Pydantic, the contract's names, human units) are read once, here; the dataclasses are in SI base units.

| look for | file |
| --- | --- |
| model: sizes and layer kinds; how it is read | `model`; `model_input`, `model_fields` |
| a Hugging Face `config.json` | `hf_config`, `hf/` (one row per family) |
| cluster, GPU, network; how they are read | `cluster`; `cluster_input`, `gpu_input` |
| several pools of nodes | `pools_input` |
| training job; how it is read | `training`; `training_input` |
| field types, problems, warnings; other spellings of names | `fields`; `synonyms` |

A preset's numbers are in `cost_models/presets/`.
"""
