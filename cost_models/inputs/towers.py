"""The towers of a training job as a user writes them, checked against the model's configuration and the length of its sequences.

A sequence of `seq_length` tokens holds text and what the towers yield. Images of any size are stated by the tokens that they become;
towers with images of one size know that number themselves, and cut larger images into tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.frameworks import framework_facts, frameworks_where
from cost_models.hints import child
from cost_models.inputs.fields import LARGEST, SMALLEST, STRICT, Count, validated
from cost_models.inputs.hf.towers import CONFIGS, read_tower
from cost_models.specs.model import Model
from cost_models.specs.tower import Sense, Tower, Towers, TowerState, TowerUse
from cost_models.specs.training import Training

Amount = Annotated[float, Field(strict=True, ge=SMALLEST, le=float(LARGEST), allow_inf_nan=False)]


class TowersInput(Documented):
    """Encoders of images and sounds in front of a text model."""

    model_config = STRICT

    vision: TowerState = "none"
    """Whether the vision tower runs, and whether it is trained: "frozen", "trained" or "none"."""
    audio: TowerState = "none"
    """The same of the audio tower."""
    images_per_sequence: Amount | None = None
    """Number of images in a sequence, on average. Default 1."""
    tokens_per_image: Count | None = None
    """Tokens of the text model that an image becomes. Default: those of one image or tile, where the tower takes images of one size."""
    audio_seconds_per_sequence: Amount | None = None
    """Number of seconds of audio in a sequence. Default: one window of the tower, 30 seconds."""
    projector: Literal["trained", "frozen"] = "trained"
    """Whether the layers between towers and text model are trained."""
    recompute: Literal["none", "full"] | None = None
    """Recomputation of the layers of trained towers. Default: full where the strategy recomputes the text model's layers in full."""


def describe_towers(schema: dict[str, Any]) -> None:
    """Completes the JSON schema of the towers, which are checked against the model."""
    schema.update(TowersInput.model_json_schema())


@dataclass(slots=True)
class _Reading:
    """The towers as far as they are read."""

    given: TowersInput
    model: Model
    training: Training
    pointer: str
    assumed: dict[str, object] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, name: str, message: str, hint: str, *, code: str = "invalid-field") -> None:
        """Notes what is wrong with a field."""
        self.problems.append(Problem(child(self.pointer, name), message, hint, code))


def resolve_towers(
    document: Mapping[str, object], *, model: Model, training: Training, pointer: str
) -> tuple[Towers, dict[str, object]]:
    """The towers that a job runs, and the values that were assumed for them.

    Raises:
        InvalidInputError: the model has no such tower, its tokens do not fit the sequence, or the framework trains none;
        NotModelledError: the tower has no cost model here.
    """
    reading = _Reading(validated(TowersInput, document, pointer=pointer), model, training, pointer)
    given = reading.given
    _refuse_amounts(reading)
    uses = []
    states: dict[Sense, TowerState] = {"vision": given.vision, "audio": given.audio}
    for sense, state in states.items():
        if state == "none":
            continue
        at = pointer.rpartition("/")[0].rpartition("/")[0]
        place = child(at, "model", "hf_config" if model.family else "multimodal")
        tower = read_tower(model, sense, pointer=place)
        if tower is None:
            key = CONFIGS[sense]
            message = f"towers.{sense} is {state!r}, but the model has no {sense} tower"
            hint = f"Give the multimodal model's config.json, with its {key}, as model.hf_config; or set towers.{sense} to 'none'."
            reading.wrong(sense, message, hint)
            continue
        use = (_images if sense == "vision" else _sounds)(reading, tower, trained=state == "trained")
        if use is not None:
            uses.append(use)
    _check_length(reading, uses)
    # Frameworks come last: whoever has to mend sizes first would otherwise plan for another framework in vain.
    if not reading.problems and uses:
        _check_framework(reading)
    if reading.problems:
        raise InvalidInputError(reading.problems)
    names = ("images_per_sequence", "tokens_per_image", "audio_seconds_per_sequence")
    amounts = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    amounts |= {name: value for name, value in reading.assumed.items() if name in names}
    trained = bool(uses) and given.projector == "trained"
    return Towers(tuple(uses), trained, given.recompute, amounts), reading.assumed


