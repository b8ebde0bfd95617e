"""Encoders beside a text model: what a vision or audio tower is, and how a training job uses it.

A tower's layers are a `Model` of their own whose attention is not causal, so that the formulas of layers price them. What lies around
the layers is given by its matrices and its number of parameters. Rows are patches of an image, or frames of audio behind the tower's
convolutions; tokens are what the text model reads in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cost_models.specs.model import Model

Sense = Literal["vision", "audio"]
TowerState = Literal["frozen", "trained", "none"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A product outside of a tower's layers: (rows, inputs) by (inputs, outputs)."""

    inputs: int
    outputs: int
    per_row: float
    """Its rows for each row of the tower: 1, or fewer behind the merging of neighbours."""


@dataclass(frozen=True, slots=True)
class Tower:
    """One encoder with its projector; sizes in elements."""

    sense: Sense
    family: str
    """The `model_type` of the encoder's configuration."""
    layers: Model
    """The encoder's layers; what a `Model` has beside them (vocabulary, final norm) is not used."""
    stem: tuple[Matrix, ...]
    """Products in front of the layers, such as the embedding of patches."""
    stem_parameters: int
    """Parameters of the encoder outside of its layers: embeddings of patches and positions, norms, heads that are kept unused."""
    projector: tuple[Matrix, ...]
    """Products between the encoder and the text model."""
    projector_parameters: int
    rows_per_token: float
    """Rows that become one token of the text model."""
    rows_per_input: int | None = None
    """Rows of one tile, or of one window of audio, where that is fixed; None where images may have any size."""
    tokens_per_input: int | None = None
    """Tokens of one such tile or window; None with `rows_per_input`."""
    seconds_per_input: float | None = None
    """Length of a window of audio."""
    pixels_per_token: int | None = None
    """Pixels on a side of what becomes one token, where images may have any size."""
    tensor_parallel: bool = False
    """Whether Megatron's module of the tower splits it over tensor-parallel ranks; otherwise each of them runs all of it."""


@dataclass(frozen=True, slots=True)
class TowerUse:
    """A tower as one training job runs it; per sequence of the text model."""

    tower: Tower
    trained: bool
    num_inputs: float
    """Images, tiles or windows that the tower encodes, on average."""
    rows_per_input: int
    """Rows that attend to each other."""
    tokens: float
    """Tokens of the sequence that come from the tower."""

    @property
    def rows(self) -> float:
        """Rows that the tower encodes for one sequence."""
        return self.num_inputs * self.rows_per_input


@dataclass(frozen=True, slots=True, eq=False)
class Towers:
    """All encoders that a training job runs. They are equal, and hash, by identity, since a `Model` does not hash."""

    uses: tuple[TowerUse, ...]
    projector_trained: bool
    recompute: Literal["none", "full"] | None = None
    """Recomputation of the towers' layers; None: as the text model's, where these are recomputed in full."""

    given: Mapping[str, float] = field(default_factory=dict)
    """Amounts of images and sounds as a request states them, with those that were assumed."""

    @property
    def trains_something(self) -> bool:
        """Whether gradients flow through the text model's input."""
        return self.projector_trained or any(use.trained for use in self.uses)
