"""From what a reader understood to an evaluate row: ranks, replicas and batches that the files leave to each other or to the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from typing import Any

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.fields import validated
from cost_models.inputs.model import resolve_model
from cost_models.inputs.pools import lists_pools, resolve_pools
from planner.export.launchers.launch_line import open_counts, read_launch
from planner.export.settings import Setting, Settings
from planner.export.target import RowParts
from planner.request.job import Documents, resolve_pooled_job
from planner.schemas.strategy import StrategyInput

Json = dict[str, Any]
_REQUIRED = {"training": ("framework", "precision", "seq_length", "global_batch_size"), "strategy": ("micro_batch_size",)}  # fmt: skip
_SHAPE = ("num_layers", "hidden_size", "num_attention_heads")
"""Fields in which a model that is named must agree with the files."""


@dataclass(frozen=True)
class Overrides:
    """What the caller gives beside the files; it takes the place of what the files say."""

    model: Mapping[str, Any] | None = None
    cluster: Mapping[str, Any] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    strategy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completed:
    """An evaluate row as far as it is known."""

    row: Json
    missing: tuple[str, ...]
    """JSON pointers of what has to be given, and cannot be known from the files."""
    notes: tuple[str, ...]
    """Sentences about what was concluded."""


def completed(
    parts: RowParts, settings: Settings, given: Overrides, *, extra: Documents | None = None, allow_files: bool = False
) -> Completed:
    """The row of the files and of what is given beside them.

    Raises:
        InvalidInputError: the files contradict each other or what is given, or say a value that no row may have; with file and line.
    """
    maker = _RowMaker(parts, settings, given)
    row = maker.row()
    if maker.missing:
        _check_strategy(row, settings)
    else:
        _check(row, settings, extra=extra or {}, allow_files=allow_files)
    return Completed(row, tuple(dict.fromkeys(maker.missing)), tuple(maker.notes))


class _RowMaker:
    def __init__(self, parts: RowParts, settings: Settings, given: Overrides) -> None:
        self.parts, self.settings, self.given = parts, settings, given
        self.missing: list[str] = []
        self.notes: list[str] = list(parts.notes)
        self.model = deepcopy(dict(parts.model))
        if given.model is not None:
            # A model of its own takes the place of the files'; single fields, such as a vocabulary, are laid over it.
            own = {"preset", "hf_config", "num_layers"} & given.model.keys()
            self.model = {**({} if own else self.model), **given.model}
        self.cluster: Json = dict(given.cluster or {})
        self.training: Json = {**deepcopy(dict(parts.training)), **given.training}
        self.strategy: Json = merged(deepcopy(dict(parts.strategy)), given.strategy)

    def row(self) -> Json:
        self._leave_out_the_undecided()
        self._check_model()
        self._place(self._world_size())
        self._batches()
        for part, names in _REQUIRED.items():
            said = self.training if part == "training" else self.strategy
            for name in names:
                in_tokens = name == "global_batch_size" and said.get("global_batch_tokens") is not None
                if said.get(name) is None and not in_tokens:
                    self.missing.append(f"/{part}/{name}")
        known = {"model": self.model, "cluster": self.cluster, "training": self.training, "strategy": self.strategy}
        return {name: value for name, value in known.items() if value}

    def _leave_out_the_undecided(self) -> None:
        for name in self.settings.undecided():
            group, _, rest = name.rpartition(".")
            part: Json | None = {"training": self.training, "model": self.model}.get(group, self.strategy)
            given: Any = {"training": self.given.training, "model": self.given.model}.get(group, self.given.strategy)
            # dp follows from the ranks, and a model that is given stands for all of it.
            if name in ("model", "dp") or (group == "model" and given is not None) or rest in (given or {}):
                continue
            if group in ("training", "model"):
                pointer = f"/{group}/{rest}"
            else:
                pointer = "/strategy/" + name.replace(".", "/")
                part = self.strategy.get(group) if group else self.strategy
            self.missing.append(pointer)
            if isinstance(part, dict):
                part.pop(rest, None)

    def _check_model(self) -> None:
        # Without a model nothing can be priced, and most launch files leave a part of it to a checkpoint or a tokenizer.
        if not self.model:
            self.missing.append("/model")
            return
        try:
            model = resolve_model(self.model)
        except NotModelledError:
            raise
        except InvalidInputError as error:
            absent = [each for each in error.problems if each.code == "missing-field"]
            if len(absent) < len(error.problems):
                raise _placed(error, self.settings) from error
            self.missing += [each.pointer for each in absent]
            return
        # The model that is given is priced. If it is not the one that the files train, degrees and batches mean nothing for it.
        for name in _SHAPE:
            said = self.parts.model.get(name)
            if self.given.model is not None and type(said) is int and said != getattr(model, name):
                raise contradiction(
                    f"/model/{name}",
                    f"the model given beside the files has {name} {getattr(model, name)}, and the files say {said}",
                    self.settings.behind(f"model.{name}"),
                    "Give the model that the files train, or leave it out.",
                )

    def _world_size(self) -> int | None:
        launched, stated = read_launch(self.settings), self.parts.world_size
        if stated is not None and launched is not None and stated != launched:
            raise contradiction(
                "/strategy/dp",
                f"the launch line starts {launched} ranks, and the configuration is for {stated}",
                self.settings.behind("dp"),
                "Give files of one run.",
            )
        for setting in open_counts(self.settings):
            where = f"{setting.file}, line {setting.line}"
            self.notes.append(
                f"{where} leaves {setting.key} to the environment, so the ranks follow from the rest or from the cluster."
            )
        return stated if stated is not None else launched

    def _place(self, world: int | None) -> None:
        """Decides the replicas, and the nodes of a cluster for which none are given."""
        undecided = self.settings.undecided()
        degrees = {name: self.strategy.get(name) for name in ("tp", "pp", "cp")}
        valid = all(each is None or (type(each) is int and each >= 1) for each in degrees.values())
        ways = prod(each or 1 for each in degrees.values()) if valid else 1
        dp = self.strategy.get("dp")
        dp = dp if type(dp) is int and dp >= 1 else None
        if world is not None and (world % ways or (dp is not None and dp * ways != world)):
            named = " * ".join(name for name, each in degrees.items() if (each or 1) > 1) or "one rank"
            need = f"{named} = {ways}" if dp is None else f"{named} * dp = {ways * dp}"
            raise contradiction(
                "/strategy/dp",
                f"{world} ranks are started, which do not fit {need}",
                self.settings.behind("dp"),
                "The product of the degrees is the number of ranks.",
            )
        if world is not None and world < 1:
            raise contradiction("/strategy/dp", f"{world} ranks are started", self.settings.behind("dp"), "Start one.")
        from_batches = self._from_batches()
        # The launch line has the last word: what is started runs, whatever a configuration was written for.
        dp = world // ways if world is not None else dp or from_batches
        num_gpus = self._num_gpus(None if dp is None else dp * ways)
        if not valid or any(name in undecided and degrees[name] is None for name in degrees):
            return  # the schema, or the list of what is missing, says what is wrong
        if dp is None:
            dp = None if num_gpus is None else num_gpus // ways
        elif world is None and from_batches == dp and num_gpus is not None and dp * ways < num_gpus:
            self.notes.append(f"The batch sizes are those of {dp * ways} ranks, of the cluster's {num_gpus} GPUs.")
        if dp is None:
            return
        if num_gpus is not None and (dp < 1 or dp * ways > num_gpus):
            raise contradiction(
                "/cluster",
                f"the files ask for {max(dp, 1) * ways} ranks, and the cluster has {num_gpus} GPUs",
                self.settings.behind("dp"),
                "Give a cluster with as many GPUs (num_nodes).",
            )
        self.strategy["dp"] = dp

    def _num_gpus(self, ranks: int | None) -> int | None:
        if not self.cluster:
            self.missing.append("/cluster")
            return None
        if lists_pools(self.cluster):
            return resolve_pools(self.cluster).num_gpus
        # A preset has a number of nodes of its own, which is no statement about this run.
        if ranks is not None and "num_nodes" not in self.cluster:
            alone = resolve_cluster({**self.cluster, "num_nodes": 1})
            self.cluster["num_nodes"] = -(-ranks // alone.gpus_per_node)
        return resolve_cluster(self.cluster).num_gpus

    def _from_batches(self) -> int | None:
        batch, micro, steps = self._sizes()
        if batch is None or micro is None or steps is None:
            return None
        if batch % (micro * steps):
            raise self._unequal(batch, f"{micro} * {steps} accumulated micro-batches")
        return batch // (micro * steps)

    def _batches(self) -> None:
        (batch, micro, steps), dp = self._sizes(), self.strategy.get("dp")
        if dp is None or steps is None:
            return
        # Two of the three sizes tell the third; all three must agree, as the frameworks assert themselves.
        if micro is None and batch is not None:
            if batch % (dp * steps):
                raise self._unequal(batch, f"dp {dp} * {steps} accumulated micro-batches")
            self.strategy["micro_batch_size"] = batch // (dp * steps)
        elif batch is None and micro is not None and "global_batch_tokens" not in self.training:
            self.training["global_batch_size"] = micro * dp * steps
        elif batch is not None and micro is not None and batch != micro * dp * steps:
            raise self._unequal(batch, f"micro-batch {micro} * dp {dp} * {steps} accumulated micro-batches")

    def _sizes(self) -> tuple[int | None, int | None, int | None]:
        # A batch that is given beside the files takes the place of one that follows from them.
        steps = self.parts.num_micro_batches
        if {
            "global_batch_size",
            "global_batch_tokens",
        } & self.given.training.keys() or "micro_batch_size" in self.given.strategy:
            steps = None if self.training.get("global_batch_size") and self.strategy.get("micro_batch_size") else steps
        found = (self.training.get("global_batch_size"), self.strategy.get("micro_batch_size"), steps)
        batch, micro, steps = (each if type(each) is int and each > 0 else None for each in found)
        return batch, micro, steps

    def _unequal(self, batch: int, product: str) -> InvalidInputError:
        behind = [
            *self.settings.behind("training.global_batch_size"), *self.settings.behind("micro_batch_size"),
            *self.settings.behind("num_micro_batches"), *self.settings.behind("dp"),
        ]  # fmt: skip
        message = f"the global batch of {batch} sequences is not {product}"
        return contradiction(
            "/training/global_batch_size",
            message,
            behind,
            "Change one of them, or give --cluster the GPUs of this run.",
        )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Both documents, those of `over` in front; objects field by field."""
    found = dict(base)
    for name, value in over.items():
        held = found.get(name)
        found[name] = merged(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return found


def contradiction(pointer: str, message: str, behind: Sequence[Setting], hint: str) -> InvalidInputError:
    """The error that the files contradict each other or what was given, with the lines that do."""
    # Several settings of one line are one place, and four places are enough to find the contradiction.
    places = list(dict.fromkeys(f"{each.file}, line {each.line}" for each in behind))
    where = f"{'; '.join(places[:4])}: " if places else ""
    return InvalidInputError([Problem(pointer, where + message, hint, "contradictory-files")])


def _check(row: Json, settings: Settings, *, extra: Documents, allow_files: bool) -> None:
    _check_strategy(row, settings)
    try:
        resolve_pooled_job(row, extra=extra, allow_files=allow_files)
    except NotModelledError:
        raise
    except InvalidInputError as error:
        raise _placed(error, settings) from error


def _check_strategy(row: Json, settings: Settings) -> None:
    try:
        validated(StrategyInput, row.get("strategy", {}), pointer="/strategy")
    except InvalidInputError as error:
        raise _placed(error, settings) from error


def _placed(error: InvalidInputError, settings: Settings) -> InvalidInputError:
    """The same problems, each with the file and line that it comes from."""
    problems = []
    for each in error.problems:
        name = each.pointer.strip("/").replace("/", ".").removeprefix("strategy.")
        behind = settings.behind(name)
        where = f"{behind[-1].file}, line {behind[-1].line}: " if behind else ""
        problems.append(Problem(each.pointer, where + each.message, each.hint, each.code))
    return InvalidInputError(problems)
