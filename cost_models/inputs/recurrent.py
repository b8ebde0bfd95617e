"""Recurrent layers as a user writes them in `model.recurrent`, and which layers of `layer_types` have what.

`resolved_recurrent` checks the fields and fills their defaults; `layer_mixers` reads the list of layers. What the fields mean is in
`cost_models.specs.recurrent`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from cost_models.documented import Documented
from cost_models.inputs.fields import STRICT, Count, CountOrZero, Flag
from cost_models.specs.model import Mixer
from cost_models.specs.recurrent import Recurrent, RecurrentKind

ATTENTION_LAYERS: Final = ("full_attention", "sliding_attention", "chunked_attention")
WINDOWED_LAYERS: Final = ("sliding_attention", "chunked_attention")
"""Layer types in which a query sees only `sliding_window` tokens."""
RECURRENT_LAYERS: Final = ("linear_attention", "mamba", "conv")
"""Names of layers with the model's recurrent mixer, as Hugging Face's configs spell them."""
BESIDE: Final = "hybrid"
ALONE: Final = ("mlp", "moe")
_CHUNKS: Final = {"mamba": 2048, "mamba2": 256, "gated-delta-net": 64, "short-conv": 1}
"""Tokens of a chunk where nothing else is said: selective_scan's (mamba_ssm/csrc/selective_scan), Mamba-2's default and
flash-linear-attention's constant (fla/ops/gated_delta_rule/chunk.py)."""


class RecurrentInput(Documented):
    """What mixes tokens in the layers that do not attend, or do not attend alone."""

    model_config = STRICT

    kind: RecurrentKind
    """Sort of mixer: "mamba" (Mamba-1), "mamba2", "gated-delta-net", or "short-conv", a gated convolution alone (LFM2)."""
    num_heads: Count | None = None
    """Number of heads of the state; of a delta net its value heads. Default 1 for mamba and short-conv, which have none; else needed."""
    head_dim: Count | None = None
    """Width of one head. Default: twice hidden_size over `num_heads` for mamba and mamba2, hidden_size for short-conv; else needed."""
    num_groups: Count | None = None
    """Groups of heads that share B and C (Mamba-2), or key heads (delta net). Default 1."""
    state_size: CountOrZero | None = None
    """State of one channel (Mamba's N), or width of a delta net's key head. Default 16 for mamba, 128 for mamba2, `head_dim` for a delta net."""
    conv_kernel: Annotated[Count, Field(le=4096)] | None = None
    """Tokens that the causal convolution spans. Default 4; 3 for short-conv."""
    conv_bias: Flag | None = None
    """Whether the convolution has a bias. Default: of mamba and mamba2 alone."""
    in_bias: Flag | None = None
    """Whether the input projection has a bias. Default false."""
    out_bias: Flag | None = None
    """Whether the output projection has a bias. Default false."""
    gated_norm: Literal["none", "full", "per_head"] | None = None
    """Norm of the gated output: "full", as wide as all heads (Mamba-2), "per_head", one weight for all heads (delta net), or "none"."""
    dt_rank: CountOrZero | None = None
    """Width of the bottleneck of Mamba's step sizes. Default: a sixteenth of hidden_size, rounded up."""
    inner_norms: Flag | None = None
    """Whether step sizes, B and C are normalised (Jamba). Default false."""
    chunk_size: Annotated[Count, Field(le=8192)] | None = None
    """Tokens of one chunk of the kernel. Default 256 for mamba2, 64 for a delta net."""


_STEPS: Final = "mamba"
"""The kind whose step sizes come from a bottleneck of their own (dt_rank)."""


Filled = Callable[[str, Any, Any], Any]
"""Takes a field's name, its value and its default, and returns the value or, noting it, the default."""
Refuse = Callable[[str, str, str], None]
"""Notes a broken rule: the field's name, what is wrong, and the remedy."""


