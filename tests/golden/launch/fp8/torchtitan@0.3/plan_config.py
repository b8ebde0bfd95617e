"""The plan for torchtitan 0.3: python -m torchtitan.train --module plan_config --config plan (or plan_mock)."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import qwen3 as family
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from plan_steps import NoTokenizer, RandomTokens, StepMetrics

VOCAB_SIZE = 151936
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data


def model_spec() -> ModelSpec:
    """The plan's model, registered as flavour "plan"."""
    layers = family._build_qwen3_layers(
        n_layers=64,
        dim=5120,
        n_heads=64,
        n_kv_heads=8,
        head_dim=128,
        hidden_dim=25600,
        attn_backend='flex',
        rope=CosSinRoPE.Config(dim=128, max_seq_len=40960, theta=500000.0),
    )
    model = family.Qwen3Model.Config(
        dim=5120,
        vocab_size=VOCAB_SIZE,
        # the embedding and the head are two matrices
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=5120, param_init=family._EMBEDDING_INIT
        ),
        norm=family._qwen3_norm(5120),
        lm_head=Linear.Config(in_features=5120, out_features=VOCAB_SIZE, param_init=family._LINEAR_INIT),
        layers=layers,
    )
    model = Float8LinearConverter.Config(recipe_name="rowwise", filter_fqns=["lm_head"], model_compile_enabled=True).build().convert(model)

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
            tensor_parallel_degree=4,
            pipeline_parallel_degree=1,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            fsdp_reshard_after_forward='always',
            pipeline_parallel_schedule='1F1B',
            enable_sequence_parallel=True,
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=16,
        ),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(
            enable_async_tensor_parallel=False,
            enable=True,
            components=['model'],
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
