"""Rules that a job breaks whatever its strategy: precisions and attention kernels that a GPU or a framework does not have.

They stand first among all rules. One of them rules out every strategy at once, so nothing else needs to be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.specs.cluster import Generation
from planner.rules.rule import Rule, always, only

_KERNEL_GENERATIONS: Mapping[str, tuple[Generation, ...]] = {
    "fa1": ("ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"),
    "fa2": ("ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"),
    "fa3": ("hopper",),
    "flex": ("ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"),
    "cudnn": ("ampere", "ada", "hopper", "blackwell"),
}
"""GPU generations that each kernel runs on. PyTorch's sdpa is missing because it has some kernel everywhere.

Sources: Dao-AILab/flash-attention README; NVIDIA cuDNN support matrix.
"""


def _recipe_missing(job: Job) -> bool:
    # MXFP8 scales blocks of 32 values in hardware, which tensor cores do from Blackwell on.
    older = job.cluster.gpu.generation in ("volta", "ampere", "ada", "hopper")
    return job.training.precision == "fp8" and job.training.fp8_recipe == "mxfp8" and older


def _kernel_missing(job: Job) -> bool:
    training, generation = job.training, job.cluster.gpu.generation
    known = _KERNEL_GENERATIONS.get(training.attention_kernel)
    # A kernel that nobody asked for is the resolver's guess and no reason to refuse the user's job.
    asked = "attention_kernel" not in training.assumed and training.attention == "flash"
    return asked and known is not None and generation != "unknown" and generation not in known


def _asks_for(job: Job, *kernels: str) -> bool:
    """Whether the user named one of these kernels."""
    training = job.training
    asked = "attention_kernel" not in training.assumed and training.attention == "flash"
    return asked and training.attention_kernel in kernels


def _without_positions(job: Job) -> bool:
    return job.cluster.gpu.generation != "volta" and _asks_for(job, "sdpa", "cudnn", "fa1")


def _flex(job: Job) -> bool:
    return _asks_for(job, "flex")


def _chunked(job: Job) -> bool:
    return job.training.cross_entropy == "chunked"


def _fused_by_transformer_engine(job: Job) -> bool:
    return job.training.cross_entropy == "te" and job.training.recipe is None


def _low_precision(job: Job) -> bool:
    return job.training.precision in ("fp8", "nvfp4")


def _nvfp4(job: Job) -> bool:
    return job.training.precision == "nvfp4"


def _low_precision_locally(job: Job) -> bool:
    return _low_precision(job) and job.training.transformer_impl == "local"


_OTHER = "Set precision to 'bf16'."
HARDWARE_RULES: tuple[Rule, ...] = (
    Rule(
        "recipe-unsupported-by-gpu", always, "fp8_recipe '{recipe}' needs a Blackwell GPU or a newer one, and the cluster has {gpu}",
        "Set fp8_recipe to 'delayed', 'tensorwise' or 'blockwise'.", "TransformerEngine transformer_engine/pytorch/fp8.py",
        when=_recipe_missing,
    ),
    Rule(
        "precision-unsupported-by-framework", always, "{framework} has no {precision} training", _OTHER,
        "no such key in its configuration", frameworks=frameworks_where(lambda facts: "fp8" in facts.choices.without_precisions), when=_low_precision,
    ),
    Rule(
        "precision-unsupported-by-framework", always, "{framework} has no {precision} training", _OTHER,
        "no such key in its configuration", frameworks=frameworks_where(lambda facts: facts.choices.without_precisions == {"nvfp4"}), when=_nvfp4,
    ),
    Rule(
        "precision-unsupported-by-framework", always, "megatron {version} has no {precision} training, which came with core 0.15",
        _OTHER, "megatron/training/arguments.py (fp4_format)", frameworks=only("megatron"), until="0.15", when=_nvfp4,
    ),
    Rule(
        "precision-unsupported-by-framework", always, "megatron trains in {precision} only with transformer_impl 'transformer-engine', but it is 'local'",
        "Set transformer_impl to 'transformer-engine'.", "megatron/training/arguments.py (fp8)",
        frameworks=only("megatron"), when=_low_precision_locally,
    ),
    Rule(
        "attention-unsupported-by-gpu", always, "attention_kernel '{kernel}' does not run on {gpu}",
        "Use another attention_kernel, such as 'sdpa'.", "Dao-AILab/flash-attention README; cuDNN support matrix",
        when=_kernel_missing,
    ),
    Rule(
        "attention-unsupported-by-framework", always, "torchtitan {version} does not have attention_kernel '{kernel}' for "
        "language models, whose tokens carry positions", "Use 'flex', which is torchtitan's default, or leave attention_kernel out.",
        "torchtitan/models/common/config_utils.py (get_attention_config)", frameworks=only("torchtitan"), since="0.3",
        when=_without_positions,
    ),
    Rule(
        "attention-unsupported-by-framework", always, "{framework} does not have attention_kernel 'flex'",
        "Leave attention_kernel out.", "no such key in its configuration", frameworks=only("megatron", "megatron-deepspeed"),
        when=_flex,
    ),
    Rule(
        "cross-entropy-unsupported", always, "cross_entropy is 'chunked', but {framework} computes its loss in one piece",
        "Leave cross_entropy out to use the framework's own.",
        "torchtitan/components/loss.py (ChunkedLossWrapper)",
        frameworks=frameworks_where(lambda facts: not facts.choices.chunked_loss), when=_chunked,
    ),
    Rule(
        "cross-entropy-unsupported", always, "cross_entropy is 'chunked', but torchtitan {version} computes its loss in one piece",
        "Leave cross_entropy out, or use torchtitan 0.3.", "torchtitan/components/loss.py (ChunkedLossWrapper)",
        frameworks=only("torchtitan"), until="0.3", when=_chunked,
    ),
    # NVIDIA's recipes are Megatron-Bridge's, which starts Core without Megatron-LM's arguments: there it is a warning alone
    # (megatron/core/model_parallel_config.py).
    Rule(
        "cross-entropy-unsupported", always, "cross_entropy is 'te', which megatron {version} refuses as unstable",
        "Set cross_entropy to 'fused', or use core 0.18.",
        "megatron/training/arguments.py (cross_entropy_fusion_impl, read in core 0.18.0, 0.19.0 and 0.19.2)",
        frameworks=only("megatron"), since="0.19", when=_fused_by_transformer_engine,
    ),
)  # fmt: skip