def resolved_recurrent(given: RecurrentInput, hidden: int, *, filled: Filled, refuse: Refuse) -> Recurrent:
    """The mixer with its defaults in a model of this hidden size.

    Args:
        given: as the user wrote it.
        hidden: hidden_size of the model.
        filled: notes a default.
        refuse: notes a broken rule.
    """
    kind = given.kind
    _refuse_foreign(given, refuse)
    mamba, delta = kind in ("mamba", "mamba2"), kind == "gated-delta-net"
    # Mamba treats each channel by itself, and a short convolution has no state at all.
    headless = kind in ("mamba", "short-conv")
    heads = given.num_heads
    if heads is None and not headless:
        refuse("recurrent.num_heads", f"num_heads is required for {kind}", "Add the number of heads.")
    heads = heads or 1
    width = given.head_dim
    if width is None:
        inner = 2 * hidden if mamba else hidden
        if delta:
            refuse("recurrent.head_dim", f"head_dim is required for {kind}", "Add the width of a value head.")
        elif inner % heads:
            refuse("recurrent.num_heads", f"num_heads {heads} does not divide {inner}", "Give 'head_dim' as well.")
        width = filled("recurrent.head_dim", None, max(inner // heads, 1))

    def default(name: str, value: object, fallback: object, *, told: bool) -> Any:
        """A field's value. What the kind does not have, and constants of its kernels, are not reported as assumed."""
        if told:
            return filled(f"recurrent.{name}", value, fallback)
        return fallback if value is None else value

    # One group for all heads is Mamba-2's default; delta nets share a key head between value heads in the same way.
    groups = default("num_groups", given.num_groups, 1, told=not headless)
    if heads % groups:
        message = f"num_heads {heads} is not a multiple of num_groups {groups}"
        refuse("recurrent.num_groups", message, "Use a divisor of num_heads.")
    state = {"mamba": 16, "mamba2": 128, "gated-delta-net": width, "short-conv": 0}[kind]
    return Recurrent(
        kind=kind,
        num_heads=heads,
        head_dim=width,
        num_groups=groups,
        state_size=default("state_size", given.state_size, state, told=kind != "short-conv"),
        conv_kernel=filled("recurrent.conv_kernel", given.conv_kernel, 3 if kind == "short-conv" else 4),
        conv_bias=filled("recurrent.conv_bias", given.conv_bias, mamba),
        in_bias=bool(given.in_bias),
        out_bias=bool(given.out_bias),
        gated_norm=given.gated_norm or {"mamba2": "full", "gated-delta-net": "per_head"}.get(kind, "none"),  # type: ignore[arg-type]
        dt_rank=filled("recurrent.dt_rank", given.dt_rank, -(-hidden // 16)) if kind == "mamba" else 0,
        inner_norms=bool(given.inner_norms),
        chunk_size=default("chunk_size", given.chunk_size, _CHUNKS[kind], told=kind == "mamba2"),
    )


def _refuse_foreign(given: RecurrentInput, refuse: Refuse) -> None:
    """Notes sizes that the kind does not have, and missing ones that it cannot do without."""
    kind = given.kind
    bottleneck = kind == _STEPS
    for name, value, has, what in (
        ("state_size", given.state_size, kind != "short-conv", "state"),
        ("dt_rank", given.dt_rank, bottleneck, "bottleneck of step sizes"),
    ):
        if value == 0 and has:
            refuse(
                f"recurrent.{name}", f"{name} is 0; it must be at least 1 for {kind}", "Correct it, or leave it out."
            )
        elif value and not has:
            refuse(f"recurrent.{name}", f"{name} is {value}, but {kind} has no {what}", "Leave it out.")
    if given.inner_norms and not bottleneck:
        message = f"inner_norms is true, but {kind} does not normalise step sizes, B and C"
        refuse("recurrent.inner_norms", message, "Leave it out.")


def layer_mixers(layer_types: Sequence[str] | None, num_layers: int) -> list[Mixer]:
    """What mixes the tokens of each layer; names that are not known count as attention."""
    if layer_types is None:
        return ["attention"] * num_layers
    # transformers 5 calls Mamba and delta nets alike "linear_attention"; which of them is meant stands in `recurrent`.
    named: dict[str, Mixer] = {BESIDE: "both"}
    named |= dict.fromkeys(RECURRENT_LAYERS, "recurrent")
    named |= dict.fromkeys(ALONE, "none")
    return [named.get(name, "attention") for name in layer_types]
