"""The Python module of a launch that configures torchtitan 0.3: `plan()` and, on random tokens, `plan_mock()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.formats.python_module import Code, call
from planner.export.quantities import Quantities
from planner.export.targets.torchtitan.models import Shape, shape_of

_CHECKPOINTS = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
_DISPATCHERS = {("alltoall", None): "standard", ("flex", "deepep"): "deepep", ("flex", "hybridep"): "hybridep"}


def config_module(q: Quantities, sections: Mapping[str, Any]) -> str:
    """The module.

    Raises:
        FieldNotExpressibleError: none of torchtitan's models has this shape, or the release lacks a converter or dispatcher.
    """
    shape = shape_of(q)
    # Lists of modules stay on one line, however long: they are data.
    parallelism = {name: Code(repr(value)) for name, value in sections["parallelism"].items()}
    training = dict(sections["training"])
    model = _MODELS[shape.family](q, shape)
    return f'''"""The plan for torchtitan 0.3: python -m torchtitan.train --module plan_config --config plan (or plan_mock)."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{_converter_import(q)}from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
{_checkpoint_import(q)}from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import {shape.family} as family
{_IMPORTS[shape.family]}from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from plan_steps import NoTokenizer, RandomTokens, StepMetrics

VOCAB_SIZE = {shape.arguments["vocab_size"]}
DOCUMENT_LENGTH = {q.peek("training.mean_document_length")!r}  # mean tokens of a document of the mock data


def model_spec() -> ModelSpec:
    """The plan's model, registered as flavour "plan"."""
{model}
    spec = family.model_registry("debugmodel")
    spec.flavor, spec.model = "plan", model
    return spec


