"""Megatron Core's settings as attributes of its configuration classes, for the front ends that fill these in Python.

Arguments of Megatron-LM and attributes of the classes are mostly the same names; what differs stands here once, for both
directions. Source: the dataclasses of megatron-core 0.14.0 to 0.19.2 (`TransformerConfig`, `DistributedDataParallelConfig`,
`OptimizerConfig`), and `core_transformer_config_from_args` of `megatron/training/arguments.py`, which fills them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cost_models.strategies.fields import RECOMPUTE_MODULES
from planner.export.settings import Settings
from planner.export.targets.megatron.layout import layers_of_layout, numbers_of_pattern, pattern
from planner.export.targets.megatron.names import NAMES, Values
from planner.export.targets.megatron.read import READABLE

Part = Literal["model", "ddp", "optimizer", "precision", "train", "checkpoint"]
Attributes = dict[tuple[Part, str], Any]
"""Values by class and attribute."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
"""PyTorch's names; Transformer Engine's optimizer keeps fp8 as bytes (megatron/training/arguments.py, validate_args)."""
FP32, FP16 = "float32", "float16"
_MOST = 10**12
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Attribute:
    """One setting of `names` as an attribute."""

    name: str
    part: Part
    attribute: str = ""
    """Where it is not `name`."""
    also: Part | None = None
    """A second class that has it, too, and must agree."""

    @property
    def places(self) -> tuple[tuple[Part, str], ...]:
        """Classes and attributes that hold it."""
        spelled = self.attribute or self.name
        return ((self.part, spelled), *(((self.also, spelled),) if self.also else ()))


_OF_MODEL = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "seq_length", "tp_comm_overlap",
    "overlap_p2p_comm", "overlap_moe_expert_parallel_comm", "cpu_offloading_num_layers",
    "fine_grained_activation_offloading", "offload_modules", "activation_offload_fraction", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "recompute_modules", "transformer_impl", "attention_backend", "cross_entropy_loss_fusion",
    "cross_entropy_fusion_impl", "attention_dropout", "hidden_dropout", "cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph",
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "position_embedding_type", "normalization", "add_bias_linear", "add_qkv_bias", "qk_layernorm", "attention_output_gate",
    "softmax_type", "window_size", "window_attn_skip_freq", "vocab_size", "make_vocab_size_divisible_by", "mtp_num_layers",
    "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
    "moe_router_enable_expert_bias", "moe_router_score_function", "moe_expert_capacity_factor", "moe_router_num_groups",
    "moe_router_group_topk", "moe_token_dispatcher_type", "moe_enable_deepep", "moe_flex_dispatcher_backend", "moe_grouped_gemm",
)  # fmt: skip
ATTRIBUTES: tuple[Attribute, ...] = (
    *(Attribute(name, "model") for name in _OF_MODEL),
    Attribute("num_virtual_stages_per_pipeline_rank", "model", "virtual_pipeline_model_parallel_size"),
    Attribute("decoder_first_pipeline_num_layers", "model", "num_layers_in_first_pipeline_stage"),
    Attribute("decoder_last_pipeline_num_layers", "model", "num_layers_in_last_pipeline_stage"),
    Attribute("num_experts", "model", "num_moe_experts"),
    Attribute("untie_embeddings_and_output_weights", "model", "share_embeddings_and_output_weights"),
    Attribute("micro_batch_size", "train"),
    Attribute("global_batch_size", "train"),
    Attribute("use_distributed_optimizer", "ddp", also="optimizer"),
    Attribute("use_megatron_fsdp", "ddp"),
    Attribute("data_parallel_sharding_strategy", "ddp"),
    Attribute("num_distributed_optimizer_instances", "ddp"),
    Attribute("overlap_grad_reduce", "ddp"),
    Attribute("overlap_param_gather", "ddp", also="optimizer"),
    Attribute("megatron_fsdp_main_grads_dtype", "ddp"),
    Attribute("megatron_fsdp_grad_comm_dtype", "ddp"),
    Attribute("ckpt_format", "checkpoint"),
    Attribute("optimizer", "optimizer"),
    Attribute("optimizer_cpu_offload", "optimizer"),
    Attribute("optimizer_offload_fraction", "optimizer"),
    Attribute("overlap_cpu_optimizer_d2h_h2d", "optimizer"),
    Attribute("use_precision_aware_optimizer", "optimizer"),
    Attribute("main_params_dtype", "optimizer"),
    Attribute("exp_avg_dtype", "optimizer"),
    Attribute("exp_avg_sq_dtype", "optimizer"),
    Attribute("fp8", "precision"),
    Attribute("fp8_recipe", "precision"),
    Attribute("fp8_param_gather", "precision"),
    Attribute("fp4", "precision"),
    Attribute("fp4_recipe", "precision"),
)  # fmt: skip
PLACES: Mapping[tuple[Part, str], Attribute] = {place: each for each in ATTRIBUTES for place in each.places}
ELSEWHERE = frozenset({
    "swiglu", "bf16", "fp16", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16", "group_query_attention", "max_position_embeddings",
    "experimental_attention_variant", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "dsa_indexer_loss_coeff",
    "dsa_indexer_use_sparse_loss", "dsa_kernel_backend", "apply_rope_fusion", "linear_attention_freq", "linear_conv_kernel_dim",
    "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "hybrid_layer_pattern",
    "is_hybrid_model", "hybrid_override_pattern", "spec", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim",
    "apply_layernorm_1p", "rotary_percent", "squared_relu",
})  # fmt: skip
"""Settings that `attributes` says in several attributes, or that have none: positions have no limit, and their tables as many rows
as a sequence has tokens; models with sparse attention and hybrids are refused by the front ends' writers."""


