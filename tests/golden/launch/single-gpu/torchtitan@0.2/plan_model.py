"""Registers the plan's model with torchtitan 0.2: [experimental] custom_import of plan.toml names this module."""

from dataclasses import replace

import plan_steps
from torchtitan.models.qwen3 import get_train_spec
from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
from torchtitan.protocols.train_spec import register_train_spec

MODEL = Qwen3ModelArgs(
    dim=2048,
    n_layers=16,
    n_heads=32,
    n_kv_heads=8,
    head_dim=64,
    vocab_size=128256,
    hidden_dim=8192,
    qk_norm=False,
    enable_weight_tying=True,
    max_seq_len=131072,
    moe_enabled=False,
    attn_type='sdpa',
    attn_mask_type='causal',
)
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data

register_train_spec("plan", plan_steps.with_steps(replace(get_train_spec(), model_args={"plan": MODEL}), DOCUMENT_LENGTH))
