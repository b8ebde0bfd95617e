"""What torchtitan's, nanotron's and the PyTorch script's writers say, their readers understand: the same plan, or a refusal by field."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from cost_models.errors import InvalidInputError
from launch_rows import drawn_row, exported, meaning, read_back, settings_of
from planner.export.quantities import FieldNotExpressibleError
from planner.export.target import Target
from planner.export.targets import nanotron, pytorch, torchtitan

TARGETS = [
    pytest.param(torchtitan.TARGET, "torchtitan", "0.2", 25, id="torchtitan-toml"),
    pytest.param(torchtitan.TARGET, "torchtitan", "0.3", 25, id="torchtitan-python"),
    pytest.param(nanotron.TARGET, "nanotron", "2025", 50, id="nanotron"),
    pytest.param(pytorch.TARGET, "fsdp", "2.11", 50, id="pytorch"),
]


def check(target: Target, framework: str, version: str | None, *, rows: int, seed: int) -> Counter[str]:
    """Counts what became of random rows; every one of them that was written is read back and compared."""
    random, outcomes = Random(seed), Counter[str]()
    for _ in range(rows):
        row = drawn_row(random, framework, version)
        try:
            quantities, launch = exported(target, row)
        except FieldNotExpressibleError as refusal:
            outcomes[f"refused {refusal.context['field']}"] += 1
            continue
        except InvalidInputError:
            outcomes["illegal"] += 1
            continue
        settings = settings_of(launch)
        parts = target.read(settings)
        assert [setting.key for setting in settings.unknown()] == []
        assert parts.world_size == quantities.plan.world_size
        assert meaning(read_back(parts, row)) == meaning(quantities), row
        outcomes["same"] += 1
    return outcomes


@pytest.mark.parametrize(("target", "framework", "version", "least"), TARGETS)
def test_a_plan_comes_back_from_its_launch(target: Target, framework: str, version: str, least: int):
    outcomes = check(target, framework, version, rows=300, seed=1)
    assert outcomes["same"] >= least, outcomes


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("target", "framework", "version", "least"), TARGETS)
def test_thousands_of_plans_come_back(target: Target, framework: str, version: str, least: int):
    outcomes = check(target, framework, version, rows=4000, seed=2)
    assert outcomes["same"] >= 20 * least, outcomes
