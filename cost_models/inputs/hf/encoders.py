"""Readers of the encoders in multimodal configurations: what a vision or audio tower is made of, without its projector.

One function per class of encoder in transformers. Each gives the layers as a `Model` without a causal mask, and counts what lies
around them as the modules are built (transformers/models/*/modeling_*.py, 5.24). Class defaults are those of the configuration class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.hints import shown
from cost_models.inputs.hf.keys import Keys
from cost_models.specs.model import LayerKind, Model
from cost_models.specs.tower import Matrix


@dataclass(frozen=True, slots=True)
class Encoder:
    """What stands in a tower before its projector; sizes in elements."""

    layers: Model
    stem: tuple[Matrix, ...]
    other_parameters: int
    """Parameters outside of the layers."""
    rows_per_input: int | None = None
    """Rows of one image or window where all are alike, a class row included."""
    patches_per_input: int | None = None
    """The same without the class row; these become tokens."""
    patch: int = 1
    """Pixels on a side of a patch."""


def encoder_layers(
    *, name: str, count: int, hidden: int, heads: int, intermediate: int, norm: str, gated: bool, qkv_bias: bool,
    out_bias: bool, mlp_bias: bool, rotary: bool, qk_norm: str = "none", windows: tuple[int | None, ...] = (),
    packed: bool = False, scales: bool = False, act: str | None = "gelu",
) -> Model:  # fmt: skip
    """The layers of an encoder as a model without vocabulary, in which every row sees all others of its input."""
    return Model(
        name=name, num_layers=count, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads,
        head_dim=max(hidden // heads, 1), intermediate_size=intermediate, vocab_size=1, gated_mlp=gated,
        tie_word_embeddings=True, norm="layernorm" if norm == "layernorm" else "rmsnorm", norms_per_layer=2,
        qk_norm="full" if qk_norm == "full" else "none", position_embedding="rope" if rotary else "none",
        max_position_embeddings=None, qkv_bias=qkv_bias, attention_out_bias=out_bias, mlp_bias=mlp_bias,
        norm_bias=norm == "layernorm", head_bias=False, parallel_block=False, embedding_norm=False, final_norm=False,
        attention_sinks=False, layer_kinds=tuple(LayerKind(False, w) for w in windows or (None,) * count), causal=False, packed_rows=packed, layer_scales=scales,
        quick_gelu=act == "quick_gelu",
    )  # fmt: skip


def _sides(keys: Keys, key: str) -> tuple[int, int]:
    """Height and width in pixels; a single number stands for both."""
    value = keys.value(key)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(n) is int and n >= 1 for n in value):
        return int(value[0]), int(value[1])
    side = keys.count(key)
    return side, side


def _divided(keys: Keys) -> int:
    """Heads, where they divide the hidden size; the config is wrong otherwise."""
    hidden_key = "embed_dim" if "embed_dim" in keys.defaults else "hidden_size"
    heads_key = "num_heads" if "num_heads" in keys.defaults else "num_attention_heads"
    hidden, heads = keys.count(hidden_key), keys.count(heads_key)
    if hidden % heads:
        keys.wrong(heads_key, f"{heads_key} {heads} does not divide {hidden_key} {hidden}")
    return heads


def _classic(keys: Keys, *, name: str, rotary: bool = False) -> Model:
    """Layers of CLIP's kind: LayerNorm, biases everywhere, an MLP without a gate."""
    return encoder_layers(
        name=name, count=keys.layers("num_hidden_layers"), hidden=keys.count("hidden_size"), heads=_divided(keys),
        intermediate=keys.count("intermediate_size"), norm="layernorm", gated=False, qkv_bias=True, out_bias=True,
        mlp_bias=True, rotary=rotary, act=keys.text("hidden_act"),
    )  # fmt: skip


