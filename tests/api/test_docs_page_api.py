"""The documentation page in a real browser that can reach this machine only."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
def test_swagger_ui_is_drawn_with_every_route_and_without_another_host(live_address: str, tmp_path: Path) -> None:
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path}",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--virtual-time-budget=10000", "--dump-dom",
        f"{live_address}/docs",
    ]  # fmt: skip
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout
    for route in ("/v1/plans/{plan_id}/ranked/{rank}", "/v1/evaluate", "/v1/presets/frameworks", "/readyz"):
        assert f'data-path="{route}"' in page
    assert page.count('class="opblock ') == 19
