"""The answers that Swagger UI shows: what the service really gave to the first request of each call, read from `answers.json`.

A request may have answers of several forms, such as one evaluation or a list; each has a name of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).with_name("answers.json")
KEPT_ITEMS, KEPT_RULES = 2, 2
"""How much of a long list is shown: the whole of all presets and rules would hide the rest of the page."""


@cache
def answers() -> Mapping[str, Any]:
    """By call, such as "POST /v1/plans", and status: the named answers, or the text of an answer that is not JSON."""
    found: Mapping[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def shortened(answer: Any) -> Any:
    """A list of presets or frameworks with its first items only, and these with their first rules only; others unchanged."""
    if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
        return answer
    items = [
        {**item, "rules": item["rules"][:KEPT_RULES]} if "rules" in item else item
        for item in answer["items"][:KEPT_ITEMS]
    ]
    return {**answer, "items": items}
