"""Takes the pictures of docs/images/ anew, from real answers, in the system's Chromium. It wants the extra dev and takes a minute.

python -m scripts.screenshots [NAME ...]

Look at them before you commit them: no test can tell whether a picture still shows what the text beside it says.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import meshwright
from app.report.build import build_report
from app.report.pages import report_file
from app.report.tuning.page import tuning_file

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
WIDTH = 1280
ABOVE, BELOW = 24, 8
"""Pixels of page around what is shown."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars")


@dataclass(frozen=True, slots=True)
class Picture:
    """A part of a page: from the top of one element to the bottom of another."""

    page: str
    """The request whose report is shown, in examples/requests/; a tuning that was kept, in data/; or a path of the service."""
    last: str
    """Selector of the last element that is shown."""
    first: str = ""
    """Selector of the first element; the top of the page where there is none."""
    include: tuple[str, ...] = ()
    """Further analyses that the request asks for."""
    width: int = WIDTH
    """Pixels that are kept of the page's width."""
    opened: bool = False
    """Whether the last element is a part that is folded at first, and is opened."""


PICTURES = {
    "report": Picture("llama-3.1-70b.json", "#trust"),
    "timeline": Picture("llama-3.1-70b.json", "#timeline-1 svg", first="#timeline-1"),
    "mesh": Picture("llama-3.1-70b.json", "#mesh-1", first="#mesh-1"),
    "compare": Picture("llama-3.1-70b.json", "#compare details", first="#compare", opened=True),
    "pareto": Picture("mixtral-8x7b.json", "#pareto", first="#pareto", include=("pareto",), width=880),
    "form": Picture("/", "main"),
    "what-if": Picture("mixtral-8x7b.json", "#what_if", first="#what_if", include=("what_if",)),
    "tuning": Picture("data/measured_h200/tuning_1.json", "#trials figure", first="#order"),
    "swagger": Picture("/docs", "#operations-tag-evaluate"),
}


def main(names: Sequence[str]) -> None:
    """Takes the pictures of these names, or all."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "Chromium is not installed"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, ExitStack() as stack:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for name in names or PICTURES:
            picture = PICTURES[name]
            # As tall as the form, whose button else lies over its fields.
            page = browser.new_page(viewport={"width": WIDTH, "height": 1700}, color_scheme="light")
            if picture.page.startswith("/"):
                page.goto(f"{stack.enter_context(service(Path(folder)))}{picture.page}")
            else:
                file = Path(folder) / f"{name}.html"
                file.write_text(report_of(picture), encoding="utf-8")
                page.goto(file.as_uri())
            page.locator(picture.last).first.wait_for()  # Swagger UI draws itself when its document has come
            if picture.opened:
                page.locator(picture.last).first.evaluate("part => part.open = true")  # a click would scroll
            top = page.locator(picture.first).first.bounding_box() if picture.first else None
            end = page.locator(picture.last).first.bounding_box()
            assert end, picture
            above = max(0.0, top["y"] - ABOVE) if top else 0.0
            clip = {
                "x": 0.0,
                "y": above,
                "width": float(picture.width),
                "height": end["y"] + end["height"] + BELOW - above,
            }
            page.screenshot(path=FOLDER / f"{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]
            print(f"{name}.png: {(FOLDER / f'{name}.png').stat().st_size / 1000:.0f} kB")
        browser.close()


def report_of(picture: Picture) -> str:
    """The report of a picture's request, or of its tuning, as one file."""
    if picture.page.startswith("data/"):
        return tuning_file(json.loads((ROOT / picture.page).read_text(encoding="utf-8")))
    request = json.loads((ROOT / "examples" / "requests" / picture.page).read_text(encoding="utf-8"))
    if picture.include:
        request["include"] = list(picture.include)
    return report_file(build_report(meshwright.plan(request), allow_files=True))


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Address of a service of its own, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "meshwright", "--log-level", "error", "serve", "--port", str(port)]
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment) as running:  # noqa: S603 - our own program
        try:
            for _ in range(100):
                time.sleep(0.3)
                try:
                    urllib.request.urlopen(f"{address}/healthz", timeout=5).close()  # noqa: S310 - our own address
                    break
                except OSError:
                    continue
            yield address
        finally:
            running.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
