"""The plan for torchtitan 0.3: python -m torchtitan.train --module plan_config --config plan (or plan_mock)."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import llama3 as family
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from plan_steps import NoTokenizer, RandomTokens, StepMetrics

VOCAB_SIZE = 128256
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data


def model_spec() -> ModelSpec:
    """The plan's model, registered as flavour "plan"."""
    layers = family._build_llama3_layers(
        n_layers=16,
        dim=2048,
        n_heads=32,
        n_kv_heads=8,
        hidden_dim=8192,
        attn_backend='flex',
        rope=ComplexRoPE.Config(dim=64, max_seq_len=131072, theta=500000.0),
    )
    model = family.Llama3Model.Config(
        dim=2048,
        vocab_size=VOCAB_SIZE,
        enable_weight_tying=True,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=2048, param_init=family._EMBEDDING_SKIP_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=2048, param_init=family._NORM_INIT),
        lm_head=Linear.Config(in_features=2048, out_features=VOCAB_SIZE, param_init=family._output_linear_init(2048)),
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
            seq_len=2048,
            global_batch_size=16,
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
            expert_parallel_degree=1,
            fsdp_reshard_after_forward='never',
            pipeline_parallel_schedule='1F1B',
            enable_sequence_parallel=False,
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=1,
        ),
        activation_checkpoint=FullAC.Config(),
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
