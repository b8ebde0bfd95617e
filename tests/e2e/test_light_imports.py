"""Planning on a login node loads no server, no storage, no optimiser it does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
REQUESTS = ROOT / "examples" / "requests"
HEAVY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "optuna",
    "ortools",
    "pandas",
    "torch",
    "httpx2",
    "jinja2",
}
CODE = """
import json, sys
from app.cli.main import run
code = run(sys.argv[1:])
sys.stdout.flush()
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [("plan", str(REQUESTS / "llama-3.1-70b.json")), ("evaluate", str(REQUESTS / "evaluate.jsonl")), ("--version",)],
    ids=lambda arguments: arguments[0],
)
def test_command_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    assert HEAVY & set(modules) == set()


def test_planning_loads_no_page() -> None:
    code = (
        "import sys; from app.cli.main import run; run(['--quiet', 'plan', sys.argv[1], '--json']);"
        "print(*(name for name in sys.modules if name.startswith(('app.report', 'app.service', 'markupsafe'))), file=sys.stderr)"
    )
    request = str(REQUESTS / "llama-3.1-70b.json")
    done = subprocess.run([sys.executable, "-c", code, request], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_a_cluster_of_one_kind_loads_no_search_on_pools() -> None:
    code = (
        "import json, sys, meshwright; meshwright.plan(json.load(open(sys.argv[1])));"
        "print(*(name for name in sys.modules if name.startswith('planner.pools')))"
    )
    request = str(REQUESTS / "llama-3.1-70b.json")
    done = subprocess.run([sys.executable, "-c", code, request], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_importing_the_front_loads_nothing_else() -> None:
    code = (
        "import sys, meshwright; print(*sorted(m for m in sys.modules if m in {'numpy', 'planner', 'app', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
