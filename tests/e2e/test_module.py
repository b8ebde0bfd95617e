"""The installed program, away from its checkout: a wheel in an environment of its own, run beside folders named like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from meshwright.__main__ import drop_working_folder

ROOT = Path(__file__).resolve().parent.parent.parent
REQUEST = ROOT / "examples" / "requests" / "llama-3.1-70b.json"
DECOY = 'raise SystemExit("a decoy was imported")\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("meshwright-*.whl"))


@pytest.fixture(scope="module")
def installed_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that holds the wheel and sees this one's libraries, but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "libraries.pth").write_text(f"import sys; sys.path.append({libraries!r})\n")
    return folder / "bin" / "python"


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A user's folder whose names collide with our packages."""
    for package in ("app", "planner", "cost_models"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(DECOY)
    (tmp_path / "profiler.py").write_text(DECOY)
    return tmp_path


def test_program_runs_beside_decoys(installed_python: Path, decoys: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(installed_python), "-m", "meshwright", "plan", str(REQUEST), "--top", "1", "--json"]
    done = subprocess.run(command, cwd=decoys, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["plans"]) == 1
    where = [str(installed_python), "-P", "-c", "import app, planner; print(app.__file__, planner.__file__)"]
    files = subprocess.run(where, cwd=decoys, env=environment, capture_output=True, text=True, check=True).stdout
    assert str(ROOT) not in files


def test_wheel_holds_what_the_program_needs_and_nothing_under_share_alike(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "meshwright/py.typed" in names
    assert any(name.startswith("cost_models/presets/gpus/") for name in names)
    assert any(name.startswith("cost_models/reference/") for name in names)
    assert any(name.startswith("app/service/web/static/swagger/") for name in names)
    assert any(name.startswith("app/service/db/migrations/versions/") for name in names)
    assert {"LICENSE", "NOTICE", "DATA_LICENSES"} <= {Path(name).name for name in names if "dist-info/licenses" in name}
    assert not [name for name in names if "share_alike" in name or name.startswith(("tests/", "data/", "benchmarks/"))]
    assert not [name for name in names if "ml-engineering" in name]


class TestDropWorkingFolder:
    def test_a_user_folder_is_dropped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert drop_working_folder([str(tmp_path), "library"]) == ["library"]
        assert drop_working_folder(["", "library"]) == ["library"]

    def test_the_checkout_itself_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        assert drop_working_folder([str(ROOT), "library"]) == [str(ROOT), "library"]

    def test_another_first_entry_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert drop_working_folder(["scripts", "library"]) == ["scripts", "library"]


def test_a_working_folder_that_was_removed_is_no_failure(tmp_path: Path) -> None:
    script = 'mkdir "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "$1" -m meshwright --version'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", script, str(tmp_path), sys.executable]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupt_while_modules_are_imported_ends_with_130(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise KeyboardInterrupt")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; from meshwright.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (130, "")
