"""The plan for NeMo 2.7: torchrun ... train.py [--mock-data]

NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there (--framework megatron-bridge says the same plans).
One line of JSON a step gives the largest seconds and peaks of memory among all ranks.
"""

import argparse
import json
import time
from dataclasses import dataclass

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.tokenizer_utils import get_nmt_tokenizer

VOCAB_SIZE = 151936
STEPS = 50
MOCK_STEPS = 10


@dataclass
class LatentConfig(MLATransformerConfig, llm.GPTConfig):
    """A model with multi-latent attention."""


def model_config():
    return llm.GPTConfig(
        seq_length=4096,
        overlap_moe_expert_parallel_comm=False,
        transformer_impl='transformer_engine',
        attention_backend=AttnBackend.fused,
        cross_entropy_loss_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        num_layers=64,
        hidden_size=5120,
        ffn_hidden_size=25600,
        num_attention_heads=64,
        num_query_groups=8,
        kv_channels=128,
        position_embedding_type='rope',
        normalization='RMSNorm',
        add_bias_linear=False,
        add_qkv_bias=False,
        qk_layernorm=True,
        attention_output_gate=False,
        vocab_size=-(-VOCAB_SIZE // 512) * 512,
        make_vocab_size_divisible_by=128,
        share_embeddings_and_output_weights=False,
        activation_func=F.silu,
        gated_linear_unit=True,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        apply_rope_fusion=True,
    )


def strategy():
    return nl.MegatronStrategy(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=2,
        context_parallel_size=1,
        sequence_parallel=True,
        pipeline_dtype=torch.bfloat16,
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
        ),
    )


def precision():
    return nl.MegatronMixedPrecision(
        precision='bf16-mixed',
        fp8='e4m3',
        fp8_recipe='blockwise',
        grad_reduce_in_fp32=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        autocast_enabled=False,
    )


def optimizer_config():
    return OptimizerConfig(
        lr=0.0001,
        min_lr=1e-05,
        weight_decay=0.1,
        adam_beta1=0.9,
        adam_beta2=0.95,
        clip_grad=1.0,
        use_distributed_optimizer=True,
        overlap_param_gather=True,
        optimizer='adam',
    )


def comm_overlap():
    return None


def adapter():
    return None


class StepLines(pl.Callback):
    """Prints what each step took."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        torch.cuda.synchronize()
        seconds = time.perf_counter() - self.started
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        largest = torch.tensor([seconds, *peaks], dtype=torch.float64, device="cuda")
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        seconds, allocated, reserved = largest.tolist()
        if torch.distributed.get_rank() == 0:
            line = {"seconds": seconds, "peak_allocated_bytes": int(allocated), "peak_reserved_bytes": int(reserved)}
            print(json.dumps({"step": trainer.global_step, **line}), flush=True)


def data_module(asked):
    if asked.mock_data:
        # Some releases of the tokenizer add a token for the end of a document.
        tokenizer = get_nmt_tokenizer(library="null", model_name="NullTokenizer", vocab_size=VOCAB_SIZE - 1)
        return llm.MockDataModule(
            tokenizer=tokenizer,
            micro_batch_size=1,
            global_batch_size=256,
            seq_length=4096,
        )
    tokenizer = get_nmt_tokenizer(library="huggingface", model_name=asked.tokenizer)
    return llm.PreTrainingDataModule(
        paths=asked.data_path,
        tokenizer=tokenizer,
        micro_batch_size=1,
        global_batch_size=256,
        seq_length=4096,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mock-data", action="store_true", help="made-up tokens, ten steps")
    parser.add_argument("--data-path", nargs="+", help="prefixes of Megatron's binary datasets")
    parser.add_argument("--tokenizer", help="folder or name of a Hugging Face tokenizer")
    asked = parser.parse_args()
    if not asked.mock_data and not (asked.data_path and asked.tokenizer):
        parser.error("give --data-path and --tokenizer, or --mock-data")
    data = data_module(asked)
    overlap = comm_overlap()
    trainer = nl.Trainer(
        accelerator="gpu",
        devices=8,
        num_nodes=8,
        max_steps=MOCK_STEPS if asked.mock_data else STEPS,
        strategy=strategy(),
        plugins=precision(),
        callbacks=[StepLines(), *([overlap] if overlap else [])],
        accumulate_grad_batches=1,
        limit_val_batches=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
        enable_checkpointing=not asked.mock_data,
    )
    model = llm.GPTModel(model_config(), tokenizer=data.tokenizer)
    optim = nl.MegatronOptimizerModule(config=optimizer_config())
    llm.train(model=model, data=data, trainer=trainer, optim=optim, tokenizer="data", model_transform=adapter())


if __name__ == "__main__":
    main()
