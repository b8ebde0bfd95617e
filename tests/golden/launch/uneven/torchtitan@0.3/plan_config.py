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
        n_layers=126,
        dim=16384,
        n_heads=128,
        n_kv_heads=8,
        hidden_dim=53248,
        attn_backend='flex',
        rope=ComplexRoPE.Config(dim=128, max_seq_len=131072, theta=500000.0),
    )
    model = family.Llama3Model.Config(
        dim=16384,
        vocab_size=VOCAB_SIZE,
        # the embedding and the head are two matrices
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=16384, param_init=family._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=16384, param_init=family._NORM_INIT),
        lm_head=Linear.Config(in_features=16384, out_features=VOCAB_SIZE, param_init=family._output_linear_init(16384)),
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
            seq_len=8192,
            global_batch_size=2048,
            dtype='float32',
            disable_cuda_graphs=True,
            enable_cpu_offload=False,
            local_batch_size=256,
            mixed_precision_param='bfloat16',
            mixed_precision_reduce='float32',
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=8,
            pipeline_parallel_degree=16,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            fsdp_reshard_after_forward='never',
            pipeline_parallel_schedule='1F1B',
            enable_sequence_parallel=True,
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=8,
            pipeline_parallel_microbatch_size=1,
            module_fqns_per_model_part=[['tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4', 'layers.5', 'layers.6'], ['layers.7', 'layers.8', 'layers.9', 'layers.10', 'layers.11', 'layers.12', 'layers.13', 'layers.14'], ['layers.15', 'layers.16', 'layers.17', 'layers.18', 'layers.19', 'layers.20', 'layers.21', 'layers.22'], ['layers.23', 'layers.24', 'layers.25', 'layers.26', 'layers.27', 'layers.28', 'layers.29', 'layers.30'], ['layers.31', 'layers.32', 'layers.33', 'layers.34', 'layers.35', 'layers.36', 'layers.37', 'layers.38'], ['layers.39', 'layers.40', 'layers.41', 'layers.42', 'layers.43', 'layers.44', 'layers.45', 'layers.46'], ['layers.47', 'layers.48', 'layers.49', 'layers.50', 'layers.51', 'layers.52', 'layers.53', 'layers.54'], ['layers.55', 'layers.56', 'layers.57', 'layers.58', 'layers.59', 'layers.60', 'layers.61', 'layers.62'], ['layers.63', 'layers.64', 'layers.65', 'layers.66', 'layers.67', 'layers.68', 'layers.69', 'layers.70'], ['layers.71', 'layers.72', 'layers.73', 'layers.74', 'layers.75', 'layers.76', 'layers.77', 'layers.78'], ['layers.79', 'layers.80', 'layers.81', 'layers.82', 'layers.83', 'layers.84', 'layers.85', 'layers.86'], ['layers.87', 'layers.88', 'layers.89', 'layers.90', 'layers.91', 'layers.92', 'layers.93', 'layers.94'], ['layers.95', 'layers.96', 'layers.97', 'layers.98', 'layers.99', 'layers.100', 'layers.101', 'layers.102'], ['layers.103', 'layers.104', 'layers.105', 'layers.106', 'layers.107', 'layers.108', 'layers.109', 'layers.110'], ['layers.111', 'layers.112', 'layers.113', 'layers.114', 'layers.115', 'layers.116', 'layers.117', 'layers.118'], ['layers.119', 'layers.120', 'layers.121', 'layers.122', 'layers.123', 'layers.124', 'layers.125', 'norm', 'lm_head']],
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
