"""Measured steps of what the first releases left out, on one or two GPUs: python -m benchmarks.wider_runs_on_gpu OUT.json

    NCCL_NVLS_ENABLE=0 PYTHONPATH=.:$PYTHONPATH python -m benchmarks.wider_runs_on_gpu "$OUT/wider_runs.json" --budget 530

Muon, 8-bit and 4-bit Adam, hybrid models, a vision-language model with its tower frozen and trained, packed documents (`wider_runs/cases.py`).
Every run has processes and a time limit of its own; runs of one GPU share the machine, one on each. The file is rewritten after each run.
`--dry` runs tiny models on the processor; `--only TEXT` runs cases whose name or model holds the text. With `--build FOLDER` the sources of
causal-conv1d there are compiled while the first runs go on, and copied to `--site`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.record import commit, machine_description
from benchmarks.wider_runs.cases import CASES, Case, tiny

_ROOT = Path(__file__).parents[1]
_STARTS_S = 25.0
"""Seconds that a run needs at the least; with fewer left none is started."""


@dataclass(slots=True)
class Started:
    """A run that goes on: its processes, the GPUs that it holds, and the files that it writes."""

    case: Case
    gpus: tuple[int, ...]
    processes: list[subprocess.Popen[bytes]]
    folder: Path
    begun_at: float


def main() -> None:
    """Runs the cases in their order within the budget, and says what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=530.0, help="seconds of everything together")
    parser.add_argument("--only", action="append", default=[], help="cases whose name or model holds this text")
    parser.add_argument("--dry", action="store_true", help="tiny models on the processor")
    parser.add_argument("--build", type=Path, help="the sources of causal-conv1d")
    parser.add_argument("--site", type=Path, help="the folder of packages that what is built is copied to")
    parser.add_argument("--but-for", type=Path, help="a record of an earlier call, whose finished cases are left out")
    parser.add_argument("--commit", default=commit(), help="what the record says of a copy outside a checkout")
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.budget
    builder = _build(arguments.build) if arguments.build else None
    gpus = 2 if arguments.dry else _gpus()
    done = _finished(arguments.but_for) if arguments.but_for else set()
    cases = [each for each in CASES if _wanted(each, arguments.only) and each["name"] not in done]
    results: list[dict[str, Any]] = []
    waiting = [tiny(each) if arguments.dry else dict(each) for each in cases]
    running: list[Started] = []
    free = set(range(gpus))
    while waiting or running:
        if builder is not None and builder.poll() is not None:
            _install(arguments.build, arguments.site)
            builder = None
        while time.monotonic() < end_at - _STARTS_S and (
            chosen := _next(waiting, len(free), gpus, compiled=builder is None)
        ):
            waiting.remove(chosen)
            held = tuple(sorted(free)[: chosen["gpus"] or gpus])
            free -= set(held)
            running.append(_start(chosen, held))
        if waiting and time.monotonic() >= end_at - _STARTS_S:
            results += [{"case": each, "status": "not started"} for each in waiting]
            waiting = []
        time.sleep(0.2)
        for one in [each for each in running if _ended(each, end_at)]:
            running.remove(one)
            free |= set(one.gpus)
            results.append(_result(one))
            _write(arguments.out, gpus, arguments.commit, results)
    _write(arguments.out, gpus, arguments.commit, results)
    if builder is not None:
        _end([builder])


def _wanted(case: Case, only: list[str]) -> bool:
    return not only or any(text in f"{case['name']} {case['model']}" for text in only)


def _finished(record: Path) -> set[str]:
    return {run["case"]["name"] for run in json.loads(record.read_text())["runs"] if run["status"] == "ok"}


def _next(waiting: list[Case], free: int, gpus: int, *, compiled: bool) -> Case | None:
    """The first case that does not wait for a kernel, where enough GPUs are free for it."""
    first = next((each for each in waiting if compiled or not each["compiled"]), None)
    return first if first is not None and (first["gpus"] or gpus) <= free else None


def _gpus() -> int:
    shown = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("GPU ") for line in shown.splitlines())


def _start(case: Case, gpus: tuple[int, ...]) -> Started:
    folder = Path(tempfile.mkdtemp(prefix="wider_run_"))
    (folder / "case.json").write_text(json.dumps(case))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    processes = []
    for rank in range(len(gpus)):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(gpus)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            "HF_HUB_OFFLINE": "1",
            # Kernels that one run compiled and tuned serve the next.
            "TRITON_CACHE_DIR": "/tmp/wider_runs_triton",  # noqa: S108
            "TRITON_CACHE_AUTOTUNING": "1",
            "TORCHINDUCTOR_CACHE_DIR": "/tmp/wider_runs_inductor",  # noqa: S108
        }
        command = [
            sys.executable,
            "-m",
            "benchmarks.wider_runs.child",
            str(folder / "case.json"),
            str(folder / "out.json"),
        ]
        with (folder / f"log{rank}").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    command, env=env, cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
    return Started(case, gpus, processes, folder, time.monotonic())


def _ended(one: Started, end_at: float) -> bool:
    """Whether the run is over; one past its time, or of which a process failed, is ended."""
    codes = [each.poll() for each in one.processes]
    late = time.monotonic() > min(one.begun_at + one.case["limit_s"], end_at)
    if late or any(code not in (None, 0) for code in codes):
        _end(one.processes)
        return True
    return None not in codes


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for each in processes:
        with suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()


def _result(one: Started) -> dict[str, Any]:
    took_s = round(time.monotonic() - one.begun_at, 1)
    found: dict[str, Any] = {"case": one.case, "took_s": took_s, "world": len(one.gpus)}
    out = one.folder / "out.json"
    if out.exists():
        found |= {"status": "ok", "result": json.loads(out.read_text())}
        result = found["result"]
        peak = max(rank["peak_allocated_bytes"] for rank in result["ranks"]) / 2**30
        said = f"{1e3 * result['step_time_s']:.1f} ms, {peak:.2f} GiB"
    else:
        # Tracebacks name files under the machine's own folders, which mean nothing elsewhere.
        log = re.sub(r"/\S*/site-packages/", "", (one.folder / "log0").read_text(errors="replace"))
        codes = [each.returncode for each in one.processes]
        found |= {"status": "failed", "codes": codes, "log": log[-3000:]}
        said = f"failed {codes}: {log[-700:]}"
    print(f"[{one.case['name']}] {one.case['model']}: {said} (took {took_s} s)", flush=True)
    shutil.rmtree(one.folder)
    return found


def _build(folder: Path) -> subprocess.Popen[bytes]:
    """Compiles the extension beside its sources, with few processors, so that the runs beside it keep theirs."""
    env = {**os.environ, "CAUSAL_CONV1D_FORCE_BUILD": "TRUE", "MAX_JOBS": "4"}
    with (folder / "build.log").open("wb") as log:
        return subprocess.Popen(
            ["nice", "-n", "5", sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _install(folder: Path, site: Path) -> None:
    built = sorted(folder.glob("causal_conv1d_cuda*.so"))
    for path in built:
        shutil.copy(path, site)
    tail = "" if built else (folder / "build.log").read_text(errors="replace")[-1500:]
    print(f"causal-conv1d: {[path.name for path in built] or 'not built'} {tail}", flush=True)


def _write(out: Path, gpus: int, revision: str, results: list[dict[str, Any]]) -> None:
    entry = {
        "commit": revision,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {**machine_description(), "gpus": gpus, "driver": _driver()},
        "runs": results,
    }
    out.write_text(json.dumps(entry, indent=1) + "\n")


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none"
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split("\n")[0]


if __name__ == "__main__":
    main()
