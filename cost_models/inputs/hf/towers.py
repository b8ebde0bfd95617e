"""Towers of a multimodal Hugging Face configuration: each encoder with the projector that its wrapper puts behind it.

What a wrapper's projector is made of depends on the wrapper and not on the encoder, so there is one function per wrapper. Counts are
those of the modules in transformers (models/*/modeling_*.py, 5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, shown
from cost_models.inputs.hf.encoders import ENCODERS, Encoder
from cost_models.inputs.hf.keys import Keys
from cost_models.specs.model import Model
from cost_models.specs.tower import Matrix, Sense, Tower


@dataclass(frozen=True, slots=True)
class _Projector:
    """What a wrapper puts between an encoder and its text model."""

    matrices: tuple[Matrix, ...]
    parameters: int
    rows_per_token: float
    added_to_encoder: int = 0
    """Parameters that belong to the encoder's module though the wrapper decides them."""
    added_to_stem: tuple[Matrix, ...] = ()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a projector is read from."""

    wrapper: Keys
    encoder_keys: Keys
    encoder: Encoder
    text_hidden: int


def _perceptron(parts: _Parts, inputs: int, *, bias: bool, per_row: float = 1.0) -> tuple[tuple[Matrix, ...], int]:
    """Two linear layers from `inputs` to the text model's width, and their parameters."""
    h = parts.text_hidden
    return (Matrix(inputs, h, per_row), Matrix(h, h, per_row)), inputs * h + h * h + 2 * h * bias


def _joined_width(parts: _Parts, key: str) -> int:
    """Width of the vectors that a tower hands over, which replace embeddings of the text model and so have to be as wide."""
    keys = parts.encoder_keys
    known, width, wanted = len(keys.problems), keys.count(key), parts.text_hidden
    if width != wanted and len(keys.problems) == known:
        said = f"{key} is {width}" + ", the default of its class" * (keys.spelling(key) is None)
        keys.wrong(key, f"{said}, but the text model that reads the tower's vectors has hidden_size {wanted}")
    return width


def _merged(keys: Keys, key: str, ratio: object, patches: int | None) -> int:
    """Neighbouring patches on a side that become one token, where a configuration says what remains of a side; 1 where it is wrong."""
    if isinstance(ratio, (int, float)) and 0.0 < ratio <= 1.0:
        merge = round(1.0 / ratio)
        if patches is None or merge * merge <= max(patches, 1):
            return merge
        keys.wrong(
            key, f"{key} is {ratio:g}: a token joins {merge} x {merge} patches, more than the {patches} of an image"
        )
    else:
        keys.wrong(key, f"{key} is {shown(ratio)}; it must be a number above 0 and at most 1")
    return 1


def _features(parts: _Parts) -> int:
    """Layers of the encoder whose outputs are joined."""
    key = "vision_feature_layer"
    chosen = parts.wrapper.value(key)
    listed = list(chosen) if isinstance(chosen, (list, tuple)) and chosen else [chosen]
    if not all(type(layer) is int for layer in listed):
        parts.wrapper.wrong(key, f"{key} is {shown(chosen)}; it must be a whole number or a list of these")
    return len(listed)


def _llava(parts: _Parts) -> _Projector:
    inputs = parts.encoder.layers.hidden_size * _features(parts)
    matrices, count = _perceptron(parts, inputs, bias=parts.wrapper.flag("multimodal_projector_bias"))
    return _Projector(matrices, count, 1.0)


def _llava_next(parts: _Parts) -> _Projector:
    found = _llava(parts)
    # The embedding of a line's end is a parameter of the model itself.
    return _Projector(found.matrices, found.parameters + parts.text_hidden, found.rows_per_token)


