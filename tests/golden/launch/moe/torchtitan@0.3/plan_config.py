"""The plan for torchtitan 0.3: python -m torchtitan.train --module plan_config --config plan (or plan_mock)."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import qwen3 as family
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from plan_steps import NoTokenizer, RandomTokens, StepMetrics

VOCAB_SIZE = 32000
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data


def model_spec() -> ModelSpec:
    """The plan's model, registered as flavour "plan"."""
    layers = family._build_qwen3_moe_layers(
        n_layers=32,
        dim=4096,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        moe_hidden_dim=14336,
        num_experts=8,
        top_k=2,
        moe_comm_backend='standard',
        attn_backend='flex',
        rope=CosSinRoPE.Config(dim=128, max_seq_len=32768, theta=500000.0),
    )
    for layer in layers:
        layer.attention.qk_norm = None
    model = family.Qwen3Model.Config(
        dim=4096,
        vocab_size=VOCAB_SIZE,
        # the embedding and the head are two matrices
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=4096, param_init=family._EMBEDDING_INIT
        ),
        norm=family._qwen3_norm(4096),
        lm_head=Linear.Config(in_features=4096, out_features=VOCAB_SIZE, param_init=family._LINEAR_INIT),
        layers=layers,
    )

    spec = family.model_registry("debugmodel")
    spec.flavor, spec.model = "plan", model
    return spec


def plan() -> Trainer.Config:
    """The plan on a dataset."""
    return Trainer.Config(
        model_spec=model_spec(),
        training=TrainingConfig(
            seq_len=4096,
            global_batch_size=256,
            dtype='float32',
            disable_cuda_graphs=True,
            enable_cpu_offload=False,
            local_batch_size=1,
            mixed_precision_param='bfloat16',
            mixed_precision_reduce='float32',
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=1,
            pipeline_parallel_degree=1,
            context_parallel_degree=1,
            expert_parallel_degree=8,
            fsdp_reshard_after_forward='always',
            pipeline_parallel_schedule='1F1B',
            enable_sequence_parallel=False,
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=64,
        ),
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(
            enable_async_tensor_parallel=False,
            enable=False,
            components=['model', 'loss'],
        ),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE)),
        optimizer=default_adamw(lr=3e-4),
        metrics=StepMetrics.Config(log_freq=1),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )


def plan_mock() -> Trainer.Config:
    """The plan on random tokens, ten steps."""
    config = plan()
    config.dataloader = RandomTokens.Config(vocab_size=VOCAB_SIZE, document_length=DOCUMENT_LENGTH)
    config.tokenizer = NoTokenizer.Config()
    config.training.steps = 10
    return config
