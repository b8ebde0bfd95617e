"""A Hugging Face `config.json` as a specification in the contract's names.

The reader picks the family by `model_type`, takes the text model of a multimodal config, applies the family's class defaults to
absent keys, and refuses architectures without a cost model by name. It never imports transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, nearest, shown
from cost_models.inputs.fields import LARGEST
from cost_models.inputs.hf.families import FAMILIES
from cost_models.inputs.hf.keys import Keys
from cost_models.inputs.hf.own_spec import spec_hint
from cost_models.inputs.hf.towers import TOWERS_ALONE, tower_config

TEXT_MODELS: Mapping[str, str] = {
    "llava": "llama", "llava_next": "llama", "mistral3": "mistral", "gemma3": "gemma3_text", "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "llama4": "llama4_text", "qwen3_vl_moe": "qwen3_moe", "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "glm4v": "glm4v_text",
    "glm46v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
"""Multimodal `model_type` -> the family that its text model is read as, where the text model does not say."""

OWN_DEFAULTS = frozenset(
    ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text",
     "qwen3_vl_moe_text"))  # fmt: skip
"""`model_type` of text models that have the modules of their family but other class defaults, so that sizes must be
given."""

SAME_MODULES: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
"""`model_type` whose published code is another family's under a new name -> that family."""

_WITHOUT_ATTENTION = "models in which no layer attends are not modelled; hybrids, in which some do, are"
_ENCODER_DECODER = "encoder-decoder models are not modelled"
_ENCODER = "encoder-only models are not modelled"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "xlstm"), _WITHOUT_ATTENTION),
    "rwkv": f"RWKV's time mixing is not modelled: {_WITHOUT_ATTENTION}",
    **dict.fromkeys(("zamba", "zamba2"), "attention blocks whose weights several layers share are not modelled"),
    "recurrent_gemma": "RG-LRU layers (Griffin's real-gated linear recurrence) are not modelled",
    "kimi_linear": "Kimi Delta Attention, whose decay differs by channel, is not modelled",
    **dict.fromkeys(("minimax", "bailing_hybrid"), "layers of lightning attention are not modelled"),
    "plamo2": "PLaMo 2's Mamba layers, with a low-rank projection and norms of their own, are not modelled",
    "mimo_v2_flash": "values narrower than keys, and other numbers of key-value heads in windowed layers, are not modelled",
    "deepseek_v4": "attention over compressed keys with an indexer is not modelled",
    "glm_moe_dsa": "sparse attention whose layers share one choice of keys is not modelled; DeepSeek-V3.2's, where each layer chooses, is",
    **dict.fromkeys(("gemma3n", "gemma3n_text", "mllama", "mllama_text_model"),
        "layers that share keys and values or attend across inputs are not modelled"),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "t5gemma", "bart", "mbart", "pegasus", "pegasus_x", "whisper", "led", "marian",
         "blenderbot", "m2m_100", "nllb-moe", "switch_transformers", "prophetnet", "fsmt", "bigbird_pegasus"),
        _ENCODER_DECODER),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert",
         "vit", "clip", "siglip"), _ENCODER),
}  # fmt: skip
"""`model_type` -> why it is refused."""


@dataclass(frozen=True, slots=True)
class HfReading:
    """A config in contract fields, the class defaults that were applied, and warnings."""

    spec: Mapping[str, Any]
    assumed: Mapping[str, object]
    warnings: tuple[str, ...]
    family: str
    """The `model_type` of the text model."""


def read_hf_config(config: Mapping[str, Any], *, pointer: str) -> HfReading:
    """The specification that a config describes.

    Raises:
        NotModelledError: the architecture has no cost model here.
        InvalidInputError: the `model_type` is unknown, or a key has an impossible value.
    """
    _refuse_adapter(config, pointer)
    text, multimodal, pointer = _text_config(config, pointer)
    model_type = _model_type(text, config, pointer)
    family = FAMILIES[model_type]
    defaults = dict(family.defaults)
    if multimodal and (
        text is config or not OWN_DEFAULTS.isdisjoint((config.get("model_type"), text.get("model_type")))
    ):
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"):
            defaults.pop(key, None)
    # Multimodal configs may state the tie outside of the text model's part.
    if multimodal and "tie_word_embeddings" not in text and "tie_word_embeddings" in config:
        defaults["tie_word_embeddings"] = config["tie_word_embeddings"]
    keys = Keys(text, defaults, family.aliases, pointer)
    spec = {**family.fixed, **family.read(keys)}
    keys.check()
    if isinstance(spec.get("max_position_embeddings"), int):
        spec["max_position_embeddings"] = _scaled_positions(text, spec["max_position_embeddings"])
    # Kept as it is, and read only where a job counts towers: most requests plan the text model alone.
    if multimodal and (towers := tower_config(config)):
        spec["multimodal"] = towers
    name = config.get("_name_or_path")
    spec["name"] = name[:300] if isinstance(name, str) and name else model_type
    # What a checkpoint is stored in says nothing about training, which starts from weights in param_dtype: a warning
    # is enough.
    quantized = any(part.get("quantization_config") for part in (config, text))
    warnings = ("vision-tower-ignored",) * multimodal + ("quantization-ignored",) * quantized
    return HfReading(spec, keys.assumed, warnings, model_type)


