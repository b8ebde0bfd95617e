"""The keys of train_plan.json, the file that the generated PyTorch script reads."""

from __future__ import annotations

from collections.abc import Callable

from planner.export.quantities import Quantities
from planner.export.spellings import Spelling

NATIVE = "native"
LOCAL_SGD, LOCAL_RANKS = "local_sgd", "local_sgd.ranks"
"""Section of local SGD, and the ranks that reduce gradients among themselves at every step."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ONE_LOOP = "the script's loop has no such"


def _says(field: str) -> Callable[[Quantities], bool]:
    return lambda q: q.peek(field) is not None


SPELLINGS: tuple[Spelling, ...] = (
    Spelling("mesh.pp", "pp"),
    Spelling("mesh.cp", "cp"),
    Spelling("mesh.tp", "tp"),
    # 0 is DistributedDataParallel, 2 and 3 are FSDP2 without and with reshard_after_forward.
    Spelling("zero", "zero", {0: 0, 2: 2, 3: 3}, "FSDP2 shards parameters, gradients and optimizer state together"),
    # no_sync of DistributedDataParallel, set_requires_gradient_sync of FSDP2.
    Spelling("grad_sync", "grad_sync", {"last": "last", "each": "each"}),
    Spelling("sequence_parallel", "sequence_parallel", {True: True, False: False}),
    Spelling("recompute", "recompute", {"none": "none", "full": "full"}, "the script recomputes whole layers"),
    Spelling("context_rotation", "cp_comm", {"allgather": "allgather", "p2p": "alltoall"},
             "torch's set_rotate_method knows allgather and alltoall, which is a ring exchange", idle="allgather"),
    Spelling("pipeline.schedule", "schedule", {
        "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
    }, "torch.distributed.pipelining has no such schedule", idle="1F1B"),
    Spelling("pipeline.layers_per_stage", "layers_per_stage"),
    Spelling("batch.sequence_length", "training.seq_length"),
    Spelling("batch.micro_batch_size", "micro_batch_size"),
    Spelling("batch.global_batch_size", "training.global_batch_size"),
    Spelling("precision.parameters", "training.param_dtype", DTYPES, "the script stores parameters in fp32, bf16 or fp16"),
    Spelling("precision.reduce", "training.grad_reduce_dtype", DTYPES, "the script reduces gradients in fp32, bf16 or fp16", idle="float32"),
    Spelling("optimizer", "training.optimizer", {
        "adam": "adamw", "sgd": "sgd", "adam-8bit": "adamw-8bit", "adam-4bit": "adamw-4bit", "sgd-momentum": "sgd-momentum", "muon": "muon",
        "adafactor": "adafactor",
    }, f"{_ONE_LOOP} optimizer"),
    # "linear" is Liger's loss, which never holds the logits; the model computes it from the labels.
    Spelling("loss", "training.cross_entropy", {"unfused": "unfused", "compiled": "compiled", "linear": "linear"}, f"{_ONE_LOOP} loss"),
    Spelling("compile", "training.compile", {True: True, False: False}),
    Spelling("model_impl", "training.model_impl", {"native": NATIVE, "transformers": "transformers", "liger": "liger"}),
    # Hooks of DistributedDataParallel, written only where one is asked for.
    Spelling("compression.kind", "compression.kind", {kind: kind for kind in ("fp16", "bf16", "powersgd")},
             "DistributedDataParallel has no such hook", when=_says("compression.kind")),
    Spelling("compression.rank", "compression.rank", when=_says("compression.rank")),
    Spelling("compression.start_iter", "compression.freeze_steps", when=_says("compression.freeze_steps")),
    Spelling("local_sgd.period", "sync.sync_every", when=_says("sync.sync_every")),
)  # fmt: skip
"""Keys that say one field each, in its own value or another spelling."""

AVERAGE = "average"
"""Section of the weights' moving average, with the fields of `training.ema`; absent where none is kept."""
COMPUTE = "precision.compute"
FLOAT8 = "precision.float8"
REPLICAS = "mesh.dp_replicate"
SHARDS = "mesh.dp_shard"
OFFLOAD = "cpu_offload"
ATTENTION = "attention"
DROPOUT = "dropout"
MODEL = "model"

PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "fp8": "bfloat16"}
KERNELS = {
    "cudnn": "cudnn",
    "sdpa": "flash",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "flex": "flex_attention",
}
"""The last three are attention implementations of transformers; the others, kernels of scaled_dot_product_attention."""
NATIVE_KERNELS = ("cudnn", "sdpa")
FLOAT8_RECIPES = ("tensorwise", "rowwise")

SHAPE = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
    "gated_mlp", "tie_word_embeddings", "norm", "norm_bias", "position_embedding", "max_position_embeddings", "mlp_bias",
)  # fmt: skip
"""Fields of a model that the script's own decoder takes under their own names."""
