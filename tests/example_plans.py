"""Plans of the requests under `examples/requests/`, each searched once by all processes of a run of the tests.

The larger ones take many seconds, and pages, reports and answers on strategies are all read off the same few.
"""

from __future__ import annotations

import fcntl
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

REQUESTS = Path(__file__).resolve().parent.parent / "examples" / "requests"
FOLDER_VARIABLE = "EXAMPLE_PLANS_OF_TESTS"
"""Names the folder that the processes of a run share; `conftest.py` makes and removes it."""


@cache
def example_plan(name: str) -> dict[str, Any]:
    """The response to `examples/requests/NAME.json`. It is shared: a test that changes it takes a copy."""
    # Here and not above: `conftest.py` imports this module in processes that plan nothing.
    from planner.plan import plan

    folder = Path(os.environ[FOLDER_VARIABLE])
    kept = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        # Whoever comes second waits here until the first one has written the file.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            request = json.loads((REQUESTS / f"{name}.json").read_text(encoding="utf-8"))
            kept.write_text(json.dumps(plan(request)), encoding="utf-8")
    response: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return response