def _refuse_amounts(reading: _Reading) -> None:
    """Notes images and sounds that no tower encodes."""
    given = reading.given
    for sense, state, names in (
        ("vision", given.vision, ("images_per_sequence", "tokens_per_image")),
        ("audio", given.audio, ("audio_seconds_per_sequence",)),
    ):
        for name in names:
            value = getattr(given, name)
            if value is not None and state == "none":
                message = f"{name} is {value:g}, but no {sense} tower runs (towers.{sense} is 'none')"
                reading.wrong(name, message, f"Set towers.{sense} to 'frozen' or 'trained', or leave {name} out.")


def _images(reading: _Reading, tower: Tower, *, trained: bool) -> TowerUse | None:
    given = reading.given
    images = given.images_per_sequence
    if images is None:
        images = reading.assumed["images_per_sequence"] = 1.0
    tokens = given.tokens_per_image
    if tower.rows_per_input is None or tower.tokens_per_input is None:
        if tokens is None:
            side = tower.pixels_per_token or 1
            at_1024 = round(1024 / side) ** 2
            message = "tokens_per_image is required: this vision tower takes images of any size"
            hint = (
                f"A token stands for {side} x {side} pixels; an image of 1024 x 1024 pixels has some {at_1024} tokens."
            )
            reading.wrong("tokens_per_image", message, hint, code="missing-field")
            return None
        return TowerUse(tower, trained, images, round(tokens * tower.rows_per_token), images * tokens)
    if tokens is None:
        tokens = reading.assumed["tokens_per_image"] = tower.tokens_per_input
    # Separators between tiles are tokens that no tile becomes, a few for each tile.
    tiles = max(round(tokens / tower.tokens_per_input), 1)
    return TowerUse(tower, trained, images * tiles, tower.rows_per_input, images * tokens)


def _sounds(reading: _Reading, tower: Tower, *, trained: bool) -> TowerUse:
    seconds, window = reading.given.audio_seconds_per_sequence, tower.seconds_per_input or 1.0
    if seconds is None:
        seconds = reading.assumed["audio_seconds_per_sequence"] = window
    # Tokens follow from the sound, the encoder's work from the windows.
    # Whole windows are encoded: shorter sounds are filled up.
    windows = -(-seconds // window)
    tokens = seconds / window * (tower.tokens_per_input or 0)
    return TowerUse(tower, trained, windows, tower.rows_per_input or 1, tokens)


def _check_length(reading: _Reading, uses: list[TowerUse]) -> None:
    """Notes towers whose tokens are more than the sequence holds."""
    # Tokens of towers take places of the sequence, so that both towers of a model share its length.
    total, length = sum(use.tokens for use in uses), reading.training.seq_length
    if total <= length:
        return
    given, sense = reading.given, uses[0].tower.sense
    if sense == "audio":
        fitting = length / total * sum(use.tokens for use in uses) / (uses[0].tokens or 1.0)
        hint = f"Use at most {fitting * (given.audio_seconds_per_sequence or 30.0):.0f} seconds, or a seq_length of {-(-total // 1):.0f}."
        message = f"the towers' {total:.0f} tokens are more than seq_length {length}"
        reading.wrong("audio_seconds_per_sequence", message, hint)
        return
    images = given.images_per_sequence or 1.0
    each = uses[0].tokens / images
    message = f"{images:g} images of {each:g} tokens are {total:g} tokens, more than seq_length {length}"
    if images == 1:
        message = f"an image of {each:g} tokens is longer than seq_length {length}"
    fewer = int(length // each)
    hint = (
        f"Use at most {fewer} image{'s' * (fewer > 1)}"
        if fewer
        else f"Use images of at most {int(length // images)} tokens"
    )
    reading.wrong("tokens_per_image", message, f"{hint}, or a seq_length of at least {-(-total // 1):.0f}.")


def _check_framework(reading: _Reading) -> None:
    """Notes a framework that trains no towers."""
    name = reading.training.framework
    if framework_facts(reading.training).choices.towers:
        return
    able = ", ".join(sorted(frameworks_where(lambda facts: facts.choices.towers)))
    message = f"{name} has no vision or audio towers in front of this model"
    reading.problems.append(Problem(reading.pointer, message, f"Use one of {able}, or leave 'towers' out."))