def _refuse_adapter(config: Mapping[str, Any], pointer: str) -> None:
    """Refuses an adapter's `adapter_config.json`: it says which weights are added to a model, but nothing about the model."""
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    if kind is None or "model_type" in config:
        return
    of = f" ({base[:200]})" if isinstance(base, str) and base else ""
    message = f"this is the config of a {str(kind)[:30]} adapter, not of a model"
    hint = f"Give the config.json of its base model{of}; the plan is then for training all of its weights."
    raise NotModelledError([Problem(pointer, message, hint, "not-modelled")])


def _scaled_positions(text: Mapping[str, Any], positions: int) -> int:
    """Positions that rotary scaling makes of the config's own: its factor times those before scaling, where it states
    them.
    """
    given = [text.get("rope_scaling"), text.get("rope_parameters")]
    scalings = [part for part in given if isinstance(part, Mapping)]
    scalings += [inner for part in scalings for inner in part.values() if isinstance(inner, Mapping)]
    for scaling in scalings:
        factor, before = scaling.get("factor"), scaling.get("original_max_position_embeddings", positions)
        # Configs may state the scaled length already, so scaling only ever raises the number.
        if isinstance(factor, (int, float)) and isinstance(before, int) and 1.0 <= factor * before <= LARGEST:
            positions = max(positions, int(factor * before))
    return positions


def _text_config(config: Mapping[str, Any], pointer: str) -> tuple[Mapping[str, Any], bool, str]:
    """The text model's part, whether the config is multimodal, and a pointer to that part."""
    outer = config.get("model_type")
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping):
            if not isinstance(outer, str | None):
                message = f"model_type is {shown(outer)}; it must be a string"
                raise InvalidInputError([Problem(child(pointer, "model_type"), message, _known())])
            return nested, True, child(pointer, key)
        if nested is not None:
            message = f"{key} is {shown(nested)}; it must be an object {{…}}"
            raise InvalidInputError([Problem(child(pointer, key), message, "Give the text model's config there.")])
    _refuse_tower_alone(config, pointer)
    multimodal = (isinstance(outer, str) and outer in TEXT_MODELS) or "vision_config" in config
    return config, multimodal, pointer


def _refuse_tower_alone(config: Mapping[str, Any], pointer: str) -> None:
    """Refuses the config of an encoder, and one of a multimodal model that has lost its text part."""
    outer = config.get("model_type")
    if isinstance(outer, str) and outer in TOWERS_ALONE:
        message = f"model_type {outer!r} is the config of a vision or audio tower, which has no text model to plan"
        hint = "Give the config.json of the whole multimodal model, in which this part is its vision_config or audio_config."
        raise InvalidInputError([Problem(child(pointer, "model_type"), message, hint, "missing-field")])
    tower = next((key for key in ("vision_config", "audio_config") if config.get(key)), None)
    if tower is not None and not {"hidden_size", "n_embd", "d_model"} & config.keys():
        message = f"the config has a {tower} but no text_config, so that there is no text model to plan"
        hint = "Add the text model's config as text_config; config.json of the whole model has it."
        raise InvalidInputError([Problem(child(pointer, "text_config"), message, hint, "missing-field")])


def _model_type(text: Mapping[str, Any], config: Mapping[str, Any], pointer: str) -> str:
    outer, at = config.get("model_type"), child(pointer, "model_type")
    given = text.get("model_type", TEXT_MODELS.get(outer) if isinstance(outer, str) else None)
    if not isinstance(given, str):
        message = "model_type is required" if given is None else f"model_type is {shown(given)}; it must be a string"
        hint = spec_hint(text) + _known()
        raise InvalidInputError([Problem(at, message, hint, "missing-field" if given is None else "invalid-field")])
    # The text model's own type goes first, and a multimodal wrapper's only where the text part does not state one.
    model_type = SAME_MODULES.get(given, TEXT_MODELS.get(given, given))
    why = REFUSED.get(model_type)
    if why is None and (text.get("is_encoder_decoder") is True or config.get("is_encoder_decoder") is True):
        why = _ENCODER_DECODER
    if why is not None:
        raise NotModelledError([Problem(at, f"model_type {given[:100]!r}: {why}", _known(), "not-modelled")])
    if model_type not in FAMILIES:
        close = nearest(model_type, FAMILIES)
        hint = (f"Did you mean {close!r}? " if close else "") + spec_hint(text) + _known()
        raise InvalidInputError([Problem(at, f"model_type {given[:100]!r} is not known", hint, "unknown-model-type")])
    return model_type


def _known() -> str:
    return "Known: " + ", ".join(FAMILIES) + "."
