"""Programs that launches hold: shell scripts pass shellcheck, Python files compile and pass ruff."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "launch"
SCRIPTS = sorted(path for path in GOLDEN.rglob("*") if path.suffix in (".sh", ".sbatch"))
PLACE = re.compile(r"__[A-Z]{2,}__")
"""A place that is filled for each plan: such a template is no program before."""
FILLED = sorted(path for path in (ROOT / "planner" / "export").rglob("*.py.txt") if PLACE.search(path.read_text()))
TEMPLATES = sorted(set((ROOT / "planner" / "export").rglob("*.py.txt")) - set(FILLED))
WRITTEN = sorted(GOLDEN.rglob("*.py"))
IN_TEMPLATES = (
    "ANN",  # a script that its user goes on with, not a typed library
    "ARG001", "ARG002", "ARG005",  # signatures are the frameworks', which call them
    "C901",  # one script for all plans has a branch for each thing that a plan may hold
    "D106",  # torchtitan's nested Config classes are what their outer class is configured with
    "I001",  # ruff cannot know that hf_model lies beside train.py
    "N812", "PLR0402",  # usual short names of torch's modules
    "PTH202",  # os.path where a path is a word of the command line
    "SLF001",  # frameworks have no public name for it
    "T201",  # printing the time of each step is what it is for
)  # fmt: skip
"""Rules of the house that training scripts need not follow, each with the reason."""


def tool(name: str) -> str:
    """The program of a package in this environment, or of the system."""
    own = Path(sys.executable).with_name(name)
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def shellcheck(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("shellcheck"), *arguments], input=text, capture_output=True, text=True, check=False)


def test_every_kept_shell_script_passes_shellcheck() -> None:
    done = shellcheck(*map(str, SCRIPTS))
    assert (done.returncode, done.stdout) == (0, "")


def test_scripts_of_every_kind_were_checked() -> None:
    assert {path.name for path in SCRIPTS} == {"launch.sh", "mock.sh", "job.sbatch"}
    assert len(SCRIPTS) > 150


@pytest.mark.parametrize("name", ["launch.sh", "job.sbatch"])
def test_shellcheck_finds_a_variable_without_quotes(name: str) -> None:
    script = next(path for path in SCRIPTS if path.name == name and "MASTER_ADDR" in path.read_text()).read_text()
    for quoted, bare in (('"$MASTER_ADDR"', "$MASTER_ADDR"), ('"$SLURM_JOB_NODELIST"', "$SLURM_JOB_NODELIST")):
        script = script.replace(quoted, bare)
    done = shellcheck("-", text=script)
    assert done.returncode == 1
    assert "SC2086" in done.stdout


def ruff(text: str, *arguments: str) -> str:
    """What ruff says of a text, by the rules of the house but for these."""
    command = [tool("ruff"), "check", "--quiet", "--output-format", "concise", *arguments, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT).stdout


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT / "planner" / "export")))
def test_a_template_compiles_and_passes_ruff(path: Path) -> None:
    text = path.read_text()
    compile(text, str(path), "exec")
    name = path.with_suffix("").name
    assert ruff(text, "--stdin-filename", f"planner/{name}", "--extend-ignore", ",".join(IN_TEMPLATES)) == ""


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_a_written_module_compiles_and_uses_what_it_imports(path: Path) -> None:
    text = path.read_text()
    compile(text, str(path), "exec")
    assert ruff(text, "--isolated", "--select", "E9,F", "--stdin-filename", "written.py") == ""


def test_templates_with_places_to_fill_are_checked_as_they_were_written() -> None:
    assert all(
        any(path.parent.parent.name == written.parent.name.partition("@")[0] for written in WRITTEN) for path in FILLED
    )
    assert not [path for path in WRITTEN if PLACE.search(path.read_text())]


def test_ruff_finds_what_is_not_used() -> None:
    assert TEMPLATES
    assert WRITTEN
    text = f"import turtle\n{TEMPLATES[0].read_text()}"
    assert "F401" in ruff(text, "--stdin-filename", "planner/train.py", "--extend-ignore", ",".join(IN_TEMPLATES))
