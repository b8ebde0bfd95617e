"""Somebody's own configuration, and what is said about it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from planner.schemas.base import ContractModel
from planner.schemas.documents import ClusterDocument, ModelDocument, TrainingDocument
from planner.schemas.evaluation import Evaluation
from planner.schemas.plan_response import RankedPlan
from planner.schemas.strategy import StrategyInput

_Text = Annotated[str, Field(max_length=1 << 18)]
_Path = Annotated[str, Field(min_length=1, max_length=300)]
EXAMPLE_JUDGE_REQUEST: JsonDict = {
    "files": [
        {
            "path": "ds_config.json",
            "content": '{\n  "train_batch_size": 128,\n  "train_micro_batch_size_per_gpu": 1,\n  "bf16": {"enabled": true},\n'
            '  "zero_optimization": {"stage": 3}\n}\n',
        }
    ],
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "model": {"preset": "llama-3.1-8b"},
    "training": {"seq_length": 4096},
}


class ConfigurationFile(ContractModel):
    """One text file of a configuration, as it is."""

    path: _Path
    """Its name; the ending tells what it holds. Nothing is read from this place."""
    content: _Text
    """The file's text."""


class JudgeRequest(ContractModel):
    """An existing configuration, and what its files do not say."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_JUDGE_REQUEST]})

    files: Annotated[list[ConfigurationFile], Field(min_length=1, max_length=20)]
    """The files: a launch script, a DeepSpeed JSON, a torchtitan TOML and the like."""
    cluster: ClusterDocument
    """Where it runs. Without `num_nodes` it has as many nodes as the files start."""
    model: ModelDocument | None = None
    """The model, or single fields of it, such as `vocab_size`, that are laid over what the files say."""
    training: TrainingDocument = Field(default_factory=dict)
    """Fields that take the place of what the files say."""
    strategy: StrategyInput = StrategyInput.model_construct()
    """Fields that take the place of what the files say."""
    framework: Annotated[str, Field(max_length=40)] | None = None
    """Whose files these are, where it cannot be told."""


class NotUnderstood(ContractModel):
    """A setting that has no place in a row."""

    file: str
    """Path of the file."""
    line: int
    """Number of the line, from 1."""
    text: str
    """The setting as it stands there."""


class ImportedConfiguration(ContractModel):
    """What was read from files."""

    row: dict[str, Any]
    """An evaluate row, as far as it is known."""
    format: str
    """Whose files they are, as `--framework` of `export` names it."""
    unknown: list[NotUnderstood]
    """Settings that were not understood and have no effect on the judgement."""
    missing: list[str]
    """JSON pointers into the row of what has to be given beside the files."""
    notes: list[str]
    """Sentences about what was concluded."""


class ConfigurationChange(ContractModel):
    """One change of the files, or of a field that they do not say."""

    file: str | None
    """Null where no file says the field: it is set in a program."""
    line: int | None
    """Number of the line, from 1; null where the setting is added."""
    old: str | None
    """Null where the setting is added."""
    new: str | None
    """Null where the setting is taken out."""
    field: str
    """The field of the strategy that it changes first; `num_micro_batches` for accumulation steps."""
    time_gain_s: float | None
    """Seconds of a step that it saves alone; null where it follows from other changes, or is not legal alone."""
    memory_gain_bytes: float | None
    """Bytes that it saves on the fullest GPU."""
    together_with: list[int]
    """Numbers of the changes, from 0 in this list, that belong to it: it is counted with the first, or is legal only beside
    them."""
    reason: str | None
    """Why it has no gain of its own."""


class Judgement(ContractModel):
    """A configuration, the best plan for the same job, and the difference."""

    model_config = ConfigDict(populate_by_name=True)

    imported: ImportedConfiguration = Field(alias="import")
    """What was read from the files."""
    current: Evaluation
    """What the configuration costs as it is."""
    best: RankedPlan | None
    """The best plan that the framework of the files can be told; null where none fits."""
    gain_fraction: float | None
    """Share of the step that the best plan saves."""
    gain_range: list[float] | None
    """80 % interval of that share."""
    tie: bool
    """Whether the two are too close to call, by the rule of tie groups."""
    changes: list[ConfigurationChange]
    """What to change, each with what it gains."""
    interaction_s: float | None
    """Seconds of a step that the changes gain together beyond the sum of their own gains."""
    diff: str
    """Unified diff of the files."""
