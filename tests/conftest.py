"""What every test stands on: fixed seeds, skips that count as failures where everything is required, GPU tests only on GPUs.

`MESHWRIGHT_REQUIRE=all` (set by `.ci/run`) says that torch, PostgreSQL and Chromium are there: a skip then hides a hole
and fails. Tests marked `gpu` are deselected, not skipped, on a machine without a CUDA device, those marked `frameworks` where
the training frameworks are not installed (they want an environment of their own, see CONTRIBUTING.md), those marked `proof`
unless `-m` names them or slow tests: `-m slow` runs them too.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from made_once import FOLDER_VARIABLE

REQUIRE_ALL = os.environ.get("MESHWRIGHT_REQUIRE") == "all"
ROOT = Path(__file__).resolve().parent.parent

# Derandomized: the same examples on every run; a shared machine makes per-example deadlines meaningless.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def pytest_configure() -> None:
    # Workers of pytest-xdist inherit the variable, and with it the folder, from the process that starts them.
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="meshwright-made-once-")


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = set()
    if not Path("/dev/nvidia0").exists():
        absent.add("gpu")
    if not Path(os.environ.get("MESHWRIGHT_LAUNCH_PACKAGES", ".oracles/launch")).is_dir():
        absent.add("launch")
    if find_spec("megatron") is None:
        absent.add("frameworks")
    if not {"proof", "slow"} & set(re.findall(r"\w+", config.option.markexpr or "")):
        absent.add("proof")
    without = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


def pytest_collection_finish() -> None:
    # Ten thousand collected tests stay to the end: each full collection of garbage would walk through them for nothing.
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows what accuracy tests noted, also from parallel workers, whose own output is not seen."""
    noted = [note for report in terminalreporter.getreports("passed") for note in report.user_properties]
    for name, line in noted:
        if name == "accuracy drift":
            terminalreporter.write_line(f"{name}: {line}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"MESHWRIGHT_REQUIRE=all allows no skip: {reason}"
