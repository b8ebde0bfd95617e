"""Registers the plan's model with torchtitan 0.2: [experimental] custom_import of plan.toml names this module."""

from dataclasses import replace

import plan_steps
from torchtitan.models.deepseek_v3 import get_train_spec
from torchtitan.models.deepseek_v3.model.args import DeepSeekV3ModelArgs
from torchtitan.models.moe import MoEArgs
from torchtitan.protocols.train_spec import register_train_spec

MODEL = DeepSeekV3ModelArgs(
    dim=7168,
    n_layers=61,
    n_dense_layers=3,
    n_heads=128,
    vocab_size=129280,
    inter_dim=18432,
    moe_inter_dim=2048,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    max_seq_len=163840,
    moe_args=MoEArgs(
        num_experts=256,
        num_shared_experts=1,
        top_k=8,
        num_expert_groups=8,
        num_limited_groups=4,
        score_func='sigmoid',
        route_norm=True,
        score_before_experts=False,
    ),
    attn_type='sdpa',
    attn_mask_type='causal',
)
DOCUMENT_LENGTH = None  # mean tokens of a document of the mock data

register_train_spec("plan", plan_steps.with_steps(replace(get_train_spec(), model_args={"plan": MODEL}), DOCUMENT_LENGTH))