def plan() -> Trainer.Config:
    """The plan on a dataset."""
    return Trainer.Config(
        model_spec=model_spec(),
        training={call("TrainingConfig", training, "        ")},
        parallelism={call("ParallelismConfig", parallelism, "        ")},
        activation_checkpoint={_CHECKPOINTS[sections["activation_checkpoint"]["mode"]]},
        compile={call("CompileConfig", sections["compile"], "        ")},
        loss={_loss(q)},
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
'''


def _loss(q: Quantities) -> str:
    # Compiling the loss is a component of CompileConfig, whichever class computes it.
    entropy = "CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE)"
    return f"ChunkedLossWrapper.Config(loss_fn={entropy})" if q.peek("training.cross_entropy") == "chunked" else entropy


def _checkpoint_import(q: Quantities) -> str:
    name = _CHECKPOINTS[q.peek("recompute")].removesuffix(".Config()")
    return "" if name == "None" else f"from torchtitan.distributed.activation_checkpoint import {name}\n"


def _converter_import(q: Quantities) -> str:
    name = _converter(q)
    return f"from torchtitan.components.quantization import {name}\n" if name else ""


def _converter(q: Quantities) -> str:
    precision = q.peek("training.precision")
    if precision == "nvfp4":
        return "NVFP4LinearConverter"
    if precision != "fp8":
        return ""
    return "MXFP8LinearConverter" if q.peek("training.fp8_recipe") == "mxfp8" else "Float8LinearConverter"


def _converted(q: Quantities) -> str:
    """The lines that quantise the products of all layers, and not the head."""
    name = _converter(q)
    if not name:
        return ""
    # The converters warn, or take other kernels, where the model is not compiled.
    compiles = bool(q.peek("training.compile"))
    chosen = {
        "Float8LinearConverter": 'recipe_name="rowwise", filter_fqns=["lm_head"]',
        "MXFP8LinearConverter": 'fqns=["layers"]',
        "NVFP4LinearConverter": 'fqns=["layers"]',
    }[name]
    return f"    model = {name}.Config({chosen}, model_compile_enabled={compiles}).build().convert(model)\n"


def _ends(shape: Shape, config: str, *, norm: str) -> str:
    given = shape.arguments
    # Tied weights are initialised once, as the head's.
    embedding = "family._EMBEDDING_SKIP_INIT" if given["tie_word_embeddings"] else "family._EMBEDDING_INIT"
    head = "family._LINEAR_INIT" if shape.family == "qwen3" else f"family._output_linear_init({given['hidden_size']})"
    return f"""    model = family.{config}(
        dim={given["hidden_size"]},
        vocab_size=VOCAB_SIZE,
        {"enable_weight_tying=True," if given["tie_word_embeddings"] else "# the embedding and the head are two matrices"}
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim={given["hidden_size"]}, param_init={embedding}
        ),
        norm={norm},
        lm_head=Linear.Config(in_features={given["hidden_size"]}, out_features=VOCAB_SIZE, param_init={head}),
        layers=layers,
    )
"""


def _llama(q: Quantities, shape: Shape) -> str:
    given = shape.arguments
    layers = call("family._build_llama3_layers", {
        "n_layers": given["num_layers"], "dim": given["hidden_size"], "n_heads": given["num_attention_heads"],
        "n_kv_heads": given["num_key_value_heads"], "hidden_dim": given["intermediate_size"], "attn_backend": "flex",
        "rope": Code(_rope("ComplexRoPE", shape)),
    })  # fmt: skip
    norm = f"RMSNorm.Config(normalized_shape={given['hidden_size']}, param_init=family._NORM_INIT)"
    return f"    layers = {layers}\n" + _ends(shape, "Llama3Model.Config", norm=norm) + _converted(q)


def _rope(name: str, shape: Shape) -> str:
    given = shape.arguments
    width = given.get("qk_rope_head_dim", given["head_dim"])
    return f"{name}.Config(dim={width}, max_seq_len={given['max_position_embeddings']}, theta=500000.0)"


def _qwen(q: Quantities, shape: Shape) -> str:
    given = shape.arguments
    sizes: dict[str, Any] = {
        "n_layers": given["num_layers"], "dim": given["hidden_size"], "n_heads": given["num_attention_heads"],
        "n_kv_heads": given["num_key_value_heads"], "head_dim": given["head_dim"],
    }  # fmt: skip
    if shape.is_moe:
        sizes |= {
            "moe_hidden_dim": given["expert_intermediate_size"], "num_experts": given["num_experts"], "top_k": given["top_k"],
            "moe_comm_backend": _backend(q),
        }  # fmt: skip
    else:
        sizes["hidden_dim"] = given["intermediate_size"]
    builder = "family._build_qwen3_moe_layers" if shape.is_moe else "family._build_qwen3_layers"
    layers = call(builder, {**sizes, "attn_backend": "flex", "rope": Code(_rope("CosSinRoPE", shape))})
    # The builders of qwen3 put norms into every head; GQAttention.Config takes None for models without.
    plain = "" if given["qk_norm"] else "    for layer in layers:\n        layer.attention.qk_norm = None\n"
    return (
        f"    layers = {layers}\n{plain}"
        + _ends(shape, "Qwen3Model.Config", norm=f"family._qwen3_norm({given['hidden_size']})")
        + _converted(q)
    )


def _backend(q: Quantities) -> str:
    # AllToAllTokenDispatcher falls back to local dispatch where no ranks share the experts.
    if q.peek("ep") == 1:
        return "standard"
    q.only(
        "moe_dispatcher", ["alltoall", "flex"], why="its dispatchers are standard, deepep and hybridep (comm_backend)"
    )
    kernels = q["flex_backend"] if q["moe_dispatcher"] == "flex" else None
    return _DISPATCHERS[q["moe_dispatcher"], kernels]


def _deepseek(q: Quantities, shape: Shape) -> str:
    given = shape.arguments
    grouped = given["num_groups"] > 1
    latent = {
        name: given[name]
        for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    }
    layers = call("family.build_mla_moe_layers", {
        "n_layers": given["num_layers"], "n_dense_layers": given["first_dense_layers"], "dim": given["hidden_size"],
        "n_heads": given["num_attention_heads"], **latent, "mscale": 1.0, "dense_hidden_dim": given["intermediate_size"],
        "moe_hidden_dim": given["expert_intermediate_size"], "num_experts": given["num_experts"],
        "num_shared_experts": given["num_shared_experts"], "router_top_k": given["top_k"], "router_score_func": "sigmoid",
        "router_num_expert_groups": given["num_groups"] if grouped else None,
        "router_num_limited_groups": given["topk_groups"] if grouped else None, "router_route_norm": True, "attn_backend": "flex",
        "moe_comm_backend": _backend(q), "non_blocking_capacity_factor": None, "linear_init": Code("family._LINEAR_INIT"),
        "norm_init": Code("family._NORM_INIT"), "depth_init": Code("family._depth_init"),
        "depth_experts_init": Code("family._depth_experts_init"), "rope": Code(_rope("ComplexRoPE", shape)),
    })  # fmt: skip
    norm = f"RMSNorm.Config(normalized_shape={given['hidden_size']}, param_init=family._NORM_INIT)"
    return f"    layers = {layers}\n" + _ends(shape, "DeepSeekV3Model.Config", norm=norm) + _converted(q)


_IMPORTS = {
    "llama3": "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm\n",
    "qwen3": "from torchtitan.models.common import CosSinRoPE, Embedding, Linear\n",
    "deepseek_v3": "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm\n",
}
_MODELS = {"llama3": _llama, "qwen3": _qwen, "deepseek_v3": _deepseek}
