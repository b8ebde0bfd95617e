"""The model as a user writes it: a preset with overrides, a Hugging Face config, or a spec in the contract's names.

`resolve_model` checks it once, fills the contract's defaults (each listed in `Model.assumed`) and returns the frozen
`Model`. Encoder-decoder models are refused, not approximated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from cost_models import presets
from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, shown
from cost_models.inputs.fields import resolved_once, validated
from cost_models.inputs.hf_config import read_hf_config
from cost_models.inputs.model_fields import MlaInput, ModelInput, MoeInput
from cost_models.inputs.recurrent import (
    ALONE,
    ATTENTION_LAYERS,
    BESIDE,
    RECURRENT_LAYERS,
    WINDOWED_LAYERS,
    layer_mixers,
    resolved_recurrent,
)
from cost_models.specs.model import Indexer, LayerKind, Mla, Model, Moe
from cost_models.specs.recurrent import Recurrent

REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


@dataclass(slots=True)
class _Reading:
    """What resolving a specification has found so far."""

    pointer: str
    assumed: dict[str, object]
    warnings: tuple[str, ...]
    problems: list[Problem] = field(default_factory=list)

    def filled(self, name: str, value: Any, default: Any) -> Any:
        """The value or, where there is none, the default, which is then reported."""
        if value is not None:
            return value
        self.assumed[name] = default
        return default

    def refuse(self, name: str, message: str, hint: str, *, code: str = "invalid-field") -> None:
        """Notes a rule that the specification breaks."""
        self.problems.append(Problem(child(self.pointer, *name.split(".")), message, hint, code))

    def check(self) -> None:
        """Raises InvalidInputError with every broken rule that was noted."""
        if self.problems:
            raise InvalidInputError(self.problems)


def resolve_model(document: Mapping[str, Any], *, pointer: str = "/model") -> Model:
    """The model that a document describes, defaults filled and reported.

    Raises:
        InvalidInputError: with one Problem per broken rule; NotModelledError for architectures without a model here.
    """
    return resolved_once(lambda key: _from_json(key, pointer), lambda d: _resolved(d, pointer), document, pointer)


@lru_cache(maxsize=4096)
def _from_json(key: str, pointer: str) -> Model:
    return _resolved(json.loads(key), pointer)


def _resolved(document: Mapping[str, Any], pointer: str) -> Model:
    _refuse_bare_config(document, pointer)
    bases = {name: document[name] for name in ("preset", "hf_config") if document.get(name) is not None}
    overrides = {name: value for name, value in document.items() if name not in ("preset", "hf_config")}
    given = validated(ModelInput, bases, pointer=pointer)
    if len(bases) > 1:
        hint = "Give one of them; overrides may follow either."
        raise InvalidInputError([Problem(child(pointer, "preset"), "preset and hf_config are both given", hint)])
    if given.preset is not None:
        spec = presets.load("models", given.preset, pointer=child(pointer, "preset")).spec
        return _built({"name": given.preset, **spec}, overrides, _Reading(pointer, {}, ()))
    # A key that the user overrides was not assumed, even where the config left it out.
    if given.hf_config is not None:
        read = read_hf_config(given.hf_config, pointer=child(pointer, "hf_config"))
        assumed = {name: value for name, value in read.assumed.items() if name not in overrides}
        return replace(_built(read.spec, overrides, _Reading(pointer, assumed, read.warnings)), family=read.family)
    return _model(validated(ModelInput, overrides, pointer=pointer), _Reading(pointer, {}, ()))


def _refuse_bare_config(document: Mapping[str, Any], pointer: str) -> None:
    """Refuses a Hugging Face config that stands in the place of a specification, once instead of for each of its keys."""
    if "hf_config" in document or not {"model_type", "architectures", "peft_type"} & document.keys():
        return
    # Read first: a config that could not be planned for in any place is told so, and not to move.
    read_hf_config(document, pointer=pointer)
    hint = 'Put it inside the model: {"hf_config": {…}}.'
    raise InvalidInputError([Problem(pointer, "this is a Hugging Face config, not a specification", hint)])


def _built(base: Mapping[str, Any], overrides: Mapping[str, Any], reading: _Reading) -> Model:
    """The base specification with overrides on top; `moe` and `mla` are overridden field by field."""
    merged = dict(base)
    for name, value in overrides.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if nested else value
    spec = validated(ModelInput, merged, pointer=reading.pointer)
    # A preset cut to fewer layers keeps its pattern of windows, instead of being refused for the list's length.
    if spec.num_layers and spec.layer_types and "num_layers" in overrides and "layer_types" not in overrides:
        spec = spec.model_copy(update={"layer_types": _repeated(spec.layer_types, spec.num_layers)})
    return _model(spec, reading)


def _repeated(layer_types: list[str], num_layers: int) -> list[str]:
    """A pattern of layer types, continued or cut to another depth."""
    return [layer_types[i % len(layer_types)] for i in range(num_layers)]


def _model(spec: ModelInput, reading: _Reading) -> Model:
    for name in REQUIRED:
        if getattr(spec, name) is None:
            reading.refuse(name, f"{name} is required", f"Add {name!r}, or name a preset.", code="missing-field")
    reading.check()
    assert spec.num_layers
    assert spec.hidden_size
    assert spec.num_attention_heads
    assert spec.vocab_size
    mla = None if spec.mla is None else _latent(spec.mla, reading)
    kv_heads, head_dim = _heads(spec, mla, reading)
    moe, is_moe = _moe(spec, reading)
    # All readers run before the first refusal, so that the user learns of every broken rule at once.
    windows = _windows(spec, reading)
    recurrent, kinds = _layers(spec, is_moe, windows, reading)
    position = reading.filled("position_embedding", spec.position_embedding, "rope")
    if position == "learned" and spec.max_position_embeddings is None:
        message = "max_position_embeddings is required where position_embedding is 'learned'"
        reading.refuse("max_position_embeddings", message, "Add the number of learned positions.", code="missing-field")
    # Rotary positions turn pairs of elements.
    if position == "rope" and mla is None and head_dim % 2:
        reading.refuse(
            "head_dim", f"head_dim is {head_dim}; rotary positions need an even one", "Use an even head_dim."
        )
    if spec.attention_gate and mla is not None:
        reading.refuse("attention_gate", "a gate on latent attention is not modelled", "Leave attention_gate out.")
    dense = any(kind.has_mlp and not kind.is_moe for kind in kinds)
    if dense and not spec.intermediate_size:
        reading.refuse("intermediate_size", "intermediate_size is required where a layer has a dense MLP",
                       "Add 'intermediate_size', or 'moe'.", code="missing-field")  # fmt: skip
    reading.check()
    qkv_bias, out_bias, mlp_bias = _biases(spec, reading)
    norm = reading.filled("norm", spec.norm, "rmsnorm")
    parallel = bool(spec.parallel_block)
    return Model(
        name=spec.name or "model",
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=(spec.intermediate_size or 0) if dense else 0,
        vocab_size=spec.vocab_size,
        gated_mlp=reading.filled("gated_mlp", spec.gated_mlp, True),
        # A classification head has a matrix of its own, whatever the language model ties.
        tie_word_embeddings=spec.classes is None
        and reading.filled("tie_word_embeddings", spec.tie_word_embeddings, False),
        norm=norm,
        norms_per_layer=spec.norms_per_layer if spec.norms_per_layer is not None else (1 if parallel else 2),
        qk_norm={True: "per_head", False: "none", None: "none"}.get(spec.qk_norm, spec.qk_norm),  # type: ignore[arg-type]
        position_embedding=position,
        max_position_embeddings=spec.max_position_embeddings,
        qkv_bias=qkv_bias,
        attention_out_bias=out_bias,
        mlp_bias=mlp_bias,
        norm_bias=spec.norm_bias if spec.norm_bias is not None else norm == "layernorm",
        norm_weight=spec.norm_weight is not False,
        head_bias=bool(spec.head_bias) and spec.classes is None,
        parallel_block=parallel,
        embedding_norm=bool(spec.embedding_norm),
        final_norm=spec.final_norm is not False,
        attention_sinks=bool(spec.attention_sinks),
        attention_gate=bool(spec.attention_gate),
        activation_parameters=spec.activation_parameters or 0,
        rotary_interleaved=spec.rotary_interleaved,
        layer_kinds=kinds,
        moe=moe,
        mla=mla,
        recurrent=recurrent,
        mtp_num_layers=spec.mtp_num_layers or 0,
        classes=spec.classes,
        multimodal=spec.multimodal,
        assumed=dict(reading.assumed),
        warnings=reading.warnings
        + ("recurrent-layers-nominal",) * (recurrent is not None)
        + ("sparse-attention-nominal",) * (mla is not None and mla.indexer is not None),
    )


def _latent(given: MlaInput, reading: _Reading) -> Mla:
    """Latent attention, with what chooses its keys."""
    if given.indexer is None:
        return Mla(**given.model_dump())
    indexer = Indexer(**given.indexer.model_dump())
    if given.q_lora_rank is None:
        hint = "Give 'q_lora_rank', or leave 'indexer' out."
        reading.refuse("mla.q_lora_rank", "an indexer reads the queries' latent, and mla has no q_lora_rank", hint)
    if indexer.head_dim < given.qk_rope_head_dim:
        message = f"indexer.head_dim is {indexer.head_dim}, less than the qk_rope_head_dim {given.qk_rope_head_dim} that it rotates"
        reading.refuse("mla.indexer.head_dim", message, f"Use at least {given.qk_rope_head_dim}.")
    return Mla(**{**given.model_dump(), "indexer": indexer})


def _heads(spec: ModelInput, mla: Mla | None, reading: _Reading) -> tuple[int, int]:
    """Number of key-value heads, and the width of one head (of queries and keys under MLA)."""
    heads, hidden = spec.num_attention_heads or 1, spec.hidden_size or 1
    if mla is not None:
        return heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    kv_heads = int(reading.filled("num_key_value_heads", spec.num_key_value_heads, heads))
    if heads % kv_heads:
        message = f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        legal = [k for k in range(1, min(heads, 4096) + 1) if heads % k == 0]
        best = min(legal, key=lambda k: abs(k - kv_heads))
        reading.refuse("num_key_value_heads", message, f"Use a divisor of {heads}, such as {best}.")
    if spec.head_dim is None and hidden % heads:
        message = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and head_dim is not given"
        reading.refuse("num_attention_heads", message, "Give 'head_dim', or heads that divide hidden_size.")
        return kv_heads, max(2, hidden // heads)
    return kv_heads, int(reading.filled("head_dim", spec.head_dim, hidden // heads))


def _biases(spec: ModelInput, reading: _Reading) -> tuple[bool, bool, bool]:
    """Whether the q/k/v projections, the attention output and the MLP have biases."""
    attention, mlp = spec.attention_bias, spec.mlp_bias
    if attention is None:
        attention = spec.linear_bias if spec.linear_bias is not None else reading.filled("attention_bias", None, False)
    if mlp is None:
        mlp = spec.linear_bias if spec.linear_bias is not None else reading.filled("mlp_bias", None, False)
    return attention in (True, "qkv"), attention in (True, "out"), bool(mlp)


def _windows(spec: ModelInput, reading: _Reading) -> list[int | None]:
    """Tokens that a query sees, per layer; None where it sees all."""
    assert spec.num_layers
    if spec.layer_types is None:
        return [spec.sliding_window] * spec.num_layers
    if len(spec.layer_types) != spec.num_layers:
        message = f"layer_types has {len(spec.layer_types)} entries for {spec.num_layers} layers"
        reading.refuse("layer_types", message, "Give one entry per layer, or none.")
        return [None] * spec.num_layers
    known = (*ATTENTION_LAYERS, *RECURRENT_LAYERS, BESIDE, *ALONE)
    unknown = [kind for kind in spec.layer_types if kind not in known]
    if unknown:
        place = child(reading.pointer, "layer_types")
        message = f"layer type {shown(unknown[0])} is not modelled"
        hint = f"Layers with a cost model are {', '.join(known)}."
        raise NotModelledError([Problem(place, message, hint, "not-modelled")])
    if spec.sliding_window is None and any(kind in WINDOWED_LAYERS for kind in spec.layer_types):
        message = "sliding_window is required where layer_types has windowed layers"
        reading.refuse("sliding_window", message, "Add the window in tokens.", code="missing-field")
    return [spec.sliding_window if kind in WINDOWED_LAYERS else None for kind in spec.layer_types]


def _layers(
    spec: ModelInput, is_moe: list[bool], windows: list[int | None], reading: _Reading
) -> tuple[Recurrent | None, tuple[LayerKind, ...]]:
    """The recurrent mixer, and the kind of each layer."""
    assert spec.num_layers
    assert spec.hidden_size
    types = spec.layer_types if len(spec.layer_types or []) == spec.num_layers else None
    mixers = layer_mixers(types, spec.num_layers)
    recurring = next((name for name in types or () if name in (*RECURRENT_LAYERS, BESIDE)), None)
    if spec.recurrent is None:
        if recurring is not None:
            message = f"recurrent is required where layer_types has {recurring!r} layers"
            hint = 'Describe what mixes their tokens: {"kind": "mamba2", "num_heads": …}.'
            reading.refuse("recurrent", message, hint, code="missing-field")
    elif recurring is None:
        message = "recurrent is given, but no layer of layer_types has it"
        reading.refuse("recurrent", message, f"Name its layers in layer_types, as {RECURRENT_LAYERS[0]!r}.")
    recurrent = None
    if spec.recurrent is not None:
        recurrent = resolved_recurrent(
            spec.recurrent, spec.hidden_size, filled=reading.filled, refuse=reading.refuse
        )  # fmt: skip
    alone = [name for name in types or () if name in ALONE]
    single = bool(alone) if spec.single_block_layers is None else spec.single_block_layers
    if alone and not single:
        message = f"layer_types has {alone[0]!r} layers, but single_block_layers is false"
        reading.refuse("single_block_layers", message, "Leave it out, or name the mixer of these layers.")
    if not single:
        both = zip(is_moe, windows, mixers, strict=True)
        return recurrent, tuple(LayerKind(moe, window, mixer) for moe, window, mixer in both)
    if "moe" in alone and spec.moe is None:
        message = "moe is required where layer_types has 'moe' layers"
        reading.refuse("moe", message, "Describe the experts.", code="missing-field")
    if "moe" not in alone and spec.moe is not None:
        reading.refuse(
            "moe", "moe is given, but no layer of layer_types is 'moe'", "Name its layers, or leave moe out."
        )
    names = types or ["full_attention"] * spec.num_layers
    return recurrent, tuple(
        LayerKind(name == "moe", window, mixer, has_mlp=name in ALONE)
        for name, window, mixer in zip(names, windows, mixers, strict=True)
    )


def _moe(spec: ModelInput, reading: _Reading) -> tuple[Moe | None, list[bool]]:
    """The experts, and which layers have them."""
    assert spec.num_layers
    moe = spec.moe
    if moe is None:
        return None, [False] * spec.num_layers
    if moe.top_k > moe.num_experts:
        reading.refuse("moe.top_k", f"top_k {moe.top_k} is more than num_experts {moe.num_experts}", "Lower top_k.")
    if moe.num_experts % moe.num_groups:
        message = f"num_experts {moe.num_experts} is not a multiple of num_groups {moe.num_groups}"
        reading.refuse("moe.num_groups", message, "Use a divisor of num_experts.")
    if moe.topk_groups > moe.num_groups:
        message = f"topk_groups {moe.topk_groups} is more than num_groups {moe.num_groups}"
        reading.refuse("moe.topk_groups", message, "Lower topk_groups.")
    width = moe.expert_intermediate_size or reading.filled(
        "moe.expert_intermediate_size", None, spec.intermediate_size or 0
    )
    if not width:
        reading.refuse("moe.expert_intermediate_size", "expert_intermediate_size is required",
                       "Add the width of one expert.", code="missing-field")  # fmt: skip
    shared, shared_width = _shared_experts(moe, width, reading)
    built = Moe(
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        expert_intermediate_size=width,
        num_shared_experts=shared,
        shared_expert_intermediate_size=shared_width,
        shared_expert_gate=moe.shared_expert_gate,
        router_bias=moe.router_bias,
        capacity_factor=moe.capacity_factor,
        num_groups=moe.num_groups,
        topk_groups=moe.topk_groups,
    )
    return built, _moe_layers(moe, spec.num_layers, reading)


def _shared_experts(moe: MoeInput, width: int, reading: _Reading) -> tuple[int, int]:
    """Number of shared experts, and the width of one of them."""
    count = moe.num_shared_experts
    if count is None:
        count = reading.filled("moe.num_shared_experts", None, 1) if moe.shared_expert_intermediate_size else 0
    if not count:
        return 0, 0
    return count, moe.shared_expert_intermediate_size or reading.filled(
        "moe.shared_expert_intermediate_size", None, width
    )


def _moe_layers(moe: MoeInput, num_layers: int, reading: _Reading) -> list[bool]:
    frequency = moe.moe_layer_freq
    if isinstance(frequency, list):
        if len(frequency) != num_layers:
            message = f"moe_layer_freq has {len(frequency)} entries for {num_layers} layers"
            reading.refuse("moe.moe_layer_freq", message, "Give one 0 or 1 per layer, or a number.")
            return [True] * num_layers
        layers = [flag == 1 and i >= moe.first_dense_layers for i, flag in enumerate(frequency)]
    else:
        layers = [i >= moe.first_dense_layers and i % frequency == 0 for i in range(num_layers)]
    if not any(layers):
        message = f"none of the {num_layers} layers has experts with first_dense_layers {moe.first_dense_layers}"
        reading.refuse("moe.first_dense_layers", message, "Lower it, or leave 'moe' out.")
    return layers
