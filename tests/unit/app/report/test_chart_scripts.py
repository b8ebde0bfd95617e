"""The scripts of the charts: the vendored part of ECharts is the one that its README describes, and neither leaves the page."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from app.report.frame import asset

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "app" / "report" / "assets" / "echarts"
DIGEST = "467ff3cba2d8cb4fbe2bcd09daeb56ba851e3f90f598efe5a43e6251a65cfc22"
"""SHA-256 of what the build of `assets/echarts/` writes."""
MOST_COMPRESSED = 226_000
REACHING_OUT = (
    "XMLHttpRequest", "fetch(", "WebSocket", "EventSource", "sendBeacon", "importScripts", "import(", "Worker(", "new Function",
    'Function("', "eval(", "document.write", 'createElement("script")', "createElement('script')",
)  # fmt: skip


def test_echarts_is_what_the_build_writes() -> None:
    assert sha256(asset("echarts.js").encode()).hexdigest() == DIGEST
    assert len(gzip.compress(asset("echarts.js").encode(), 9)) <= MOST_COMPRESSED


@pytest.mark.parametrize("name", ["echarts.js", "charts.js"])
def test_scripts_ask_for_nothing_and_run_no_text(name: str) -> None:
    text = asset(name)
    assert [word for word in REACHING_OUT if word in text] == []
    # Names of XML's own vocabularies, which nobody fetches.
    assert {host.lower() for host in re.findall(r"https?://([\w.-]+)", text)} <= {"www.w3.org"}
    # Written into a page, none of these may end the script or begin another one.
    assert not re.search(r"</script|<script|<!--", text, re.IGNORECASE)


def test_versions_are_pinned_and_told() -> None:
    package = json.loads((SOURCE / "package.json").read_text("utf-8"))
    lock = json.loads((SOURCE / "package-lock.json").read_text("utf-8"))["packages"]
    pinned = package["dependencies"] | package["devDependencies"]
    for name, version in pinned.items():
        assert lock[f"node_modules/{name}"]["version"] == version
        assert lock[f"node_modules/{name}"]["integrity"].startswith("sha512-")
    version = package["dependencies"]["echarts"]
    assert f"Apache ECharts {version}" in asset("echarts.js")[:200]
    assert f"Apache ECharts {version}" in (SOURCE / "README.md").read_text("utf-8")


def test_licences_lie_beside_it_and_are_told_of() -> None:
    assert "Apache License" in (SOURCE / "LICENSE").read_text("utf-8")
    assert (SOURCE / "NOTICE").read_text("utf-8").startswith("Apache ECharts")
    assert {path.name for path in (SOURCE / "licenses").iterdir()} == {"LICENSE-d3", "LICENSE-tslib", "LICENSE-zrender"}
    assert "app/report/assets/echarts.js" in (ROOT / "NOTICE").read_text("utf-8")
