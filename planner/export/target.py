"""What a target is: which frameworks and versions it can say plans of, its writer and its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.export.quantities import Quantities
from planner.export.settings import InputFile, Setting, Settings

Runner = Literal["torchrun", "accelerate", "deepspeed", "python"]


@dataclass(frozen=True)
class LaunchFile:
    """A text file to write; `path` is relative to the folder of the launch."""

    path: str
    content: str
    executable: bool = False


@dataclass(frozen=True)
class Variable:
    """An environment variable that a plan needs on its GPUs, with the reason in one sentence."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Launch:
    """What a writer hands to the launchers: files, and the command that every node runs."""

    files: tuple[LaunchFile, ...]
    """Configuration and scripts, such as `ds_config.json` and `train.py`."""
    command: tuple[str, ...]
    """What the runner starts on each rank, with its arguments: ("pretrain_gpt.py", "--bf16", ...)."""
    mock_command: tuple[str, ...]
    """The same on mock data, for a run that prints step time and memory and needs no dataset."""
    variables: tuple[Variable, ...] = ()
    runner: Runner = "torchrun"
    runner_options: tuple[str, ...] = ()
    """Further options of the runner, such as ("--config_file", "accelerate.yaml")."""
    checkout: tuple[str, str] | None = None
    """Variable and name of the source tree that the command needs, ("MEGATRON_LM", "Megatron-LM"); None where what is installed is
    enough."""
    runs_in_checkout: bool = True
    """Whether the command runs in that source tree, and not in the folder of the launch."""
    notes: tuple[str, ...] = ()
    """Whole sentences for the reader of the launch scripts: what to install, where to start them."""
    own_data: tuple[str, ...] = ()
    """Whole sentences on what a run on the user's own data needs beside the plan; the run on mock data does without."""


@dataclass(frozen=True)
class RowParts:
    """What a reader understood, in the contract's names. A field that the files do not say is left out."""

    training: Mapping[str, Any] = field(default_factory=dict)
    strategy: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    world_size: int | None = None
    """Number of ranks, where a launch line or a batch script says it."""
    num_micro_batches: int | None = None
    """Micro-batches of each replica in a step, where the files say it (gradient accumulation)."""
    notes: tuple[str, ...] = ()
    """Sentences about what the files say and a row says otherwise."""


@dataclass(frozen=True)
class Alias:
    """Another key for what a writer says under a key of its own."""

    key: str
    """The writer's."""
    words: Mapping[Any, str] | None = None
    """Texts under the other key by the writer's value; None where they are the same."""

    def text(self, value: Any) -> str | None:
        """The text under the other key; None where it has no word for the value."""
        return str(value) if self.words is None else self.words.get(value)


@dataclass(frozen=True)
class Target:
    """One target."""

    name: str
    """As `--framework` takes it."""
    frameworks: tuple[str, ...]
    """The planner's frameworks whose plans it can say."""
    versions: tuple[str, ...]
    """Releases whose keys are known, oldest first."""
    own_version: bool
    """Whether its release is the `framework_version` of a request; a front end's is not."""
    write: Callable[[Quantities], Launch]
    """Says a plan, or raises `FieldNotExpressibleError`. `Quantities` carries the target's name and version."""
    read: Callable[[Settings], RowParts] | None = None
    """Takes every setting that it understands and leaves the others; None where there is no reader."""
    recognises: Callable[[Sequence[InputFile]], bool] | None = None
    """Whether files given to `import` are of this target."""
    built_on: Mapping[str, str] = field(default_factory=dict)
    """The framework's release that each release of a front end runs on, where it runs on one alone."""
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    """Keys that its reader takes and its writer never writes, where both say the same."""
    python: Callable[[InputFile], list[Setting]] | None = None
    """Reads a Python program of this target; None where nothing of one is read, or where it is read as torchtitan's."""
