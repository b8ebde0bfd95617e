"""The installed program, away from its checkout: a wheel in an environment of its own, run beside folders named like ours."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest
from made_once import made_once

from meshwright.__main__ import drop_working_folder
from planner.revision import model_revision
from scripts.namespaced_wheel import rewritten

ROOT = Path(__file__).resolve().parent.parent.parent
REQUEST = ROOT / "examples" / "requests" / "qwen3-8b-fsdp.json"
CONFIGURATION = [
    str(ROOT / "examples/launch/llama-3.1-8b-megatron.sh"), "--cluster", "dgx-h100", "--vocab-size", "128256",
]  # fmt: skip
JOB = [
    "--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "1", "--seq-length", "4096", "--global-batch-size", "64",
    "--precision", "bf16", "--framework", "deepspeed",
]  # fmt: skip
NEWEST_SCHEMA = max(path.name for path in (ROOT / "app/service/db/migrations/versions").glob("0*.py"))[:4]
OWN_NAMES = """
import json, sys
import app, profiler
from planner import mine

def main():
    import meshwright
    from meshwright.errors import InvalidInputError

    assert (app.OWNER, mine.OWNER, profiler.OWNER) == ("me", "me", "me")
    request = json.load(open(sys.argv[1]))
    request["training"]["framework"] = "deepspeed"
    response = meshwright.plan({**request, "top_k": 1})
    try:
        meshwright.plan({})
    except InvalidInputError as error:
        assert error.problems
    files = {"launch.sh": open(sys.argv[2]).read()}
    judged = meshwright.judge(files, cluster={"preset": "dgx-h100"}, model={"vocab_size": 128256})
    tuning = meshwright.start_knobs(response, storage="sqlite:///knobs.db")
    tuning.ask()
    import app as again
    from planner import mine as mine_again

    assert (again.OWNER, mine_again.OWNER, profiler.OWNER) == ("me", "me", "me")
    print(len(response["plans"]), judged["gain_fraction"] > 0)

if __name__ == "__main__":
    main()
"""
DECOY = 'raise SystemExit("a decoy was imported")\n'


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel of this checkout, built without a network."""

    def make(folder: Path) -> None:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)

    return next(made_once("wheel", make).glob("meshwright-*.whl"))


