"""Registers the plan's model with torchtitan 0.2: [experimental] custom_import of plan.toml names this module."""

from dataclasses import replace

import plan_steps
from torchtitan.models.llama3 import get_train_spec
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.protocols.train_spec import register_train_spec

MODEL = TransformerModelArgs(
    dim=8192,
    n_layers=80,
    n_heads=64,
    n_kv_heads=8,
    vocab_size=128256,
    multiple_of=28672,
    ffn_dim_multiplier=1.0,
    max_seq_len=131072,
    attn_type='sdpa',
    attn_mask_type='causal',
)
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data

register_train_spec("plan", plan_steps.with_steps(replace(get_train_spec(), model_args={"plan": MODEL}), DOCUMENT_LENGTH))
