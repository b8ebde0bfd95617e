"""Commands that the documents mark as runnable (`sh` blocks) and their Python do what a reader would have them do.

A block marked `shell` is not run: it needs a GPU, a cluster or a service, or takes long. `tests/architecture` holds its commands,
options and files to the program all the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.shown_outputs import pages

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"(?:<!-- exit code (\d+) -->\n)?^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The front page's commands run with every change. Those of all other pages take minutes together and run with the proofs;
# that they name commands, options and files that are there is held with every change, too (tests/architecture).
RUNNABLE = [
    pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.proof)
    for page in pages()
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """In their order, in one folder, where examples/ lies as in a checkout. A block exits with 0, or with what it says."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for expected, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        program = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        result = subprocess.run(
            [*program, text],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert result.returncode == int(expected or 0), f"{text}\n{result.stderr}"


def test_every_recipe_of_the_front_page_is_run() -> None:
    """The five users of the front page each have a block, and none of the blocks is marked as one that is not run."""
    recipes = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Recipes")[2].partition("\n## ")[0]
    assert len(BLOCK.findall(recipes)) == len(re.findall(r"^\*\*.+\*\*", recipes, re.MULTILINE)) == 5
    assert "```shell" not in recipes
