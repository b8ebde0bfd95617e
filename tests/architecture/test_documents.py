"""The documents are held to the program: commands exist, outputs are today's, and links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

import meshwright
from app.cli.main import app
from app.cli.rendering.plan_table import columns_of
from scripts.shown_outputs import Shown, outputs, pages

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [*pages(), ROOT / "CONTRIBUTING.md"]
PROGRAMS = r"(?:\./run|\./test|meshwright)"
INDENTED = re.compile(rf"^    ({PROGRAMS}(?: [^\n]*)?)$", re.MULTILINE)
INLINE = re.compile(rf"`({PROGRAMS} [^`\n]+)`")
FENCED = re.compile(r"^```(?:sh|shell)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def commands_of(text: str) -> set[str]:
    """The program's commands in a document, each part of a pipe on its own."""
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
    started = [line for line in lines if re.match(rf"{PROGRAMS}( |$)", line)]
    found = [part for line in started for part in line.split(" | ")]
    return {line.strip() for line in [*found, *INDENTED.findall(text), *INLINE.findall(text)]}


def shown_commands() -> list[str]:
    return sorted(set().union(*(commands_of(document.read_text(encoding="utf-8")) for document in DOCUMENTS)))


def test_documents_show_commands() -> None:
    shown = " ".join(shown_commands())
    assert all(f"meshwright {name}" in shown for name in ("plan", "evaluate", "serve", "db upgrade", "keys create"))
    front = commands_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {line.split()[1] for line in front if line.startswith("meshwright ")} >= {
        "plan",
        "report",
        "export",
        "judge",
    }


@pytest.mark.parametrize("line", shown_commands())
def test_shown_command_exists(line: str) -> None:
    """The program, its subcommand, every option and every file that the line names."""
    program, *words = [word for word in shlex.split(line, comments=True) if word != "..."]
    if program.startswith("./"):
        script = ROOT / program
        assert script.is_file()
        assert script.stat().st_mode & 0o111
    if program == "./test" or words[:1] in (["ARGUMENTS"], ["COMMAND"]):
        return
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert not getattr(command, "commands", {}) or not words or words[0].startswith("-") or "/" in words[0]
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options
        elif word.startswith("examples/"):
            assert (ROOT / word).exists()


@pytest.mark.parametrize("shown", list(outputs()), ids=lambda shown: f"{shown.page.stem}: {shown.command[:60]}")
def test_shown_output_is_todays(shown: Shown) -> None:
    """`python -m scripts.shown_outputs write` makes it so; read the sentences around it again afterwards."""
    assert shown.is_current(shown.today())


def test_the_front_page_explains_the_output_that_it_shows() -> None:
    """Marks are those that the list below explains, and its numbers are in the output."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = [each for each in outputs() if each.page.name == "README.md"]
    output = "\n".join(shown.lines)
    explained = text.partition(output)[2].partition("\n## ")[0]
    marks = re.findall(r"[①-⑳]", output)
    assert len(marks) > 5
    assert sorted(marks) == sorted(re.findall(r"[①-⑳]", explained))
    numbers = re.findall(r"\d+\.\d+", explained)
    assert len(numbers) > 3
    assert [number for number in numbers if number not in output] == []


@pytest.mark.parametrize(("objective", "price"), [("step_time", None), ("cost", None), ("cost", 2.5)])
def test_every_column_of_the_table_is_explained(objective: str, price: float | None) -> None:
    cluster = {"preset": "dgx-h100", "num_nodes": 1} | ({} if price is None else {"price_per_gpu_hour": price})
    training = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"}
    request = {"model": {"preset": "llama-3.2-1b"}, "cluster": cluster, "training": training, "objective": objective}
    response = meshwright.plan(request)
    page = (ROOT / "docs" / "tasks" / "read.md").read_text(encoding="utf-8")
    explained = {
        name for cell in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }
    headings = {column.heading for column in columns_of(response["request"], response["plans"])}
    assert len(headings) > 15
    assert headings <= explained


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """As a Git host follows them: files exist, and so do the headings that anchors name."""
    text = CODE.sub("", document.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if anchor and not anchor.startswith("object-"):  # that part of a page is filled in when the site is built
            assert anchor in anchors(file), target


def test_the_first_page_of_the_site_links_every_page() -> None:
    """Also where the site is not built: a Git host shows the contents' blocks as they are."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page for page in pages() if page.is_relative_to(index.parent)} - linked == {index}


def anchors(document: Path) -> set[str]:
    """The anchors that a Git host gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
