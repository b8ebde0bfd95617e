"""How often the search with corrections disagrees with brute force over thousands of drawn problems: python -m benchmarks.corrected_search

The proofs of tests/property/test_corrected_search_properties.py, run to their end: that the search finds the plans of brute force in their
order, and that no plan is below its bounds. Takes some eighteen minutes of one core.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.record import ROOT, record

PROOFS, DRAWS = "tests/property/test_corrected_search_properties.py", 3000


def main() -> None:
    """Runs the proofs and records how many of them fail; a proof ends at its first disagreement."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "proof", PROOFS, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314
    failed = [case.attrib["name"] for case in cases if list(case)]
    seconds = {case.attrib["name"]: round(float(case.attrib["time"]), 1) for case in cases}
    record(
        "corrected_search", value=len(failed), unit="proofs with a disagreement", goal="0",
        draws_of_each=DRAWS, seconds=seconds, failed=failed,
    )  # fmt: skip


if __name__ == "__main__":
    main()