def _grid(keys: Keys) -> tuple[int, int, int]:
    """Patches of an image of the configured size, elements of a patch, and the pixels on its side."""
    (height, width), (rows, columns) = _sides(keys, "image_size"), _sides(keys, "patch_size")
    patches = _patches(keys, height // rows, width // columns, side=rows)
    return patches, keys.count("num_channels") * rows * columns, rows


def _patches(keys: Keys, high: int, wide: int, *, side: int) -> int:
    """Patches of an image that is so many of them high and wide; an image holds one at least."""
    if high and wide:
        return high * wide
    keys.wrong("image_size", f"image_size {shown(keys.value('image_size'))} holds no patch of {side} pixels")
    return 1


def _siglip(keys: Keys) -> Encoder:
    layers = _classic(keys, name="siglip")
    h, f = layers.hidden_size, layers.intermediate_size
    patches, pixels, side = _grid(keys)
    other = pixels * h + h + patches * h + 2 * h
    if keys.flag("vision_use_head"):  # a pooling head, which no text model reads
        other += h + 3 * h * h + 3 * h + h * h + h + 2 * h + 2 * h * f + f + h
    return Encoder(layers, (Matrix(pixels, h, 1.0),), other, patches, patches, side)


def _clip(keys: Keys) -> Encoder:
    layers = _classic(keys, name="clip")
    h = layers.hidden_size
    patches, pixels, side = _grid(keys)
    other = h + pixels * h + (patches + 1) * h + 4 * h
    return Encoder(layers, (Matrix(pixels, h, patches / (patches + 1)),), other, patches + 1, patches, side)


def _llama4(keys: Keys) -> Encoder:
    layers = _classic(keys, name="llama4-vision", rotary=True)
    h = layers.hidden_size
    patches, pixels, side = _grid(keys)
    other = h + (patches + 1) * h + pixels * h + 4 * h
    return Encoder(layers, (Matrix(pixels, h, patches / (patches + 1)),), other, patches + 1, patches, side)


def _internvl(keys: Keys) -> Encoder:
    norm = "layernorm" if keys.text("norm_type") == "layer_norm" else "rmsnorm"
    layers = encoder_layers(
        name="internvl-vision", count=keys.layers("num_hidden_layers"), hidden=keys.count("hidden_size"),
        heads=_divided(keys), intermediate=keys.count("intermediate_size"), norm=norm, gated=False,
        qkv_bias=keys.flag("attention_bias"), out_bias=True, mlp_bias=True, rotary=False,
        qk_norm="full" if keys.flag("use_qk_norm") else "none", scales=True,
    )  # fmt: skip
    h = layers.hidden_size
    patches, pixels, side = _grid(keys)
    other = h + pixels * h + h + 2 * h * layers.num_layers  # the class row, the patches, two scales in every layer
    other += h * keys.flag("use_mask_token") + (patches + 1) * h * keys.flag("use_absolute_position_embeddings")
    if not keys.flag("use_mean_pooling"):  # the norm behind the layers, a LayerNorm whatever theirs are
        other += 2 * h
    return Encoder(layers, (Matrix(pixels, h, patches / (patches + 1)),), other, patches + 1, patches, side)


def _pixtral(keys: Keys) -> Encoder:
    layers = encoder_layers(
        name="pixtral", count=keys.layers("num_hidden_layers"), hidden=keys.count("hidden_size"), heads=_divided(keys),
        intermediate=keys.count("intermediate_size"), norm="rmsnorm", gated=True, qkv_bias=False, out_bias=False,
        mlp_bias=False, rotary=True,
    )  # fmt: skip
    h, (rows, columns) = layers.hidden_size, _sides(keys, "patch_size")
    pixels = keys.count("num_channels") * rows * columns
    return Encoder(layers, (Matrix(pixels, h, 1.0),), pixels * h + h, patch=rows)


def _frames(keys: Keys) -> tuple[int, int]:
    """Elements of a patch over the frames that are embedded together, and the pixels on its side."""
    rows, columns = _sides(keys, "patch_size")
    frames, _ = _sides(keys, "temporal_patch_size")
    return keys.count("in_channels") * frames * rows * columns, rows


def _qwen2_vl(keys: Keys) -> Encoder:
    h = keys.count("embed_dim")
    layers = encoder_layers(
        name="qwen2-vl-vision", count=keys.layers("depth"), hidden=h, heads=_divided(keys),
        intermediate=h * keys.count("mlp_ratio"), norm="layernorm", gated=False, qkv_bias=True, out_bias=True,
        mlp_bias=True, rotary=True, packed=True, act=keys.text("hidden_act"),
    )  # fmt: skip
    pixels, side = _frames(keys)
    return Encoder(layers, (Matrix(pixels, h, 1.0),), pixels * h, patch=side)


def _qwen2_5_vl(keys: Keys) -> Encoder:
    h, count, (pixels, side) = keys.count("hidden_size"), keys.layers("depth"), _frames(keys)
    # Most layers attend within square windows of so many pixels, whole multiples of what becomes a token.
    merge = keys.count("spatial_merge_size")
    window = max(keys.count("window_size") // merge // side, 1) * merge
    full = set(keys.numbers("fullatt_block_indexes") or ())
    layers = encoder_layers(
        name="qwen2.5-vl-vision", count=count, hidden=h, heads=_divided(keys), intermediate=keys.count("intermediate_size"),
        norm="rmsnorm", gated=True, qkv_bias=True, out_bias=True, mlp_bias=True, rotary=True, packed=True,
        windows=tuple(None if i in full else window * window for i in range(count)),
    )  # fmt: skip
    return Encoder(layers, (Matrix(pixels, h, 1.0),), pixels * h, patch=side)


def _qwen3_vl(keys: Keys) -> Encoder:
    h, (pixels, side) = keys.count("hidden_size"), _frames(keys)
    layers = encoder_layers(
        name="qwen3-vl-vision", count=keys.layers("depth"), hidden=h, heads=_divided(keys),
        intermediate=keys.count("intermediate_size"), norm="layernorm", gated=False, qkv_bias=True, out_bias=True,
        mlp_bias=True, rotary=True, packed=True,
    )  # fmt: skip
    other = pixels * h + h + keys.count("num_position_embeddings") * h
    return Encoder(layers, (Matrix(pixels, h, 1.0),), other, patch=side)


def _glm4v(keys: Keys) -> Encoder:
    h, out, (pixels, side) = keys.count("hidden_size"), keys.count("out_hidden_size"), _frames(keys)
    layers = encoder_layers(
        name="glm4v-vision", count=keys.layers("depth"), hidden=h, heads=_divided(keys), intermediate=out, norm="rmsnorm",
        gated=True, qkv_bias=keys.flag("attention_bias"), out_bias=False, mlp_bias=False, rotary=True, packed=True,
    )  # fmt: skip
    height, width = _sides(keys, "image_size")
    merge = keys.count("spatial_merge_size")
    # Neighbours are merged by a convolution, which belongs to the encoder.
    down = merge * merge * h
    other = _patches(keys, height // side, width // side, side=side) * h + pixels * h + h + 2 * h + down * out + out
    stem = (Matrix(pixels, h, 1.0), Matrix(down, out, 1.0 / (merge * merge)))
    return Encoder(layers, stem, other, patch=side)


def _whisper(keys: Keys) -> Encoder:
    """Whisper's encoder: two convolutions over mel frames, of which the second halves them; keys have no bias."""
    d, mel, frames = keys.count("d_model"), keys.count("num_mel_bins"), keys.count("max_source_positions")
    count, heads = keys.layers("encoder_layers"), keys.count("encoder_attention_heads")
    if d % heads:
        keys.wrong("encoder_attention_heads", f"encoder_attention_heads {heads} does not divide d_model {d}")
    layers = encoder_layers(
        name="whisper", count=count, hidden=d, heads=heads, intermediate=keys.count("encoder_ffn_dim"), norm="layernorm",
        gated=False, qkv_bias=False, out_bias=True, mlp_bias=True, rotary=False,
    )  # fmt: skip
    other = (
        3 * mel * d + d + 3 * d * d + d + frames * d + 2 * d + 2 * d * count
    )  # the last: biases of queries and values
    return Encoder(layers, (Matrix(3 * mel, d, 2.0), Matrix(3 * d, d, 1.0)), other, frames, frames)


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """A class of encoders: how it is read, and what it assumes where its configuration says nothing."""

    read: Callable[[Keys], Encoder]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, tuple[str, ...]]


_DEPTH = {"depth": ("num_hidden_layers",), "num_heads": ("num_attention_heads",)}
_SQUARE = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2}
_SIGLIP = EncoderFamily(_siglip, {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 16, "vision_use_head": True, "hidden_act": "gelu_pytorch_tanh",
}, {})  # fmt: skip
_GLM4V = EncoderFamily(_glm4v, {
    **_SQUARE, "depth": 24, "hidden_size": 1536, "num_heads": 12, "attention_bias": False, "image_size": 336, "patch_size": 14,
    "out_hidden_size": 4096, "intermediate_size": 13696,
}, _DEPTH)  # fmt: skip
_QWEN3_VL = EncoderFamily(_qwen3_vl, {
    **_SQUARE, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "out_hidden_size": 3584, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
}, _DEPTH)  # fmt: skip
_WHISPER = {
    "num_mel_bins": 128, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "d_model": 1280,
    "max_source_positions": 1500,
}  # fmt: skip
ENCODERS: Mapping[str, EncoderFamily] = {
    "siglip_vision_model": _SIGLIP,
    "clip_vision_model": EncoderFamily(_clip, {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
        "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu",
    }, {}),
    "llama4_vision_model": EncoderFamily(_llama4, {
        "hidden_size": 768, "num_hidden_layers": 34, "num_attention_heads": 16, "num_channels": 3, "intermediate_size": 5632,
        "vision_output_dim": 7680, "image_size": 448, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "hidden_act": "gelu",
    }, {}),
    "pixtral": EncoderFamily(_pixtral, {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "num_channels": 3,
        "image_size": 1024, "patch_size": 16,
    }, {}),
    "internvl_vision": EncoderFamily(_internvl, {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "attention_bias": False, "use_qk_norm": False,
        "intermediate_size": 4096, "norm_type": "layer_norm", "image_size": [448, 448], "patch_size": [14, 14],
        "num_channels": 3, "use_mask_token": False, "use_absolute_position_embeddings": True, "use_mean_pooling": True,
    }, {}),
    "qwen2_vl_vision": EncoderFamily(_qwen2_vl, {
        **_SQUARE, "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
        "hidden_act": "quick_gelu",
    }, _DEPTH),
    "qwen2_5_vl_vision": EncoderFamily(_qwen2_5_vl, {
        **_SQUARE, "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "window_size": 112, "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31],
    }, _DEPTH),
    "qwen3_vl_vision": _QWEN3_VL,
    "qwen3_vl_moe_vision": _QWEN3_VL,
    "glm4v_vision": _GLM4V,
    "glm4v_moe_vision": _GLM4V,
    "qwen2_audio_encoder": EncoderFamily(_whisper, _WHISPER, {}),
    "voxtral_encoder": EncoderFamily(_whisper, _WHISPER, {
        "d_model": ("hidden_size",), "encoder_layers": ("num_hidden_layers",), "encoder_ffn_dim": ("intermediate_size",),
        "encoder_attention_heads": ("num_attention_heads",),
    }),
}  # fmt: skip
"""By the `model_type` of the encoder's configuration."""
