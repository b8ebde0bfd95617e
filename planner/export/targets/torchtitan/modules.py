"""The Python module of a launch that registers the plan's model with torchtitan 0.2, as flavour "plan" of model "plan"."""

from __future__ import annotations

from typing import Any

from planner.export.formats.python_module import Code, call
from planner.export.quantities import Quantities
from planner.export.targets.torchtitan.models import Shape, llama_multiplier, shape_of

_ARGUMENTS = {"llama3": "TransformerModelArgs", "qwen3": "Qwen3ModelArgs", "deepseek_v3": "DeepSeekV3ModelArgs"}


def flavour_module(q: Quantities) -> str:
    """The module.

    Raises:
        FieldNotExpressibleError: none of torchtitan's models has this shape.
    """
    shape = shape_of(q)
    arguments = ARGUMENTS_OF[shape.family](shape)
    # models/attention.py: FlexAttention takes a mask of documents, scaled_dot_product_attention none but the causal one.
    flex = q.peek("training.attention_kernel") == "flex"
    if q.peek("cp") > 1 and flex and shape.family != "llama3":
        raise q.refusal("training.attention_kernel", why=f"{shape.family} splits the context with scaled_dot_product_attention alone",
                        nearest={"cp": 1})  # fmt: skip
    documents = q.peek("training.mean_document_length")
    arguments["attn_type"] = "flex" if flex else "sdpa"
    arguments["attn_mask_type"] = "block_causal" if flex and documents else "causal"
    imports = "from torchtitan.models.moe import MoEArgs\n" if shape.is_moe else ""
    return f'''"""Registers the plan's model with torchtitan 0.2: [experimental] custom_import of plan.toml names this module."""

from dataclasses import replace

import {"plan_steps"}
from torchtitan.models.{shape.family} import get_train_spec
from torchtitan.models.{shape.family}.model.args import {_ARGUMENTS[shape.family]}
{imports}from torchtitan.protocols.train_spec import register_train_spec

MODEL = {call(_ARGUMENTS[shape.family], arguments, "")}
DOCUMENT_LENGTH = {documents!r}  # mean tokens of a document of the mock data

register_train_spec("plan", plan_steps.with_steps(replace(get_train_spec(), model_args={{"plan": MODEL}}), DOCUMENT_LENGTH))
'''


def _llama(shape: Shape) -> dict[str, Any]:
    given = shape.arguments
    return {
        "dim": given["hidden_size"], "n_layers": given["num_layers"], "n_heads": given["num_attention_heads"],
        "n_kv_heads": given["num_key_value_heads"], "vocab_size": given["vocab_size"], "multiple_of": given["intermediate_size"],
        "ffn_dim_multiplier": llama_multiplier(given["hidden_size"], given["intermediate_size"]),
        "max_seq_len": given["max_position_embeddings"],
    }  # fmt: skip


def _qwen(shape: Shape) -> dict[str, Any]:
    given = shape.arguments
    # Qwen3ModelArgs wants a width of dense layers also where every layer has experts; it is not used there.
    found = {
        "dim": given["hidden_size"], "n_layers": given["num_layers"], "n_heads": given["num_attention_heads"],
        "n_kv_heads": given["num_key_value_heads"], "head_dim": given["head_dim"], "vocab_size": given["vocab_size"],
        "hidden_dim": given["intermediate_size"], "qk_norm": given["qk_norm"], "enable_weight_tying": given["tie_word_embeddings"],
        "max_seq_len": given["max_position_embeddings"], "moe_enabled": shape.is_moe,
    }  # fmt: skip
    if shape.is_moe:
        found["moe_inter_dim"] = given["expert_intermediate_size"]
        experts = {
            "num_experts": given["num_experts"], "num_shared_experts": 0, "top_k": given["top_k"], "score_func": "softmax",
            "route_norm": True, "score_before_experts": False,
        }  # fmt: skip
        found["moe_args"] = Code(call("MoEArgs", experts))
    return found


def _deepseek(shape: Shape) -> dict[str, Any]:
    given = shape.arguments
    # One group means no groups: the router then takes the best of all experts (models/moe/moe.py).
    grouped = given["num_groups"] > 1
    experts = {
        "num_experts": given["num_experts"], "num_shared_experts": given["num_shared_experts"], "top_k": given["top_k"],
        "num_expert_groups": given["num_groups"] if grouped else None, "num_limited_groups": given["topk_groups"] if grouped else None,
        "score_func": "sigmoid", "route_norm": True, "score_before_experts": False,
    }  # fmt: skip
    return {
        "dim": given["hidden_size"], "n_layers": given["num_layers"], "n_dense_layers": given["first_dense_layers"],
        "n_heads": given["num_attention_heads"], "vocab_size": given["vocab_size"], "inter_dim": given["intermediate_size"],
        "moe_inter_dim": given["expert_intermediate_size"],
        **{name: given[name] for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
        "max_seq_len": given["max_position_embeddings"], "moe_args": Code(call("MoEArgs", experts)),
    }  # fmt: skip


ARGUMENTS_OF = {"llama3": _llama, "qwen3": _qwen, "deepseek_v3": _deepseek}
