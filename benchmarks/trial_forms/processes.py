"""Several trials in one set of processes, which load PyTorch once: python -m benchmarks.trial_forms.processes JOBS.json OUT.jsonl

A job is {"row", "world", "steps", "learning_rate", "fault"?}. Each is answered by what every rank of it saw, or by the error of one. Where a
job takes its processes with it, or no end, it is answered so, and the jobs behind it run in new ones.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


def run_together(
    jobs: Sequence[dict[str, Any]], *, device: str = "cpu", timeout_s: float = 280.0, job_s: float = 150.0
) -> list[dict[str, Any]]:
    """What the jobs found, in order: {"losses", "norms"} of each step, means over the ranks that know them, or {"error"}.

    Args:
        jobs: see the module.
        device: "cpu" or "cuda".
        timeout_s: seconds of all jobs together; those that it does not reach are answered so.
        job_s: seconds of one job, and of loading PyTorch before the first.
    """
    end_at, found = time.monotonic() + timeout_s, list[dict[str, Any]]()
    while len(found) < len(jobs) and (left_s := end_at - time.monotonic()) > 0:
        found += _until_one_breaks(jobs[len(found) :], device, left_s, job_s)
    return [*(_means(each) for each in found), *({"error": "not begun in time"} for _ in jobs[len(found) :])]


def _until_one_breaks(jobs: Sequence[dict[str, Any]], device: str, left_s: float, job_s: float) -> list[dict[str, Any]]:
    """Answers of one set of processes: of all jobs, or to that which broke or outlasted them."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "jobs.json", Path(folder) / "out.jsonl"
        # Half of a job's time: ranks that wait in vain for another one tell it before they are ended.
        given.write_text(json.dumps({"device": device, "wait_s": job_s / 2, "jobs": list(jobs)}))
        out.touch()
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.trial_forms.processes", str(given), str(out)]
        # A session of their own, which is ended as a whole: processes that wait for each other outlive the one that started them.
        started = subprocess.Popen(command, start_new_session=True, cwd=_ROOT)
        ended = ""
        end_at, heard_at, lines = time.monotonic() + left_s, time.monotonic(), 0
        try:
            while not ended and started.poll() is None:
                time.sleep(0.05)
                now, told = time.monotonic(), out.read_text().count("\n")
                heard_at, lines = (now, told) if told > lines else (heard_at, lines)
                if now > min(end_at, heard_at + job_s):
                    ended = f"it had not ended after {now - heard_at:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        # The last line may be half written.
        whole, _, _ = out.read_text().rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines()]
        if len(found) < len(jobs):
            errors = _errors(out, len(found))
            told_last = errors.read_text() if errors.exists() else ""
            found.append({"error": f"{told_last}\n{ended or 'its processes ended'}"})
        return found


def _errors(out: Path, number: int) -> Path:
    """Where the first rank of a job that fails says why; the others fail because of it, and not all may live to tell."""
    return out.with_name(f"{number}.error")


def _means(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        return found
    # Ranks of a pipeline that hold no head know no loss.
    told = [rank["losses"] for rank in found["ranks"] if rank["losses"][0] is not None]
    return {
        "losses": [sum(each) / len(told) for each in zip(*told, strict=True)],
        "norms": [sum(each) / len(found["ranks"]) for each in zip(*(r["norms"] for r in found["ranks"]), strict=True)],
        "peak_bytes": max(rank["peak_bytes"] for rank in found["ranks"]),
        "cpu_s": sum(rank["cpu_s"] for rank in found["ranks"]),
    }


def _rank(rank: int, work: dict[str, Any], folder: str, out: Path, all_here: Any) -> None:
    import torch

    torch.set_num_threads(1)
    for number, job in enumerate(work["jobs"]):
        # Ranks that a job leaves out would else wait in the next one's meeting, which has a deadline.
        all_here.wait()
        if rank >= job["world"]:
            continue
        errors = _errors(out, number)
        answer = _answer(job, work, rank=rank, meeting=f"{folder}/{number}", errors=errors)
        if rank == 0:
            with out.open("a") as told:
                told.write(json.dumps(answer) + "\n")
    # Threads of broken process groups may never end.
    os._exit(0)


def _answer(job: dict[str, Any], work: dict[str, Any], *, rank: int, meeting: str, errors: Path) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    device, wait_for = work["device"], timedelta(seconds=work["wait_s"])
    if device == "cuda":
        torch.cuda.set_device(rank)
        torch.cuda.reset_peak_memory_stats()
    backend = "nccl" if device == "cuda" else "gloo"
    store = dist.FileStore(meeting, job["world"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=job["world"], timeout=wait_for)
    try:
        own = _steps(job, torch.device(device, rank) if device == "cuda" else torch.device("cpu"))
        ranks: list[Any] = [None] * job["world"]
        dist.all_gather_object(ranks, own)
    except Exception:  # noqa: BLE001 - who asked reads it
        with suppress(FileExistsError), errors.open("x") as told:
            told.write(f"rank {rank}: {traceback.format_exc()}")
        return {"error": errors.read_text()}
    else:
        return {"ranks": ranks}
    finally:
        dist.destroy_process_group()


def _steps(job: dict[str, Any], device: Any) -> dict[str, Any]:
    import torch

    from profiler.trial.plan import trial_plan
    from profiler.trial.steps import Trainer

    begun_s = time.process_time()
    trainer = Trainer(trial_plan(job["row"]), device, learning_rate=job["learning_rate"])
    if job.get("fault"):
        _break(trainer, job["fault"])
    found: dict[str, Any] = {"losses": [], "norms": [], "peak_bytes": 0}
    for _ in range(job["steps"]):
        loss = trainer.step()
        assert trainer.gradient_norm is not None
        found["losses"].append(None if math.isnan(loss) else loss)
        found["norms"].append(float(trainer.gradient_norm))
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    found["cpu_s"] = time.process_time() - begun_s
    return found


def _break(trainer: Any, fault: str) -> None:
    """Takes part of a reduction away, by PyTorch's own switches."""
    for module in (module for chunk in trainer.chunks for module in chunk.modules()):
        if fault == "unreduced" and hasattr(module, "set_custom_reduce_scatter"):
            module.set_custom_reduce_scatter(_OwnPart())
        if fault == "mean over shards" and type(module).__name__.endswith("Experts"):
            module.set_gradient_divide_factor(1.0)


class _OwnPart:
    """A reduce-scatter that sums nothing: every rank keeps its part of its own gradients."""

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        import torch

        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, **_: Any) -> None:
        import torch.distributed as dist

        output_tensor.copy_(input_tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def main() -> None:
    """Forks a process for each rank of the largest job, after PyTorch is loaded; one that breaks ends all."""
    import profiler.trial.steps  # noqa: F401 - loaded before the processes part

    given, out = (Path(each) for each in sys.argv[1:])
    work = json.loads(given.read_text())
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        most = max(job["world"] for job in work["jobs"])
        all_here = processes.Barrier(most)
        ranks = [processes.Process(target=_rank, args=(rank, work, folder, out, all_here)) for rank in range(most)]
        for process in ranks:
            process.start()
        while left := [process for process in ranks if process.exitcode is None]:
            connection.wait([process.sentinel for process in left])
            if any(process.exitcode for process in ranks):
                # The others wait for it in vain. Who started this process ends its whole session.
                os._exit(1)


if __name__ == "__main__":
    main()