@pytest.fixture(scope="module")
def installed_python(wheel: Path) -> Path:
    """Python of a fresh environment that holds the wheel and sees this one's libraries, but not this checkout."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False)
        site = next(folder.glob("lib/python*/site-packages"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        libraries = next(path for path in sys.path if path.endswith("site-packages"))
        (site / "libraries.pth").write_text(f"import sys; sys.path.append({libraries!r})\n")

    return made_once("environment", make) / "bin" / "python"


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A user's folder whose names collide with our packages."""
    for package in ("app", "planner", "cost_models"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(DECOY)
    (tmp_path / "profiler.py").write_text(DECOY)
    return tmp_path


def run(command: list[str], *, folder: Path) -> subprocess.CompletedProcess[str]:
    """The finished command, in an environment that names no folder of this checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_program_runs_beside_decoys(installed_python: Path, decoys: Path) -> None:
    done = run([str(installed_python), "-m", "meshwright", "plan", str(REQUEST), "--top", "1", "--json"], folder=decoys)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["plans"]) == 1
    # The answer of a wheel is the answer of its checkout: the revision covers all sources of the models.
    assert json.loads(done.stdout)["model_revision"] == model_revision()


def test_the_environment_has_no_name_of_ours_but_one(installed_python: Path, tmp_path: Path) -> None:
    for name in ("app", "cost_models", "planner", "profiler"):
        done = run([str(installed_python), "-P", "-c", f"import {name}"], folder=tmp_path)
        assert f"No module named '{name}'" in done.stderr
    where = "import meshwright.app.errors as ours; print(ours.__file__)"
    assert str(ROOT) not in run([str(installed_python), "-P", "-c", where], folder=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["presets", "models"], "llama-3.1-8b"),
        (["presets", "gpus", "H100-SXM-80GB", "--json"], '"H100-SXM-80GB"'),
        (["evaluate", str(ROOT / "examples/requests/evaluate.jsonl")], '"verdict":"fits"'),
        (["import", *CONFIGURATION], '"tp":4'),
        (["judge", *CONFIGURATION], "-    --recompute-activations"),
        (["show", "{response}", "--plan", "1"], "tp"),
        (["report", "{response}", "--html", "page.html"], ""),
        (["export", "{response}", "--plan", "1", "--framework", "deepspeed", "--out", "launch"], "ds_config.json"),
        (["knobs", "start", "{response}", "--storage", "sqlite:///knobs.db"], ""),
        (["db", "upgrade", "--db", "sqlite:///service.db"], NEWEST_SCHEMA),
        (["keys", "create", "me", "--db", "sqlite:///service.db"], ""),
        (["profile", "run", "--help"], "--budget"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_every_command_runs_from_the_wheel_alone(
    installed_python: Path, decoys: Path, planned: Path, arguments: list[str], shown: str
) -> None:
    given = [argument.replace("{response}", str(planned)) for argument in arguments]
    done = run([str(installed_python), "-m", "meshwright", *given], folder=decoys)
    assert "Traceback" not in done.stderr
    assert shown in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def planned(installed_python: Path) -> Path:
    """A plan response that the wheel wrote."""

    def make(folder: Path) -> None:
        done = run([str(installed_python), "-m", "meshwright", "plan", *JOB, "--top", "1", "--json"], folder=folder)
        assert done.returncode == 0, done.stderr
        (folder / "response.json").write_text(done.stdout)

    return made_once("planned", make) / "response.json"


def test_the_doctor_of_the_profiler_looks_at_the_machine(installed_python: Path, decoys: Path) -> None:
    """Whatever it finds wrong: without torch, or without a GPU, it says so and ends as a program of ours does."""
    done = run([str(installed_python), "-m", "meshwright", "profile", "doctor"], folder=decoys)
    assert done.returncode in {0, 2, 5}, done.stderr
    assert "Traceback" not in done.stderr
    assert "decoy" not in done.stdout + done.stderr


def test_a_script_uses_its_own_modules_of_these_names_beside_ours(installed_python: Path, tmp_path: Path) -> None:
    """The folder of a script is first on the path, and nothing of it may be taken for ours, before or after."""
    (tmp_path / "app.py").write_text('OWNER = "me"\n')
    (tmp_path / "profiler.py").write_text('OWNER = "me"\n')
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "mine.py").write_text('OWNER = "me"\n')
    (tmp_path / "script.py").write_text(OWN_NAMES)
    done = run([str(installed_python), "script.py", str(REQUEST), CONFIGURATION[0]], folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 True\n"), done.stderr


def test_the_service_of_the_wheel_plans_in_worker_processes_beside_decoys(installed_python: Path, decoys: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(installed_python), "-m", "meshwright", "serve", "--port", port]
    with (decoys / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=decoys, env={**environment, "MESHWRIGHT_DATA_DIR": str(decoys)}, stdout=log, stderr=log
        )
    try:
        client = [str(installed_python), "-m", "meshwright", "plan", str(REQUEST), "--top", "1", "--json"]
        end_at = time.monotonic() + 60.0
        while (done := run([*client, "--server", f"http://127.0.0.1:{port}"], folder=decoys)).returncode == 4:
            assert process.poll() is None, (decoys / "log").read_text()
            assert time.monotonic() < end_at, (decoys / "log").read_text()
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["plans"]) == 1
        for page in ("/", "/docs", "/static/swagger/swagger-ui.css"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as answer:
                assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


class TestRewriting:
    def test_imports_and_dotted_names_get_the_front(self) -> None:
        source = (
            "from app.errors import A\nimport planner.rows as rows\nfrom cost_models import presets, units\n"
            "def f():\n    from profiler.timing import (\n        a,\n    )\n"
            'TASK = "app.service.jobs.plan_task:run"\nWORD = "profiler"\nPREFIX = "planner.export."\n'
        )
        assert rewritten(source) == (
            "from meshwright.app.errors import A\nimport meshwright.planner.rows as rows\n"
            "from meshwright.cost_models import presets, units\n"
            "def f():\n    from meshwright.profiler.timing import (\n        a,\n    )\n"
            'TASK = "meshwright.app.service.jobs.plan_task:run"\nWORD = "profiler"\nPREFIX = "meshwright.planner.export."\n'
        )

    def test_other_names_and_docstrings_stay(self) -> None:
        source = (
            '"""See app.errors."""\nimport apparatus\nfrom .app import x\nfrom meshwright import y\nz = "app/main.py"\n'
        )
        assert rewritten(source) == source

    def test_two_names_on_a_line_with_other_letters_are_both_found(self) -> None:
        assert rewritten('é = ("app.a", "planner.b")\n') == 'é = ("meshwright.app.a", "meshwright.planner.b")\n'

    @pytest.mark.parametrize(
        "source", ["import app.errors", "import planner", 'CODE = "from planner.plan import plan"']
    )
    def test_what_cannot_be_rewritten_is_refused(self, source: str) -> None:
        with pytest.raises(ValueError, match="<source>:1"):
            rewritten(source)


def test_wheel_holds_what_the_program_needs_and_nothing_under_share_alike(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "meshwright/py.typed" in names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"meshwright"}
    assert any(name.startswith("meshwright/cost_models/presets/gpus/") for name in names)
    assert any(name.startswith("meshwright/cost_models/reference/") for name in names)
    assert any(name.startswith("meshwright/app/service/web/static/swagger/") for name in names)
    assert any(name.startswith("meshwright/app/service/db/migrations/versions/") for name in names)
    assert {"meshwright/app/service/api/examples/answers.json", "meshwright/py.typed"} <= set(names)
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
