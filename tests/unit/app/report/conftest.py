"""The response whose sections are read."""

from __future__ import annotations

import pytest

from analysed_report import analysed_report
from app.report.report import Report


@pytest.fixture(scope="session")
def analysed() -> Report:
    """A report with a front, variants, ties and near-copies."""
    return analysed_report()