def attributes(values: Values) -> Attributes:
    """The attributes of a plan's settings; those that are off are said, too, since front ends have other defaults."""
    found: Attributes = {}
    for each in ATTRIBUTES:
        value = values.get(each.name)
        if value is not None:
            said = _said(each.name, value)
            found |= dict.fromkeys(each.places, said)
    gated = bool(values["swiglu"])
    # Two attributes say what one option of the command line does.
    found["model", "gated_linear_unit"], found["model", "activation_func"] = gated, "silu" if gated else "gelu"
    # Without groups the classes take as many as heads, and front ends other numbers: they are always said.
    found["model", "num_query_groups"] = values.get("num_query_groups", values["num_attention_heads"])
    # On in Bridge's provider unless it is switched off.
    found["model", "cross_entropy_loss_fusion"] = bool(values.get("cross_entropy_loss_fusion"))
    # The count alone switches nothing on; the command line's parser sets both.
    if "cpu_offloading_num_layers" in values:
        found["model", "cpu_offloading"] = True
    p2p = values.get("overlap_p2p_comm")
    if p2p is not None:
        # megatron/training/arguments.py, core_transformer_config_from_args: what is not overlapped is sent in one batch.
        found["model", "batch_p2p_comm"] = not p2p
        found["ddp", "align_param_gather"] = bool(values.get("overlap_param_gather"))
    return found | _precision(values)


def _said(name: str, value: Any) -> Any:
    if name == "untie_embeddings_and_output_weights":
        return not value
    if name == "cp_comm_type":
        return value[0]
    if name.endswith("_dtype"):
        return _DTYPES[value]
    if NAMES[name].kind == "pattern":
        return list(numbers_of_pattern(value, num_layers=value_count(value)) or ())
    if name == "window_size":
        return [int(each) for each in value.split(",")]
    return list(value) if isinstance(value, tuple) else value


def value_count(text: str) -> int:
    """How many numbers a pattern lists, of those that `pattern` writes."""
    total = 0
    # The writer puts brackets around one period and its number behind them, or leaves the number out.
    inner, _, times = text.partition(")*")
    for match in re.finditer(r"\[\d+\](?:\*(\d+))?", inner):
        total += int(match.group(1) or 1)
    return total * int(times or 1)


