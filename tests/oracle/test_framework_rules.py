"""Our rules against the frameworks' own configuration classes: legal plans are accepted, illegal ones refused.

What a class cannot know without GPUs is listed, rule by rule, with the place that refuses it (`SEEN_LATER`); anything
else that differs fails. `scripts/framework_rules.py` prints the table.
"""

from __future__ import annotations

import pytest

from scripts.framework_judges import SEEN_LATER
from scripts.framework_rules import compared

PACKAGES = {"megatron": "megatron.core", "deepspeed": "deepspeed", "torchtitan": "torchtitan", "fsdp": "accelerate"}
PLANS = 1000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),
]  # their deprecations are not ours to answer for


@pytest.mark.parametrize("framework", PACKAGES)
def test_what_we_judge_is_what_the_framework_says(framework: str):
    package = PACKAGES[framework]
    pytest.importorskip(package, reason=f"{package} is not installed: its classes cannot be asked")
    seen = compared(framework, PLANS)
    assert (seen.legal, seen.illegal) == (PLANS, PLANS)
    assert dict(seen.legal_refused) == {}
    assert set(seen.illegal_accepted) <= set(SEEN_LATER[framework])
    assert seen.illegal_refused > PLANS / 2
