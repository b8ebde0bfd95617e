"""Layers of hybrids as Megatron Core writes them: one letter for each block, `|` between virtual stages.

`M` is Mamba-2, `G` a gated delta net, `*` attention, `-` an MLP and `E` one of experts. A layer of the model that has a mixer and an MLP is
two letters, which are two layers to Megatron Core. Stages come as in a pipeline layout: chunk 0 of all ranks before chunk 1.
Source: `megatron/core/ssm/mamba_hybrid_layer_allocation.py` of 0.17; `megatron/core/models/hybrid/hybrid_layer_allocation.py` since 0.18.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from planner.export.quantities import Quantities

MAMBA2: Final = "mamba2"
LETTERS: Final = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
"""The letter of a layer of `layer_types` where its recurrent mixer is Mamba-2."""
_TYPES: Final = {letter: name for name, letter in LETTERS.items()} | {"G": "linear_attention"}
_STAGE = re.compile(r"[MG*E-]*")
_PAIRS = re.compile(r"([MG*][E-])*")
MOST_LETTERS = 100_000
"""No model has more layers."""


def has_pattern(q: Quantities) -> bool:
    """Whether a plan's model is built from a pattern of blocks: Mamba-2, or layers of one block each.

    Gated delta nets stand in attention's place in a layer of the usual model and need none.
    """
    recurrent = q.peek("model.recurrent")
    return bool(q.peek("model.single_block_layers")) or (recurrent is not None and recurrent["kind"] == MAMBA2)


def blocks_per_layer(q: Quantities) -> int:
    """Layers of Megatron Core that one layer of the model is."""
    return 2 if has_pattern(q) and not q.peek("model.single_block_layers") else 1


def hybrid_pattern(layer_types: Sequence[str], moe: Sequence[int], stages: Sequence[int], *, single: bool) -> str:
    """The pattern of a model.

    Args:
        layer_types: one name for each layer.
        moe: 1 for each layer with experts, 0 for the others.
        stages: layers of each virtual stage.
        single: whether each layer is one block.
    """
    layers = iter(
        LETTERS[kind] if single else LETTERS[kind] + "-E"[experts]
        for kind, experts in zip(layer_types, moe, strict=True)
    )
    return "|".join("".join(_taken(layers, count)) for count in stages)


def _taken(layers: Iterator[str], count: int) -> list[str]:
    return [next(layers) for _ in range(count)]


@dataclass(frozen=True)
class Layers:
    """What a pattern says of a model's layers."""

    blocks: tuple[str, ...]
    """One text for each layer of the model: a letter, or a mixer's and its MLP's."""
    stages: tuple[int, ...]
    """Layers of each virtual stage; a single number where the pattern marks no stages."""
    single: bool
    """Whether each layer is one block."""

    @property
    def types(self) -> list[str]:
        """`layer_types`."""
        return [_TYPES[block[0]] for block in self.blocks]

    @property
    def moe(self) -> list[int]:
        """1 for each layer with experts."""
        return [int(block[-1] == "E") for block in self.blocks]


def layers_of_pattern(text: str, *, unit: int = 0) -> Layers | None:
    """The layers of a pattern; None where it is none, mixes two recurrent mixers, or goes on with multi-token prediction.

    Blocks are read as layers of a mixer with its MLP where every stage consists of such pairs.

    Args:
        text: the pattern.
        unit: blocks that are recomputed together, 0 without full recomputation; an odd number of them is no number of pairs.
    """
    stages = text.split("|")
    known = len(text) <= MOST_LETTERS and all(_STAGE.fullmatch(stage) for stage in stages)
    if not known or not any(stages) or {"M", "G"} <= set(text):
        return None
    single = unit % 2 == 1 or not all(_PAIRS.fullmatch(stage) for stage in stages)
    width = 1 if single else 2
    blocks = tuple(stage[at : at + width] for stage in stages for at in range(0, len(stage), width))
    return Layers(blocks, tuple(len(stage) // width for stage in stages), single)