def _precision(values: Values) -> Attributes:
    fp16, bf16 = bool(values.get("fp16")), bool(values.get("bf16"))
    stored = FP16 if fp16 else "bfloat16" if bf16 else FP32
    # Gradients in fp32 are the only ones that training in fp32 has.
    fp32_gradients = bool(values.get("accumulate_allreduce_grads_in_fp32", not (fp16 or bf16)))
    return {
        ("precision", "fp32"): not (fp16 or bf16), ("precision", "fp16"): fp16, ("precision", "bf16"): bf16,
        ("precision", "params_dtype"): stored, ("precision", "pipeline_dtype"): stored,
        ("precision", "grad_reduce_in_fp32"): fp32_gradients,
    }  # fmt: skip


def settings_of(given: Mapping[tuple[Part, str], Any]) -> tuple[Values, dict[tuple[Part, str], tuple[str, ...]]]:
    """The settings that attributes say, and the fields of a row that each place which was understood decides.

    A value that a row has no word for is left out, and its place too.
    """
    values: Values = {}
    taken: dict[tuple[Part, str], tuple[str, ...]] = {}
    layers = given.get(("model", "num_layers"))
    for place, each in PLACES.items():
        if place not in given:
            continue
        value = _read(each.name, given[place], layers)
        # Two classes that disagree leave open which of them is heeded; the second stays unknown.
        if value is not None and values.get(each.name, value) == value:
            values[each.name] = value
            taken[place] = NAMES[each.name].fields
        # An empty value is the class's own default, which the rows state where nothing is said.
        elif given[place] is None:
            taken[place] = NAMES[each.name].fields
    for found, places in (_activation(given), _precision_read(given), _switches(given)):
        values |= found
        taken |= places
    if values.get("num_query_groups") is not None:
        values["group_query_attention"] = True
    return values, taken


def leave_in_doubt(
    settings: Settings, spelled: Mapping[tuple[Part, str], Sequence[str]], taken: Collection[tuple[Part, str]]
) -> None:
    """States which fields hang on settings that say something that a row has no word for, so that no default takes their place."""
    for place, keys in spelled.items():
        if place in PLACES and place not in taken:
            settings.doubt(keys[-1], *NAMES[PLACES[place].name].fields)


def _read(name: str, given: Any, layers: Any) -> Any:
    """A setting's value from an attribute's; None where the row has no word for it."""
    kind = NAMES[name].kind
    if name == "untie_embeddings_and_output_weights":
        return not given if isinstance(given, bool) else None
    # Text such as "yes" is true to Python, and no truth value to the classes.
    if kind in ("switch", "off"):
        return given if isinstance(given, bool) else None
    if name == "cp_comm_type":
        words = {given} if isinstance(given, str) else set(given) if isinstance(given, tuple) else set()
        return tuple(words) if len(words) == 1 and words <= set(READABLE[name]) else None
    if name.endswith("_dtype") and isinstance(given, str):
        word = {spelled: short for short, spelled in _DTYPES.items()}.get(given.removeprefix("torch."))
        return word if word in READABLE[name] else None
    if kind == "counts":
        pair = (
            isinstance(given, tuple)
            and len(given) == 2
            and all(type(each) is int and 0 < each < _MOST for each in given)
        )
        return given if pair else None
    if kind in ("int", "float"):
        # A truth value is an int in Python, and counts nothing.
        whole = type(given) is int or (kind == "float" and isinstance(given, float))
        positive = whole and 0 <= given < _MOST and (given > 0 or kind == "float" or name in MAY_BE_ZERO)
        return given if positive else None
    return _read_text(name, given, layers)


def _read_text(name: str, given: Any, layers: Any) -> Any:
    if NAMES[name].kind == "texts":
        return given if isinstance(given, tuple) and given and set(map(str, given)) <= set(RECOMPUTE_MODULES) else None
    if NAMES[name].kind == "pattern":
        return _read_pattern(given, layers)
    if name == "window_size":
        pair = (
            isinstance(given, tuple) and len(given) == 2 and type(given[0]) is int and given[0] >= 0 and given[1] == 0
        )
        return f"{given[0]},0" if pair else None
    if not isinstance(given, str):
        return None
    if NAMES[name].kind == "layout":
        return given if layers_of_layout(given) else None
    return given if given in READABLE.get(name, (given,)) else None


