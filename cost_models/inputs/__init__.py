"""What users write, read once: documents in the contract's names and human units become the dataclasses of `specs`.

| look for | file |
| --- | --- |
| model: its fields, how it is read | `model`, `model_fields` |
| a Hugging Face `config.json` | `hf_config`, `hf/` (one row per family) |
| cluster, GPU, network | `cluster`, `gpu` |
| several pools of nodes | `pools` |
| training job | `training` |
| field types, problems, warnings | `fields` |

Other spellings of names are in `cost_models/synonyms.py`, and a preset's numbers in `cost_models/presets/`.
"""
