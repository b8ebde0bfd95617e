"""Several trials in one set of processes, which load PyTorch once: python -m tests.trial_processes JOBS.json OUT.json

A job is {"row", "world", "steps", "learning_rate", "fault"?}. Each is answered by what every rank of it saw, or by the error of one.
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
from pathlib import Path
from typing import Any

_TIMEOUT = timedelta(seconds=60)


def run_together(
    jobs: Sequence[dict[str, Any]], *, device: str = "cpu", timeout_s: float = 280.0
) -> list[dict[str, Any]]:
    """What the jobs found, in order: {"losses", "norms"} of each step, means over the ranks that know them, or {"error"}."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "jobs.json", Path(folder) / "out.json"
        given.write_text(json.dumps({"device": device, "jobs": list(jobs)}))
        command = [sys.executable, "-W", "ignore", "-m", "tests.trial_processes", str(given), str(out)]
        # A session of their own, which is ended as a whole: processes that wait for each other outlive the one that started them.
        started = subprocess.Popen(command, start_new_session=True, cwd=Path(__file__).parents[1])
        try:
            assert started.wait(timeout_s) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        return [_means(found) for found in json.loads(out.read_text())]


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


def _rank(rank: int, work: dict[str, Any], folder: str, out: str, all_here: Any) -> None:
    import torch

    torch.set_num_threads(1)
    answers = []
    for number, job in enumerate(work["jobs"]):
        # Ranks that a job leaves out would else wait in the next one's meeting, which has a deadline.
        all_here.wait()
        if rank < job["world"]:
            answers.append(_answer(job, rank=rank, device=work["device"], meeting=f"{folder}/{number}"))
        else:
            answers.append({})
    if rank == 0:
        Path(out).write_text(json.dumps(answers))
    # Threads of broken process groups may never end.
    os._exit(0)


def _answer(job: dict[str, Any], *, rank: int, device: str, meeting: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    store = dist.FileStore(meeting, job["world"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=job["world"], timeout=_TIMEOUT)
    try:
        own = _steps(job, torch.device(device, rank) if device == "cuda" else torch.device("cpu"))
        ranks: list[Any] = [None] * job["world"]
        dist.all_gather_object(ranks, own)
    except Exception:  # noqa: BLE001 - the test reads it
        return {"error": traceback.format_exc()}
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

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
        import torch.distributed as dist

        output_tensor.copy_(input_tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def main() -> None:
    """Forks a process for each rank of the largest job, after PyTorch is loaded."""
    import profiler.trial.steps  # noqa: F401 - loaded before the processes part

    given, out = sys.argv[1:]
    work = json.loads(Path(given).read_text())
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        most = max(job["world"] for job in work["jobs"])
        all_here = processes.Barrier(most)
        ranks = [processes.Process(target=_rank, args=(rank, work, folder, out, all_here)) for rank in range(most)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
