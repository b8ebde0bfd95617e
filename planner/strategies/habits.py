"""Defaults that come from a framework's recipes and not from its argument parser, and what the parser would have done.

Where a request says nothing, the job is planned as most people run the framework. Some of these choices have to be spelled
out in a recipe or a launch script, because the parser's default differs. `assumed` names them under `recipe_habits`, so that
nobody takes them for what the bare framework does. Which they are is in the framework's facts (`Habit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.frameworks import precedes
from cost_models.job import Job

HABITS_FIELD: Final = "recipe_habits"
"""Key of `assumed` that holds these sentences, by field."""


def recipe_habits(job: Job, assumed: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each applied default that comes from recipes and not from the parser, by field.

    Args:
        job: the job, whose framework and release tell what the parser does.
        assumed: every default that was applied, by contract field.
    """
    training = job.training
    return {
        field: habit.sentence
        for field, habit in job.framework.habits.items()
        if field in assumed
        and assumed[field] == habit.value
        and (not habit.until or precedes(training.framework_version, habit.until))
    }


def with_habits(job: Job, assumed: Mapping[str, Any]) -> dict[str, Any]:
    """The applied defaults, among which those from recipes are named as such."""
    found = recipe_habits(job, assumed)
    return {**assumed, **({HABITS_FIELD: found} if found else {})}