def _gemma3(parts: _Parts) -> _Projector:
    h, tokens = parts.encoder.layers.hidden_size, parts.wrapper.count("mm_tokens_per_image")
    patches = parts.encoder.patches_per_input or tokens
    side, out = round(patches**0.5), round(tokens**0.5)
    if out * out != tokens or out > side:
        parts.wrapper.wrong(
            "mm_tokens_per_image", f"mm_tokens_per_image is {tokens}; it must be a square of at most {patches} patches"
        )
        out = side
    rows_per_token = float(max(side // out, 1) ** 2)
    return _Projector((Matrix(h, parts.text_hidden, 1.0 / rows_per_token),), h * parts.text_hidden + h, rows_per_token)


def _mistral3(parts: _Parts) -> _Projector:
    h, merge = parts.encoder.layers.hidden_size, parts.wrapper.count("spatial_merge_size")
    each = 1.0 / (merge * merge)
    bias = parts.wrapper.flag("multimodal_projector_bias")
    matrices, count = _perceptron(parts, h * _features(parts), bias=bias, per_row=each)
    return _Projector(
        (Matrix(merge * merge * h, h, each), *matrices), count + h + merge * merge * h * h, float(merge * merge)
    )


def _internvl(parts: _Parts) -> _Projector:
    key = "downsample_ratio"
    merge = _merged(parts.wrapper, key, parts.wrapper.value(key), parts.encoder.patches_per_input)
    inputs, each = parts.encoder.layers.hidden_size * merge * merge, 1.0 / (merge * merge)
    matrices, count = _perceptron(parts, inputs, bias=True, per_row=each)
    return _Projector(matrices, count + 2 * inputs, float(merge * merge))


def _llama4(parts: _Parts) -> _Projector:
    keys, h = parts.encoder_keys, parts.text_hidden
    key = "pixel_shuffle_ratio"
    merge = _merged(keys, key, keys.value(key), parts.encoder.patches_per_input)
    each = 1.0 / (merge * merge)
    inputs, middle, out = (
        keys.count("intermediate_size"),
        keys.count("projector_input_dim"),
        keys.count("projector_output_dim"),
    )
    wide = keys.count("vision_output_dim")
    # The adapter behind the shuffled patches is a part of the vision model; the wrapper adds one more linear layer.
    adapter = (Matrix(inputs, middle, each), Matrix(out, out, each))
    return _Projector((Matrix(wide, h, each),), wide * h, float(merge * merge), inputs * middle + out * out, adapter)


def _merger(parts: _Parts, *, out: int, norm: int, count: int = 1) -> _Projector:
    """Qwen's merger: a norm, and two linear layers over merged patches; `count` of them with norms of `norm` parameters in all."""
    merge = parts.encoder_keys.count("spatial_merge_size")
    wide, each = merge * merge * parts.encoder.layers.hidden_size, 1.0 / (merge * merge)
    matrices = (Matrix(wide, wide, each), Matrix(wide, out, each))
    return _Projector(matrices * count, count * (wide * wide + wide + wide * out + out) + norm, float(merge * merge))


def _qwen2_vl(parts: _Parts) -> _Projector:
    # This class calls the width of the text model hidden_size, and its own embed_dim.
    return _merger(parts, out=_joined_width(parts, "hidden_size"), norm=2 * parts.encoder.layers.hidden_size)


def _qwen2_5_vl(parts: _Parts) -> _Projector:
    return _merger(parts, out=_joined_width(parts, "out_hidden_size"), norm=parts.encoder.layers.hidden_size)


def _qwen3_vl(parts: _Parts) -> _Projector:
    keys, h = parts.encoder_keys, parts.encoder.layers.hidden_size
    merge, deep = keys.count("spatial_merge_size"), len(keys.numbers("deepstack_visual_indexes") or ())
    # Outputs of some layers in the middle have mergers of their own, whose norms are as wide as the merged patches.
    return _merger(
        parts, out=_joined_width(parts, "out_hidden_size"), norm=2 * h + deep * 2 * merge * merge * h, count=1 + deep
    )


def _glm4v(parts: _Parts) -> _Projector:
    keys = parts.encoder_keys
    d, f, merge = (
        _joined_width(parts, "out_hidden_size"),
        keys.count("intermediate_size"),
        keys.count("spatial_merge_size"),
    )
    each = 1.0 / (merge * merge)
    matrices = (Matrix(d, d, each), Matrix(d, 2 * f, each), Matrix(f, d, each))
    return _Projector(matrices, d * d + 2 * d + 3 * d * f, float(merge * merge))


def _qwen2_audio(parts: _Parts) -> _Projector:
    h = parts.encoder.layers.hidden_size
    # Pairs of frames are averaged in front of the projector.
    return _Projector((Matrix(h, parts.text_hidden, 0.5),), h * parts.text_hidden + parts.text_hidden, 2.0)


def _voxtral(parts: _Parts) -> _Projector:
    # As many frames are joined as an MLP of the encoder is wide.
    inputs, joined = (
        parts.encoder.layers.intermediate_size,
        parts.encoder.layers.intermediate_size // parts.encoder.layers.hidden_size,
    )
    matrices, count = _perceptron(parts, inputs, bias=False, per_row=1.0 / max(joined, 1))
    return _Projector(matrices, count, float(max(joined, 1)))


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A multimodal `model_type`."""

    sense: Sense
    encoder: str
    """Class of its encoder where the encoder's configuration does not say."""
    read: Callable[[_Parts], _Projector]
    defaults: Mapping[str, Any]
    tensor_parallel: bool = False
    """Megatron-Bridge 0.6 splits this tower over tp (models/qwen_vl/modelling_qwen3_vl/transformer_config.py); others are
    Hugging Face's modules there, whole on every rank (modeling_qwen25_vl.py, modeling_gemma3_vl.py, modeling_glm_45v.py)."""


_LLAVA = {"vision_feature_layer": -2, "multimodal_projector_bias": True}
WRAPPERS: Mapping[str, _Wrapper] = {
    "llava": _Wrapper("vision", "clip_vision_model", _llava, _LLAVA),
    "llava_next": _Wrapper("vision", "clip_vision_model", _llava_next, _LLAVA),
    "mistral3": _Wrapper("vision", "pixtral", _mistral3, {
        "vision_feature_layer": -1, "multimodal_projector_bias": False, "spatial_merge_size": 2}),
    "gemma3": _Wrapper("vision", "siglip_vision_model", _gemma3, {"mm_tokens_per_image": 256}),
    "internvl": _Wrapper("vision", "internvl_vision", _internvl, {"downsample_ratio": 0.5}),
    "llama4": _Wrapper("vision", "llama4_vision_model", _llama4, {}),
    "qwen2_vl": _Wrapper("vision", "qwen2_vl_vision", _qwen2_vl, {}),
    "qwen2_5_vl": _Wrapper("vision", "qwen2_5_vl_vision", _qwen2_5_vl, {}),
    "qwen3_vl": _Wrapper("vision", "qwen3_vl_vision", _qwen3_vl, {}, tensor_parallel=True),
    "qwen3_vl_moe": _Wrapper("vision", "qwen3_vl_moe_vision", _qwen3_vl, {}, tensor_parallel=True),
    "glm4v": _Wrapper("vision", "glm4v_vision", _glm4v, {}),
    "glm46v": _Wrapper("vision", "glm4v_vision", _glm4v, {}),
    "glm4v_moe": _Wrapper("vision", "glm4v_moe_vision", _glm4v, {}),
    "qwen2_audio": _Wrapper("audio", "qwen2_audio_encoder", _qwen2_audio, {}),
    "voxtral": _Wrapper("audio", "voxtral_encoder", _voxtral, {}),
}  # fmt: skip
"""By the `model_type` of the whole configuration."""
CONFIGS: Mapping[Sense, str] = {"vision": "vision_config", "audio": "audio_config"}
TOWERS_ALONE = frozenset({
    *ENCODERS, "siglip2_vision_model", "mllama_vision_model",
})  # fmt: skip
"""`model_type` of configurations that describe an encoder and nothing else."""
_WINDOW_S = 30.0
"""Seconds of a window of Whisper's encoder; its feature extractor fills shorter sounds up (transformers, whisper/feature_extraction_whisper.py)."""


def tower_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a multimodal configuration that describes its towers; empty where it has none."""
    wrapper = WRAPPERS.get(str(config.get("model_type")))
    if wrapper is None and all(config.get(key) is None for key in CONFIGS.values()):
        return {}
    keys = ("model_type", *CONFIGS.values(), *(wrapper.defaults if wrapper is not None else ()))
    return {key: config[key] for key in keys if config.get(key) is not None}


def read_tower(model: Model, sense: Sense, *, pointer: str) -> Tower | None:
    """The tower of this sense in the configuration that the model was read from; None where there is none.

    Raises:
        NotModelledError: the wrapper or its encoder has no cost model here.
        InvalidInputError: a key of the configuration has an impossible value.
    """
    config, key = model.multimodal, CONFIGS[sense]
    if config is None:
        return None
    outer = str(config.get("model_type"))
    wrapper = WRAPPERS.get(outer)
    if wrapper is None and config.get(key) is not None:
        message = f"the {sense} tower of model_type {outer[:100]!r} is not modelled"
        raise NotModelledError([_unknown(child(pointer, "model_type"), message, sense, WRAPPERS)])
    # A class would fill in a tower of its default sizes, which is none that the user has.
    if wrapper is None or wrapper.sense != sense or config.get(key) is None:
        return None
    return _read(model, wrapper, config, child(pointer, key), pointer)


def _read(model: Model, wrapper: _Wrapper, config: Mapping[str, Any], at: str, pointer: str) -> Tower:
    own = config.get(CONFIGS[wrapper.sense])
    if not isinstance(own, Mapping):
        message = f"{CONFIGS[wrapper.sense]} is {shown(own)}; it must be an object {{…}}"
        raise InvalidInputError([Problem(at, message, "Give the tower's config there.")])
    stated = own.get("model_type")
    if not isinstance(stated, str | None):
        message = f"model_type is {shown(stated)}; it must be a string"
        raise InvalidInputError([Problem(child(at, "model_type"), message, "Correct it, or leave it out.")])
    family = stated if stated is not None and stated in ENCODERS else wrapper.encoder
    # Wrappers of Qwen and GLM have one class of encoder, and older configurations call it by the wrapper's name.
    if stated is not None and stated not in (*ENCODERS, config.get("model_type")):
        message = f"the encoder {stated[:100]!r} is not modelled"
        raise NotModelledError([_unknown(child(at, "model_type"), message, wrapper.sense, ENCODERS)])
    reader = ENCODERS[family]
    keys = Keys(own, reader.defaults, reader.aliases, at)
    encoder = reader.read(keys)
    outer = Keys(config, wrapper.defaults, {}, pointer, keys.assumed, keys.problems)
    projector = wrapper.read(_Parts(outer, keys, encoder, model.hidden_size))
    keys.check()
    fixed = encoder.patches_per_input
    # A class row goes through the layers and becomes no token.
    share = fixed / encoder.rows_per_input if fixed is not None and encoder.rows_per_input else 1.0
    behind = [replace(matrix, per_row=matrix.per_row * share) for matrix in projector.matrices]
    adapter = [replace(matrix, per_row=matrix.per_row * share) for matrix in projector.added_to_stem]
    return Tower(
        sense=wrapper.sense,
        family=family,
        layers=encoder.layers,
        stem=(*encoder.stem, *adapter),
        stem_parameters=encoder.other_parameters + projector.added_to_encoder,
        projector=tuple(behind),
        projector_parameters=projector.parameters,
        rows_per_token=projector.rows_per_token,
        rows_per_input=encoder.rows_per_input,
        tokens_per_input=None if fixed is None else max(round(fixed / projector.rows_per_token), 1),
        seconds_per_input=_WINDOW_S if wrapper.sense == "audio" else None,
        pixels_per_token=None if fixed is not None else round(encoder.patch * projector.rows_per_token**0.5),
        tensor_parallel=wrapper.tensor_parallel,
    )


def _unknown(at: str, message: str, sense: str, known: Mapping[str, object]) -> Problem:
    hint = f"Leave training.towers.{sense} out to plan the text model alone. Known: " + ", ".join(known) + "."
    return Problem(at, message, hint, "not-modelled")
