"""What runs the trials of a tuning, and which back end that is; PyTorch's own parallelism as one of them (`exports.py` has the other).

Each takes an evaluate row and gives a trial record as JSON. The loop takes any that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from cost_models.frameworks import FRAMEWORKS

Json = dict[str, Any]
BackendName = Literal["pytorch", "export"]
Device = Literal["cuda", "cpu"]
Hopeless = Callable[[Sequence[float]], bool]
"""Whether a trial may be ended early, by the seconds of its steps so far, those of the warm-up left out."""
WARM_UP, STEPS = 3, 6
"""Steps of a trial: those that do not count, and those that are timed."""
_SAID_MOST = 3
"""Problems of one row that are told."""
_FLEX = "Trials run scaled_dot_product_attention where the framework compiles FlexAttention, so that attention may take another time."
_BYSTANDERS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "transformer_impl": lambda training: training["transformer_impl"] == "local",
    "fp8_recipe": lambda training: training["precision"] not in ("fp8", "nvfp4"),
    # What PyTorch keeps and sums in where nothing else is said.
    "main_param_dtype": lambda training: training["main_param_dtype"] == "none",
    "grad_reduce_dtype": lambda training: training["grad_reduce_dtype"] == "fp32",
    "optimizer_state_dtype": lambda training: training["optimizer_state_dtype"] == training["param_dtype"],
    "cuda_graphs": lambda training: not training["cuda_graphs"],
    # How the allocator grows moves what it caches, and neither a step nor what is allocated.
    "expandable_segments": lambda _training: True,
    "total_tokens": lambda _training: True,
    "tokens_per_parameter": lambda _training: True,
    "checkpoint": lambda _training: True,
    "recipe": lambda training: training["recipe"] is None,
}
"""Fields of a training by name, each with whether it changes nothing in a step."""
_IDLE: Mapping[str, Callable[[Mapping[str, Any], bool], bool]] = {
    "zero_param_shard_size": lambda plan, _: plan["zero_param_shard_size"] == plan["zero_shard_size"],
    "grad_sync": lambda plan, _: plan["grad_sync"] == ("each" if plan["zero"] >= 2 else "last") or _replicas(plan) == 1,
    "overlap": lambda plan, _: _overlaps_as_pytorch(plan),
    "offload": lambda plan, _: not any(plan["offload"].values()),
    "cp_comm": lambda plan, _: plan["cp"] == 1,
    "moe_dispatcher": lambda _plan, has_experts: not has_experts,
    "flex_backend": lambda _plan, has_experts: not has_experts,
}
"""Fields of a strategy by name, each with whether it says what PyTorch does without being asked, or nothing at all."""


class Backend(Protocol):
    """What runs trials."""

    @property
    def name(self) -> BackendName: ...

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        """Why it cannot run this row, in one line; None where it can. Nothing is started."""

    def run(
        self,
        row: Mapping[str, Any],
        *,
        deadline_s: float,
        hopeless: Hopeless | None = None,
        knobs: Mapping[str, Any] | None = None,
    ) -> Json:
        """The trial record of a row, as JSON.

        Args:
            row: an evaluate row whose strategy states every degree.
            deadline_s: seconds after which it is ended.
            hopeless: asked after each step that counts; true ends the trial early, with the steps that it has run.
            knobs: values of run-time knobs, as `planner.knobs.spelled` says them.
        """


def backend_name(framework: str, asked: str | None) -> BackendName:
    """The back end for plans of a framework.

    Raises:
        InvalidInputError: the one asked for would measure another program than the one that is planned for.
    """
    if asked == "export":
        return "export"
    if FRAMEWORKS[framework].parallelism_is_pytorchs:
        return "pytorch"
    # What is measured must be what will run, so that every other framework runs its own launch files.
    if asked is None:
        return "export"
    message = f"--backend pytorch runs PyTorch's own parallelism, but the plans are for {framework}"
    able = ", ".join(name for name, facts in FRAMEWORKS.items() if facts.parallelism_is_pytorchs)
    hint = f"Leave --backend out to run what `meshwright export` writes for {framework}, or plan for {able}."
    raise InvalidInputError([Problem("/backend", message, hint)])


def world_of(row: Mapping[str, Any]) -> int:
    """Number of ranks of a row whose strategy states every degree."""
    strategy = row["strategy"]
    return int(strategy["tp"] * strategy["pp"] * strategy["cp"] * strategy["dp"])


def one_line(error: MeshwrightError) -> str:
    """What an error says and what to do about it, in one line."""
    if isinstance(error, InvalidInputError):
        # Each by its own words, so that plans which share a reason can be told together.
        told = [
            f"{_field(each)}{each.message.rstrip('.')}. {each.hint}".strip() for each in error.problems[:_SAID_MOST]
        ]
        return " ".join(" ".join(told).split())
    return " ".join(f"{error.message.rstrip('.')}. {error.hint}".split())


def _field(problem: Problem) -> str:
    """The field that a problem is about, where its message does not name it; the row around it is nothing that a user wrote."""
    name = problem.pointer.rpartition("/")[2]
    return "" if not name or name in problem.message else f"{name}: "


def until_hopeless(hopeless: Hopeless | None, *, warm_up: int) -> Callable[[int, float], bool]:
    """What a trial asks after each step, with its number from 0 and its seconds: whether it should go on.

    Args:
        hopeless: None where every trial runs to its end.
        warm_up: steps at the beginning that do not count.
    """
    counted: list[float] = []

    def goes_on(number: int, seconds: float) -> bool:
        if number >= warm_up:
            counted.append(seconds)
        return hopeless is None or not hopeless(counted)

    return goes_on


def stand_ins(row: Mapping[str, Any], device: Device) -> list[str]:
    """What trials with PyTorch's own parallelism run in place of something that the row names, in whole sentences.

    FlexAttention is trained on GPUs only, and trials share a sequence between ranks without it.
    """
    runs = device == "cuda" and row["strategy"]["cp"] == 1
    return [_FLEX] if row["training"].get("attention_kernel") == "flex" and not runs else []


def without_bystanders(row: Mapping[str, Any], device: Device) -> Json:
    """The row without fields that change nothing in a step of PyTorch's own parallelism, or that something stands in for.

    A plan and the request of a response say every field, also those that only other frameworks, other precisions or whole runs know.
    """
    training, plan, has_experts = row["training"], row["strategy"], "moe" in row["model"]
    if stand_ins(row, device):
        training = {**training, "attention_kernel": "sdpa"}
    return {
        **row,
        "training": {k: v for k, v in training.items() if k not in _BYSTANDERS or not _BYSTANDERS[k](training)},
        "strategy": {
            k: v for k, v in plan.items() if v is not None and (k not in _IDLE or not _IDLE[k](plan, has_experts))
        },
    }


def _replicas(plan: Mapping[str, Any]) -> int:
    return int(plan["dp"] * plan["cp"])


def _overlaps_as_pytorch(plan: Mapping[str, Any]) -> bool:
    """Whether a plan overlaps what PyTorch overlaps by itself: reductions, and where parameters are sharded their gathers."""
    overlap = plan["overlap"]
    if overlap["tp_comm"] or overlap["moe_all_to_all"]:
        return False
    return _replicas(plan) == 1 or (overlap["grad_reduce"] and (plan["zero"] < 2 or overlap["param_gather"]))


@dataclass(frozen=True, slots=True)
class PyTorchBackend:
    """PyTorch's own parallelism, in processes of this machine."""

    device: Device = "cuda"
    warm_up: int = WARM_UP
    steps: int = STEPS

    @property
    def name(self) -> BackendName:
        return "pytorch"

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        from profiler.trial.plan import trial_plan

        try:
            trial_plan(without_bystanders(row, self.device))
        except InvalidInputError as error:
            return one_line(error)
        return None

    def run(
        self,
        row: Mapping[str, Any],
        *,
        deadline_s: float,
        hopeless: Hopeless | None = None,
        knobs: Mapping[str, Any] | None = None,
    ) -> Json:
        from profiler.trial.launch import run_trial

        assert not knobs, "PyTorch's own parallelism has no knobs that are tuned"
        record = run_trial(
            without_bystanders(row, self.device),
            world=world_of(row),
            deadline_s=deadline_s,
            device=self.device,
            warm_up=self.warm_up,
            steps=self.steps,
            goes_on=until_hopeless(hopeless, warm_up=self.warm_up),
        )
        found = record.to_json()
        # The whole row, because it is what was predicted.
        return found | {"row": dict(row), "notes": [*found.get("notes", ()), *stand_ins(row, self.device)]}
