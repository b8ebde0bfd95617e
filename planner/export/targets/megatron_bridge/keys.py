"""The keys of Megatron-Bridge's `ConfigContainer`, by section, and the releases of Megatron Core that Bridge's releases run on.

Sections are attributes of the container, and what stands in them are attributes of Megatron Core's classes, so that the table is
`megatron.attributes`. Source: `megatron/bridge/training/config.py` of the wheels 0.3.1, 0.4.2, 0.5.1 and 0.6.2, whose containers were
filled, and validated, with exported files.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.targets.megatron.adapters import CANONICAL, DORA, LORA
from planner.export.targets.megatron.attributes import Part

CORE: Mapping[str, str] = {"0.3": "0.16", "0.4": "0.17", "0.5": "0.18", "0.6": "0.19"}
"""docs/releases/software-versions.md for 0.3 and 0.4; 0.5 imports what 0.17 has not, and 0.6 is installed with 0.19. The wheels of
0.1 and 0.2 are release candidates."""
VERSIONS = tuple(CORE)
SECTIONS: Mapping[Part, str] = {
    "model": "model", "ddp": "ddp", "optimizer": "optimizer", "precision": "mixed_precision", "train": "train",
    "checkpoint": "checkpoint",
}  # fmt: skip
PARTS: Mapping[str, Part] = {section: part for part, section in SECTIONS.items()}
DATA_LENGTH = "dataset.seq_length"
PAD_VOCABULARY = "model.should_pad_vocab"
TE_RNG = "rng.te_rng_tracker"
"""CUDA graphs assert it (gpt_provider.py, provide)."""
GRAPHS = "model.cuda_graph_impl"
LAYER_GRAPHS_BY_TE_SINCE = "0.6"
"""utils/cuda_graph.py takes "local" for graphs of a whole iteration alone from then on."""
REUSE = "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"
FSDP = "dist.use_megatron_fsdp"
STEPS = "train.train_iters"
COMM = "comm_overlap"
ADAPTER, TARGET = "peft", "_target_"
_PEFT = "megatron.bridge.peft"
ADAPTERS: Mapping[str, str] = {
    LORA: f"{_PEFT}.lora.LoRA", DORA: f"{_PEFT}.dora.DoRA", CANONICAL: f"{_PEFT}.canonical_lora.CanonicalLoRA",
}  # fmt: skip
"""What Bridge instantiates where an override holds an object with such a target."""
PLAN, SCRIPT = "plan.yaml", "train.py"