def _read_pattern(given: Any, layers: Any) -> str | None:
    """A list, or an expression or number as Megatron-LM takes it; only with the number of layers does it mean something."""
    if type(layers) is not int or not 0 < layers < _MOST_LAYERS:
        return None
    if isinstance(given, tuple):
        numbers = len(given) == layers and all(type(each) is int and each >= 0 for each in given)
        return pattern(given) if numbers else None
    text = str(given) if isinstance(given, str) or type(given) is int else ""
    return text if numbers_of_pattern(text, num_layers=layers) else None


MAY_BE_ZERO = frozenset({"mtp_num_layers", "cpu_offloading_num_layers"})
"""Counts that mean nothing at 0; of everything else that is counted there is at least one."""
_Read = tuple[Values, dict[tuple[Part, str], tuple[str, ...]]]


def _activation(given: Mapping[tuple[Part, str], Any]) -> _Read:
    gated, function = given.get(("model", "gated_linear_unit")), given.get(("model", "activation_func"))
    # Python files name the function, as `F.silu`; overrides its last part.
    word = str(function).rpartition(".")[2]
    if not isinstance(gated, bool) or (function is not None and word != ("silu" if gated else "gelu")):
        return {}, {}
    fields = ("model.gated_mlp",)
    places: dict[tuple[Part, str], tuple[str, ...]] = {("model", "gated_linear_unit"): fields}
    if function is not None:
        places["model", "activation_func"] = fields
    return {"swiglu": gated}, places


def _precision_read(given: Mapping[tuple[Part, str], Any]) -> _Read:
    kinds = {name: given.get(("precision", name)) for name in ("fp32", "fp16", "bf16")}
    fp16, bf16 = kinds["fp16"] is True, kinds["bf16"] is True
    stored = FP16 if fp16 else "bfloat16" if bf16 else FP32
    values: Values = {}
    places: dict[tuple[Part, str], tuple[str, ...]] = {}
    if any(isinstance(each, bool) for each in kinds.values()):
        values |= {"fp16": fp16, "bf16": bf16}
        places |= {("precision", name): NAMES["bf16"].fields for name, each in kinds.items() if isinstance(each, bool)}
    for name in ("params_dtype", "pipeline_dtype"):
        if str(given.get(("precision", name))).removeprefix("torch.") == stored:
            places["precision", name] = NAMES["bf16"].fields
    reduced = given.get(("precision", "grad_reduce_in_fp32"))
    if isinstance(reduced, bool):
        values |= {"accumulate_allreduce_grads_in_fp32": reduced, "grad_reduce_in_bf16": bf16 and not reduced}
        places["precision", "grad_reduce_in_fp32"] = NAMES["grad_reduce_in_bf16"].fields
    return values, places


def _switches(given: Mapping[tuple[Part, str], Any]) -> _Read:
    """Attributes that follow from a setting which has its own."""
    places: dict[tuple[Part, str], tuple[str, ...]] = {}
    p2p = given.get(("model", "overlap_p2p_comm"))
    if given.get(("model", "batch_p2p_comm")) is (not p2p):
        places["model", "batch_p2p_comm"] = ("overlap.p2p",)
    # When stages start their gathers together is no field of a row.
    if isinstance(given.get(("ddp", "align_param_gather")), bool):
        places["ddp", "align_param_gather"] = ()
    offloads = given.get(("model", "cpu_offloading"))
    if isinstance(offloads, bool):
        places["model", "cpu_offloading"] = NAMES["cpu_offloading_num_layers"].fields
    return ({"cpu_offloading_num_layers": 0} if offloads is False else {}), places


def spelled(values: Attributes) -> Iterator[tuple[Part, str, Any]]:
    """The attributes in the order of the tables."""
    order = {place: number for number, place in enumerate(PLACES)}
    for (part, name), value in sorted(values.items(), key=lambda item: (order.get(item[0], len(order)), item[0])):
        yield part, name, value
