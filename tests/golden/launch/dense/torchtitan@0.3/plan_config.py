"""The plan for torchtitan 0.3: python -m torchtitan.train --module plan_config --config plan (or plan_mock)."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import llama3 as family
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from plan_steps import NoTokenizer, RandomTokens, StepMetrics

VOCAB_SIZE = 32000
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data


def model_spec() -> ModelSpec:
    """The plan's model, registered as flavour "plan"."""
    layers = family._build_llama3_layers(
        n_layers=40,
        dim=5120,
        n_heads=40,
        n_kv_heads=40,
        hidden_dim=13824,
        attn_backend='flex',
        rope=ComplexRoPE.Config(dim=128, max_seq_len=4096, theta=500000.0),
    )
    model = family.Llama3Model.Config(
        dim=5120,
        vocab_size=VOCAB_SIZE,
        # the embedding and the head are two matrices
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=5120, param_init=family._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=5120, param_init=family._NORM_INIT),
        lm_head=Linear.Config(in_features=5120, out_features=VOCAB_SIZE, param_init=family._output_linear_init(5120)),
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
            global_batch_size=128,
            dtype='float32',
            disable_cuda_graphs=True,
            enable_cpu_offload=False,
            local_batch_size=16,
            mixed_precision_param='bfloat16',
            mixed_precision_reduce='float32',
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=2,
            pipeline_parallel_degree=2,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            fsdp_reshard_after_forward='never',
            pipeline_parallel_schedule='Interleaved1F1B',
            enable_sequence_parallel=True,
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=8,
            pipeline_parallel_microbatch_size=1,
            pipeline_parallel_layers_per_stage=5,
            pipeline_parallel_first_stage_less_layers=0,
            pipeline_parallel_last_stage_less_layers=0,
        ),
        activation_checkpoint=None,
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
