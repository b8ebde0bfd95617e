"""Plans of the requests under `examples/requests/`, each searched once by all processes of a run of the tests.

The larger ones take many seconds, and pages, reports and answers on strategies are all read off the same few.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from made_once import made_once

from planner.plan import plan

REQUESTS = Path(__file__).resolve().parent.parent / "examples" / "requests"


@cache
def example_plan(name: str) -> dict[str, Any]:
    """The response to `examples/requests/NAME.json`. It is shared: a test that changes it takes a copy."""

    def make(folder: Path) -> None:
        request = json.loads((REQUESTS / f"{name}.json").read_text(encoding="utf-8"))
        (folder / "plan.json").write_text(json.dumps(plan(request)), encoding="utf-8")

    folder = made_once(f"plan-{name}", make)
    response: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return response
