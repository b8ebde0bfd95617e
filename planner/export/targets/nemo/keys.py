"""Where NeMo 2 takes Megatron Core's settings: arguments of its own classes, and of Megatron Core's.

Source: `MegatronStrategy`, `MegatronMixedPrecision` and `MegatronCommOverlapCallback` of `nemo/lightning/pytorch`, and `GPTConfig`
and `MockDataModule` of `nemo/collections/llm`, in the wheels of nemo_toolkit 2.5.0, 2.6.0 and 2.7.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.targets.megatron.attributes import Part

CORE: Mapping[str, str] = {"2.5": "0.14", "2.6": "0.15", "2.7": "0.16"}
"""Components of NVIDIA's containers 25.09, 25.11 and 26.02 (Megatron-Bridge, docs/releases/software-versions.md). 2.0 to 2.4 came with
cores before 0.14."""
VERSIONS = tuple(CORE)
FP4_SINCE = "2.7"
FSDP_FORMAT_SINCE = "2.7"
"""MegatronStrategy's save_ckpt_format "fsdp_dtensor"; how a run is saved is no part of a plan."""
TOKENIZERS = {"2.5": "nemo.collections.nlp.modules.common.tokenizer_utils", "2.6": "nemo.collections.nlp.modules.common.tokenizer_utils",
              "2.7": "nemo.collections.common.tokenizers.tokenizer_utils"}  # fmt: skip

STRATEGY, CONFIG, LATENT = "MegatronStrategy", "GPTConfig", "LatentConfig"
DDP, OPTIMIZER, PRECISION = "DistributedDataParallelConfig", "OptimizerConfig", "MegatronMixedPrecision"
DATA, OVERLAP, TRAINER = "MockDataModule", "MegatronCommOverlapCallback", "Trainer"
VOCABULARY = "VOCAB_SIZE"
OF_STRATEGY = frozenset({
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "sequence_parallel", "expert_model_parallel_size", "expert_tensor_parallel_size", "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
})  # fmt: skip
"""Attributes of the model's configuration that the strategy overwrites with its own arguments."""
PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32"}
PARTS: Mapping[str, Part] = {
    CONFIG: "model", LATENT: "model", "MLAGPTConfig": "model", STRATEGY: "model", DDP: "ddp", OPTIMIZER: "optimizer", PRECISION: "precision",
    DATA: "train", "PreTrainingDataModule": "train", "model.config": "model", "trainer.strategy": "model", "trainer.strategy.ddp": "ddp",
    "optim.config": "optimizer", "trainer.plugins": "precision", "data": "train",
}  # fmt: skip
"""What stands before an argument's name: a class in Python, or a path into a recipe."""
