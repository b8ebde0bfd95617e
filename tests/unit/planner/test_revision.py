"""The model revision follows the content of whatever can change a price, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.revision import content_revision, model_revision

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tree(tmp_path):
    for name, text in (("cost_models/a.py", "x = 1\n"), ("cost_models/gpus/h100.json", "{}"), ("planner/b.py", "")):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize("changed", ["cost_models/a.py", "cost_models/gpus/h100.json", "planner/b.py"])
def test_a_changed_formula_figure_or_rule_is_another_revision(tree, changed):
    before = content_revision(tree)
    (tree / changed).write_text("{ }")
    assert content_revision(tree) != before


def test_a_new_a_moved_and_a_lost_file_are_other_revisions(tree):
    seen = [content_revision(tree)]
    (tree / "planner" / "c.py").write_text("")
    seen.append(content_revision(tree))
    (tree / "planner" / "c.py").rename(tree / "planner" / "d.py")
    seen.append(content_revision(tree))
    (tree / "planner" / "d.py").unlink()
    assert len(set(seen)) == 3
    assert content_revision(tree) == seen[0]


def test_where_content_is_cut_between_files_counts(tree):
    (tree / "planner" / "b.py").write_text("ab")
    (tree / "planner" / "c.py").write_text("c")
    before = content_revision(tree)
    (tree / "planner" / "b.py").write_text("a")
    (tree / "planner" / "c.py").write_text("bc")
    assert content_revision(tree) != before


def test_compiled_files_and_documents_do_not_count(tree):
    before = content_revision(tree)
    (tree / "cost_models" / "EQUATIONS.md").write_text("text")
    (tree / "cost_models" / "__pycache__").mkdir()
    (tree / "cost_models" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"0")
    (tree / "app").mkdir()
    (tree / "app" / "main.py").write_text("x = 2")
    assert content_revision(tree) == before


def test_the_installation_s_own_revision_is_that_of_its_sources():
    assert model_revision() == content_revision(ROOT)
    assert len(model_revision()) == 12
