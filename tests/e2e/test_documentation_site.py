"""The site of docs/ builds without a warning, loads nothing from another host, and leaves out nothing that it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from app.service.api.tuning_schemas import TuningDocument
from cost_models.terms import MEMORY_TERMS, TIME_TERMS, Tier
from planner.schemas import PlanRequest, PlanResponse, StrategyInput
from profiler.trial.record import TrialDocument
from scripts.field_reference import PARTS

pytest.importorskip("sphinx", reason="the extra docs is not installed")
pytest.importorskip("furo", reason="the extra docs is not installed")
pytest.importorskip("myst_parser", reason="the extra docs is not installed")

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src"}
LOADED_LINKS = {
    "stylesheet",
    "icon",
    "shortcut icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
}


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; warnings, such as links that lead nowhere, end the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "-d", folder / "cache", root / "docs", folder / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads with a page, and the ids that links can point at."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in LOADED and LOADED[tag] in given:
            self.addresses.append(given[LOADED[tag]])
        if tag == "link" and given.get("rel", "") in LOADED_LINKS:
            self.addresses.append(given["href"])


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loaded = []
    for page in site.rglob("*.html"):
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        loaded += parser.addresses
    assert len(loaded) > 100
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert styles
    assert [
        each for style in styles for each in re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", style)
    ] == []


def test_marks_and_pictures_are_filled(site: Path) -> None:
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert not [name for name, text in pages.items() if "filled:" in text or "mermaid" in text]
    flow = pages["ARCHITECTURE.html"]
    assert "From a request to a ranked plan" in flow
    assert re.search(r"exhaustive\.py.*?1\. drops what breaks a rule.*?rules/__init__\.py", flow, re.DOTALL)


def cells(page: str, heading: str) -> set[str]:
    """The first cells of the table's rows below a heading's id."""
    section = page.partition(f'id="{heading}"')[2].partition("</table>")[0]
    return set(re.findall(r"<tr[^>]*><td><p><code[^>]*><span[^>]*>([^<]+)</span></code>", section))


def test_every_field_is_in_the_reference(site: Path) -> None:
    """Compared with the models themselves, which the tables are not read from."""
    for name, model, heading in (
        ("request", PlanRequest, "object-planrequest"),
        ("strategy", StrategyInput, "object-strategyinput"),
        ("answer", PlanResponse, "object-planresponse"),
        ("tuning", TuningDocument, "object-tuningdocument"),
        ("tuning", TrialDocument, "object-trialdocument"),
    ):
        page = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        assert cells(page, heading) == set(model.model_fields)
    page = (site / "reference" / "answer.html").read_text(encoding="utf-8")
    assert {term.name for term in (*TIME_TERMS, *MEMORY_TERMS)} <= set(re.findall(r'class="pre">(\w+)</span>', page))


def test_every_field_has_a_meaning_and_sizes_have_a_unit() -> None:
    rows = [line.split(" | ") for each in PARTS.values() for line in each().splitlines() if line.startswith("| `")]
    assert len(rows) > 300
    assert [row[0] for row in rows if len(row) != 5 or not row[4].strip(" |")] == []
    sized = re.compile(r"_(s|bytes|gib|us|gb_per_s|gbit_per_s|tflops)`$")
    assert [row[0] for row in rows if sized.search(row[0]) and not row[2].strip()] == []


def test_the_glossary_explains_what_tables_say(root: Path) -> None:
    text = (root / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    names = [re.sub("[^a-z ]", "", name.lower()) for name in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert names == sorted(names)
    entries = " ".join(re.findall(r"^## (.+)$", text, re.MULTILINE)).lower()
    for word in ("bubble", "near-copy", "tie", "tier", "mfu", "at risk", "fits", *(tier.label for tier in Tier)):
        assert word in entries
    for degree in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "sp"):
        assert f"`{degree}`" in entries
