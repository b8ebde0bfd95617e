"""Registers the plan's model with torchtitan 0.2: [experimental] custom_import of plan.toml names this module."""

from dataclasses import replace

import plan_steps
from torchtitan.models.qwen3 import get_train_spec
from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
from torchtitan.models.moe import MoEArgs
from torchtitan.protocols.train_spec import register_train_spec

MODEL = Qwen3ModelArgs(
    dim=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    vocab_size=32000,
    hidden_dim=0,
    qk_norm=False,
    enable_weight_tying=False,
    max_seq_len=32768,
    moe_enabled=True,
    moe_inter_dim=14336,
    moe_args=MoEArgs(
        num_experts=8,
        num_shared_experts=0,
        top_k=2,
        score_func='softmax',
        route_norm=True,
        score_before_experts=False,
    ),
    attn_type='sdpa',
    attn_mask_type='causal',
)
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data

register_train_spec("plan", plan_steps.with_steps(replace(get_train_spec(), model_args={"plan": MODEL}), DOCUMENT_LENGTH))
