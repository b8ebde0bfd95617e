"""The linear modules of a model under the names that its own code gives them, which is what adapters are attached to.

Names differ between families although the sizes follow from the same fields: GPT-2 calls two modules `c_proj`, Phi-3 joins
query, key and value. Weights that are no module of their own are not listed: transformers keeps routed experts and routers
as bare tensors (5.x: MixtralExperts, MixtralTopKRouter), and peft leaves the output projection out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cost_models.specs.model import LayerKind, Model


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear module of a layer: it multiplies (…, inputs) by (inputs, outputs)."""

    name: str
    inputs: int
    outputs: int
    reads: str
    """The tensor that it reads; modules that read the same one save it once: "norm1", "context", "norm2", "hidden", "latent", "shared"."""
    part: str
    """"attention", "mlp" or "shared"."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a family calls the linear modules of its layers; an empty name means that there is no such module."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    joined: str = ""
    """Query, key and value in one module."""
    output: str = "o_proj"
    gate: str = "gate_proj"
    up: str = "up_proj"
    joined_up: str = ""
    """Gate and up in one module."""
    down: str = "down_proj"


_LLAMA: Final = Names()
_JOINED: Final = Names(joined="query_key_value", output="dense", up="dense_h_to_4h", down="dense_4h_to_h")
MEGATRON_NAMES: Final = Names(
    joined="linear_qkv", output="linear_proj", up="linear_fc1", joined_up="linear_fc1", down="linear_fc2"
)
"""Megatron Core's modules, which Megatron-Bridge's recipes name (peft/lora.py, target_modules)."""
NAMES: Final[Mapping[str, Names]] = {
    "phi3": Names(joined="qkv_proj", joined_up="gate_up_proj"),
    "phi-3": Names(joined="qkv_proj", joined_up="gate_up_proj"),
    "phi-4": Names(joined="qkv_proj", joined_up="gate_up_proj"),
    "phi": Names(output="dense", up="fc1", down="fc2"),
    "gpt_neox": _JOINED,
    "pythia": _JOINED,
    "bloom": _JOINED,
    "falcon": _JOINED,
    "gpt2": Names(joined="c_attn", output="c_proj", up="c_fc", down="c_proj"),
    "gpt_bigcode": Names(joined="c_attn", output="c_proj", up="c_fc", down="c_proj"),
    "starcoder2": Names(up="c_fc", down="c_proj"),
    "opt": Names(output="out_proj", up="fc1", down="fc2"),
    "mpt": Names(joined="Wqkv", output="out_proj"),
    "glm4": Names(joined_up="gate_up_proj"),
    "glm": Names(joined_up="gate_up_proj"),
    "gpt3": MEGATRON_NAMES,
    "mt-nlg": MEGATRON_NAMES,
    "megatron-": MEGATRON_NAMES,
}
"""By `model_type`, and by the beginning of a preset's name, where they are not Llama's. Source: transformers/models/*/modeling_*.py."""
_OTHER_NAMES: Final = tuple(dict.fromkeys(NAMES.values()))
ALL_LINEAR, ATTENTION = "all-linear", "attention"
PRESETS: Final = (ALL_LINEAR, ATTENTION)


def own_names(model: Model) -> Names:
    """What the model's family calls its modules; Llama's names where the family is not known to differ."""
    if model.family:
        return NAMES.get(model.family, _LLAMA)
    found = [start for start in NAMES if model.name.startswith(start)]
    return NAMES[max(found, key=len)] if found else _LLAMA


def names_for(model: Model, targets: Iterable[str]) -> Names:
    """The names among which these targets are found.

    A specification that says nothing of its family, and Megatron's own modules, may be named in any family's way.
    """
    own, wanted = own_names(model), set(targets)
    if wanted <= module_names(model, own):
        return own
    others = [MEGATRON_NAMES] if model.family else [MEGATRON_NAMES, *_OTHER_NAMES]
    return next((names for names in others if wanted <= module_names(model, names)), own)


def layer_linears(model: Model, kind: LayerKind, names: Names) -> tuple[Linear, ...]:
    """The linear modules of a layer of this kind."""
    attention = _attention(model, names) if kind.attends else []
    recurrent = _recurrent(model) if kind.recurs else []
    return (*attention, *recurrent, *(_mlp(model, kind, names) if kind.has_mlp else ()))


def module_names(model: Model, names: Names) -> frozenset[str]:
    """Names of all linear modules in the model's layers."""
    return frozenset(linear.name for kind in model.distinct_kinds for linear in layer_linears(model, kind, names))


def preset_modules(model: Model, preset: str) -> tuple[str, ...]:
    """The modules that a preset of the contract stands for, in the order of a layer."""
    names = own_names(model)
    linears = [linear for kind in model.distinct_kinds for linear in layer_linears(model, kind, names)]
    wanted = [linear.name for linear in linears if preset == ALL_LINEAR or linear.part == "attention"]
    return tuple(dict.fromkeys(wanted))


def _attention(model: Model, names: Names) -> list[Linear]:
    h, part = model.hidden_size, "attention"
    if model.mla is not None:
        return _latent(model)
    # The hybrids with a gate (Qwen3-Next) make query and gate in one module.
    query = model.q_size * (2 if model.recurrent is not None and model.attention_gate else 1)
    if names.joined:
        inputs = [Linear(names.joined, h, model.q_size + 2 * model.kv_size, "norm1", part)]
    else:
        widths = {names.query: query, names.key: model.kv_size, names.value: model.kv_size}
        inputs = [Linear(name, h, width, "norm1", part) for name, width in widths.items()]
    if model.attention_gate and query == model.q_size:
        inputs.append(Linear(names.gate, h, model.q_size, "norm1", part))
    return [*inputs, Linear(names.output, model.q_size, h, "context", part)]


def _recurrent(model: Model) -> list[Linear]:
    """A recurrent mixer under transformers' names, which Megatron shares (models/nemotron_h, qwen3_next, qwen3_5, lfm2)."""
    r, h, part = model.recurrent, model.hidden_size, "attention"
    assert r is not None
    output = Linear("out_proj", r.inner_size, h, "context", part)
    if r.kind == "mamba":
        narrow = r.dt_rank + 2 * r.state_size
        inner = [
            Linear("x_proj", r.inner_size, narrow, "latent", part),
            Linear("dt_proj", r.dt_rank, r.inner_size, "latent", part),
        ]
        return [Linear("in_proj", h, r.projected_size, "norm1", part), *inner, output]
    if r.kind != "gated-delta-net":
        return [Linear("in_proj", h, r.projected_size, "norm1", part), output]
    heads, groups, inner_size = r.num_heads, r.group_size, r.inner_size
    widths = {"in_proj_qkvz": r.projected_size - 2 * heads, "in_proj_ba": 2 * heads}
    if model.family.startswith("qwen3_5"):
        widths = {
            "in_proj_qkv": inner_size + 2 * groups,
            "in_proj_z": inner_size,
            "in_proj_b": heads,
            "in_proj_a": heads,
        }
    elif model.family == "olmo_hybrid":
        widths = {
            "q_proj": groups,
            "k_proj": groups,
            "v_proj": inner_size,
            "a_proj": heads,
            "b_proj": heads,
            "g_proj": inner_size,
        }
        output = Linear("o_proj", inner_size, h, "context", part)
    return [*(Linear(name, h, width, "norm1", part) for name, width in widths.items()), output]


def _latent(model: Model) -> list[Linear]:
    """Multi-head latent attention under DeepSeek's names (transformers/models/deepseek_v3)."""
    mla, h, part = model.mla, model.hidden_size, "attention"
    assert mla is not None
    heads = model.num_attention_heads
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    if mla.q_lora_rank is None:
        query = [Linear("q_proj", h, model.q_size, "norm1", part)]
    else:
        query = [
            Linear("q_a_proj", h, mla.q_lora_rank, "norm1", part),
            Linear("q_b_proj", mla.q_lora_rank, model.q_size, "latent", part),
        ]
    return [
        *query,
        Linear("kv_a_proj_with_mqa", h, mla.kv_lora_rank + mla.qk_rope_head_dim, "norm1", part),
        Linear("kv_b_proj", mla.kv_lora_rank, up, "latent", part),
        Linear("o_proj", heads * mla.v_head_dim, h, "context", part),
    ]


def _mlp(model: Model, kind: LayerKind, names: Names) -> list[Linear]:
    h, moe = model.hidden_size, model.moe
    if not kind.is_moe:
        return _dense_mlp(model, names, model.intermediate_size, "mlp", ("norm2", "hidden"))
    assert moe is not None
    width = moe.num_shared_experts * moe.shared_expert_intermediate_size
    shared = _dense_mlp(model, names, width, "shared", ("norm2", "shared")) if width else []
    return [*shared, Linear("shared_expert_gate", h, 1, "norm2", "shared")] if moe.shared_expert_gate else shared


def _dense_mlp(model: Model, names: Names, width: int, part: str, reads: tuple[str, str]) -> list[Linear]:
    h = model.hidden_size
    if not model.gated_mlp:
        first = [Linear(names.up, h, width, reads[0], part)]
    elif names.joined_up:
        first = [Linear(names.joined_up, h, 2 * width, reads[0], part)]
    else:
        first = [Linear(names.gate, h, width, reads[0], part), Linear(names.up, h, width, reads[0], part)]
    return [*first, Linear(names.down, width, h, reads[1], part)]
