"""Defaults that come from a framework's recipes and not from its argument parser, and what the parser would have done.

Where a request says nothing, the job is planned as most people run the framework. Some of these choices have to be spelled
out in a recipe or a launch script, because the parser's default differs. `assumed` names them under `recipe_habits`, so that
nobody takes them for what the bare framework does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cost_models.frameworks.training_defaults import precedes
from cost_models.job import Job
from cost_models.specs.training import Framework

HABITS_FIELD: Final = "recipe_habits"
"""Key of `assumed` that holds these sentences, by field."""


@dataclass(frozen=True, slots=True)
class Habit:
    """One default from a framework's recipes, and what its own parser has instead."""

    value: Any
    """The default to which the sentence applies."""
    sentence: str
    until: str = ""
    """The first release whose parser has the same default; empty where none has."""


HABITS: Mapping[Framework, Mapping[str, Habit]] = {
    # megatron/training/arguments.py and megatron/core/model_parallel_config.py, 0.8 to 0.19.
    "megatron": {
        "zero": Habit(
            1, "Megatron's recipes say --use-distributed-optimizer; its parser leaves it off, which is zero 0."
        ),
        "sequence_parallel": Habit(
            True, "Megatron's recipes say --sequence-parallel with tensor parallelism; its parser leaves it off."
        ),
        "overlap.grad_reduce": Habit(
            True, "Megatron's recipes say --overlap-grad-reduce; its parser leaves the overlap off."
        ),
        "overlap.param_gather": Habit(
            True, "Megatron's recipes say --overlap-param-gather; its parser leaves the overlap off."
        ),
        "moe_dispatcher": Habit(
            "alltoall", "Megatron's recipes say --moe-token-dispatcher-type alltoall; its parser says allgather."
        ),
        "dropout": Habit(
            0.0,
            "Recipes of decoder-only models say --attention-dropout 0 and --hidden-dropout 0; Megatron's parser says 0.1.",
        ),
        "cross_entropy": Habit(
            "te",
            "NVIDIA's performance recipes fuse the loss with Transformer Engine; Megatron's parser leaves it unfused.",
        ),
    },
    # deepspeed/runtime/zero/config.py: stage 0.
    "deepspeed": {
        "zero": Habit(3, "Most configurations shard parameters too (stage 3); DeepSpeed's own default stage is 0."),
    },
    # torchtitan/config/job_config.py (selective_ac_option "2" to 0.2); trainer.py of 0.3 (loss).
    "torchtitan": {
        "recompute": Habit(
            "selective",
            "torchtitan's recipes say selective_ac_option 'op', recomputation by operator; its parser recomputes every second "
            "layer whole.",
            until="0.3",
        ),
        "cross_entropy": Habit(
            "chunked", "Every recipe of torchtitan cuts the loss into 8 chunks; its Trainer.Config names no loss."
        ),
    },
    # nanotron/config/config.py: optimizer.zero_stage has no default.
    "nanotron": {
        "zero": Habit(1, "nanotron's examples say zero_stage 1; its configuration has no default."),
    },
}


def recipe_habits(job: Job, assumed: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each applied default that comes from recipes and not from the parser, by field.

    Args:
        job: the job, whose framework and release tell what the parser does.
        assumed: every default that was applied, by contract field.
    """
    training = job.training
    return {
        field: habit.sentence
        for field, habit in HABITS.get(training.framework, {}).items()
        if field in assumed
        and assumed[field] == habit.value
        and (not habit.until or precedes(training.framework_version, habit.until))
    }


def with_habits(job: Job, assumed: Mapping[str, Any]) -> dict[str, Any]:
    """The applied defaults, among which those from recipes are named as such."""
    found = recipe_habits(job, assumed)
    return {**assumed, **({HABITS_FIELD: found} if found else {})}
