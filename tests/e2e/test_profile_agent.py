"""The agent from start to end on the processor (gloo, real torch.distributed): measure, continue, stop, upload, plan.

The whole path that runs on GPUs runs here, with small sizes; torch and two cores are all it needs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_once import made_once

from cost_models.calibration import CalibrationDocument
from cost_models.hardware import read_document

pytest.importorskip("torch", reason="the agent measures with PyTorch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = [sys.executable, "-m", "meshwright"]
CPU = ["--device", "cpu", "--framework", "megatron"]
"""On the processor, without the layers of `transformers`, of which there are none for Megatron and which would take the rest of a budget:
`tests/unit/profiler/test_host_layers.py` times them.
"""


def environment(home: Path) -> dict[str, str]:
    """One thread a process, and a data folder of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MESHWRIGHT", "NCCL", "SLURM", "RANK", "WORLD"))}
    return {**kept, "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(home), "NO_COLOR": "1"}


def torchrun(ranks: int, *, port: int | None = None, node: int = 0, nodes: int = 1) -> list[str]:
    place = (
        ["--standalone"]
        if port is None
        else [f"--nnodes={nodes}", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    )
    return [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={ranks}", "-m", "meshwright"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(command: list[str], home: Path, *, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False, timeout=timeout)


@pytest.fixture(scope="module")
def measured() -> Path:
    """A profile of two ranks. It ends when all is measured; the budget is for machines that are busy with something else."""

    def make(folder: Path) -> None:
        command = [*torchrun(2), "profile", "run", *CPU, "--out", str(folder / "cpu.json"), "--budget", "10m"]
        result = run(command, folder, timeout=700)
        assert result.returncode == 0, result.stderr

    return made_once("gloo-profile", make) / "cpu.json"


def test_a_gloo_profile_holds_every_kind_of_sample(measured: Path) -> None:
    """Of every operation, and nothing was left out; the state file is gone."""
    document = read_document(measured)
    assert not [note for note in document.notes if "lack of time" in note]
    assert {s.op for s in document.collectives} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv",
    }  # fmt: skip
    assert {s.layout for s in document.gemm} >= {"forward"}
    assert document.attention
    assert document.memory_bandwidth
    assert document.host.eager_op_s is not None
    assert [s.ranks for s in document.host_adam] == [2]
    assert document.pairs[0].link == "loopback"
    assert (document.fingerprint.gpu, document.fingerprint.gpus_per_node) == ("CPU", 2)
    assert not measured.with_name("cpu.json.partial").exists()


def test_show_prints_tables_and_writes_a_page(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run([*PROGRAM, "profile", "show", str(measured), "--html", str(page)], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Collectives, bus bandwidth in GB/s" in result.stdout
    assert "<svg" in page.read_text()


# As long as the profile of one node, which every run makes; how ranks lie on nodes is told by tests of `profiler/ranks.py`.
@pytest.mark.proof
def test_two_nodes_on_loopback(tmp_path: Path) -> None:
    """Two launchers of one rank each are two nodes: groups across them are measured as such."""
    port, out = free_port(), tmp_path / "two.json"
    command = ["profile", "run", *CPU, "--out", str(out), "--budget", "45s"]
    launched = [
        subprocess.Popen(
            [*torchrun(1, port=port, node=node, nodes=2), *command],
            env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for node in range(2)
    ]  # fmt: skip
    errors = [process.communicate(timeout=100)[1] for process in launched]
    assert [process.returncode for process in launched] == [0, 0], errors
    document = read_document(out)
    assert (document.fingerprint.num_nodes, document.fingerprint.gpus_per_node) == (2, 1)
    assert {(s.ranks, s.ranks_per_node) for s in document.collectives} == {(2, 1)}
    assert document.pairs[0].link == "network"


# --- stopping ---------------------------------------------------------------------------------------------------------


def started(out: Path, home: Path, *, budget: str = "60s") -> subprocess.Popen[str]:
    """An agent in a process group of its own that has finished at least three parts."""
    process = subprocess.Popen(
        [*PROGRAM, "profile", "run", *CPU, "--out", str(out), "--budget", budget],
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    state = out.with_name(out.name + ".partial")
    for _ in range(600):
        if state.exists() and len(state.read_text().splitlines()) >= 4:
            return process
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate()[1])


def test_kill_9_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """The rerun continues: what was finished is not measured again and is in the calibration as it was."""
    out = tmp_path / "killed.json"
    process = started(out, tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    assert not out.exists()
    lines = out.with_name("killed.json.partial").read_text().splitlines()
    first = next(record for record in map(json.loads, lines[1:]) if record["findings"].get("gemm"))
    result = run([*PROGRAM, "profile", "run", *CPU, "--out", str(out), "--budget", "60s"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "continuing" in result.stderr
    times = {s.time_s for s in read_document(out).gemm}
    assert {sample["time_s"] for sample in first["findings"]["gemm"]} <= times


def test_ctrl_c_keeps_a_partial_calibration(tmp_path: Path) -> None:
    out = tmp_path / "stopped.json"
    process = started(out, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert read_document(out).gemm
    assert "run the same command to continue" in errors


def test_a_rank_that_dies_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    """Rank 1 is killed in the middle; rank 0's finished parts are on disk and a rerun continues."""
    out = tmp_path / "lost.json"
    ports = free_port()
    ranks = []
    for rank in range(2):
        places = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports),
        }  # fmt: skip
        process = subprocess.Popen(
            [*PROGRAM, "profile", "run", *CPU, "--out", str(out), "--budget", "60s"],
            env={**environment(tmp_path), **places},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        ranks.append(process)
    state = out.with_name("lost.json.partial")
    for _ in range(1500):
        if state.exists() and len(state.read_text().splitlines()) >= 4:
            break
        time.sleep(0.02)
    ranks[1].kill()
    ranks[1].communicate(timeout=20)
    _, errors = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 5, errors
    assert errors.startswith("error:") or "\nerror:" in errors
    assert len(state.read_text().splitlines()) >= 4


# --- with a service ---------------------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """A service that needs no key, on a free port of loopback."""
    port = free_port()
    process = subprocess.Popen(
        [*PROGRAM, "--quiet", "serve", "--port", str(port)],
        env={**environment(tmp_path / "service"), "MESHWRIGHT_POOL_SIZE": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=2).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=20)


def plan_with(url: str, cluster: dict[str, Any], home: Path) -> dict[str, Any]:
    request = {
        "model": {"preset": "gpt3-1.3b", "num_layers": 2},
        "cluster": cluster,
        "training": {"seq_length": 256, "global_batch_size": 8, "framework": "megatron", "precision": "bf16"},
        "constraints": {"fixed": {"tp": 2, "micro_batch_size": 1}, "allow_at_risk": True},
    }
    path = home / "request.json"
    path.write_text(json.dumps(request))
    result = run([*PROGRAM, "plan", str(path), "--json", "--server", url], home)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_a_plan_of_the_service_uses_what_was_uploaded(measured: Path, service: str, tmp_path: Path) -> None:
    """Uploading twice changes nothing; the plan's collectives are measured, its calibration is the uploaded one."""
    for _ in range(2):
        result = run([*PROGRAM, "profile", "send", str(measured), "--server", service], tmp_path)
        assert result.returncode == 0, result.stderr
    document: CalibrationDocument = read_document(measured)
    shown = run([*PROGRAM, "profile", "show", str(measured), "--cluster"], tmp_path)
    cluster = {**json.loads(shown.stdout), "calibration": document.id}
    provenance = plan_with(service, cluster, tmp_path)["plans"][0]["evaluation"]["provenance"]
    assert provenance["calibration"] == document.name
    assert provenance["terms"]["tp_comm"] == "measured"
    assert provenance["terms"]["elementwise"] == "measured"


def test_a_service_that_is_away_gets_it_later(measured: Path, service: str, tmp_path: Path) -> None:
    """Exit code 4 and the calibration waits on disk; the next `send` delivers it."""
    away = f"http://127.0.0.1:{free_port()}"
    result = run([*PROGRAM, "profile", "send", str(measured), "--server", away], tmp_path)
    assert result.returncode == 4
    waiting = list((tmp_path / "meshwright" / "outbox").glob("*/*.json"))
    assert len(waiting) == 1
    folder = waiting[0].parent
    folder.rename(folder.with_name("http___" + service.removeprefix("http://").replace(":", "_")))
    result = run([*PROGRAM, "profile", "send", "--server", service], tmp_path)
    assert result.returncode == 0, result.stderr
    assert waiting[0].stem in result.stderr
    assert not list((tmp_path / "meshwright" / "outbox").glob("*/*.json"))


def test_a_wrong_token_is_told_and_the_calibration_kept(measured: Path, service: str, tmp_path: Path) -> None:
    command = [*PROGRAM, "profile", "send", str(measured), "--server", service, "--token", "wrong"]
    result = run(command, tmp_path)
    assert result.returncode == 2
    assert "this key is not valid" in result.stderr
    assert len(list((tmp_path / "meshwright" / "outbox").glob("*/*.json"))) == 1
