"""Several trials, each in processes of its own that begin with PyTorch loaded: python -m benchmarks.trial_forms.processes JOBS.json OUT.jsonl

A job is {"row", "world", "steps", "learning_rate", "fault"?}. Each is answered by what every rank of it saw, or by the error of one. No two
jobs share processes: DTensor remembers the groups of a mesh that has ended, and takes them for those of the next one that looks alike.
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
    """What the jobs found, in order: {"losses", "norms"} of each step, means over the ranks that know them, "outputs_kept": micro-batches
    whose logits a pipeline still holds, or {"error"}.

    Args:
        jobs: see the module.
        device: "cpu" or "cuda".
        timeout_s: seconds of all jobs together; those that it does not reach are answered so.
        job_s: seconds of one job.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "jobs.json", Path(folder) / "out.jsonl"
        given.write_text(json.dumps({"device": device, "job_s": job_s, "jobs": list(jobs)}))
        out.touch()
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.trial_forms.processes", str(given), str(out)]
        # A session of their own, which is ended as a whole: processes that wait for each other outlive the one that started them.
        started = subprocess.Popen(command, start_new_session=True, cwd=_ROOT)
        with suppress(subprocess.TimeoutExpired):
            started.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        # The last line may be half written.
        whole, _, _ = out.read_text().rpartition("\n")
        found = [_means(json.loads(line)) for line in whole.splitlines()]
    return [*found, *({"error": "it had not ended when the time for all was over"} for _ in jobs[len(found) :])]


def _means(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        return found
    # Ranks of a pipeline that hold no head know no loss.
    told = [rank["losses"] for rank in found["ranks"] if rank["losses"][0] is not None]
    return {
        "losses": [sum(each) / len(told) for each in zip(*told, strict=True)],
        "norms": [sum(each) / len(found["ranks"]) for each in zip(*(r["norms"] for r in found["ranks"]), strict=True)],
        "peak_bytes": max(rank["peak_bytes"] for rank in found["ranks"]),
        "outputs_kept": sum(rank["outputs_kept"] for rank in found["ranks"]),
        "cpu_s": sum(rank["cpu_s"] for rank in found["ranks"]),
    }


def _answered(job: dict[str, Any], work: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The answer of a job, whose processes are ended as soon as one of them fails: the others would wait for it in vain."""
    answer, error = folder / "answer.json", folder / "error.txt"
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, job, work, folder)) for rank in range(job["world"])]
    for process in ranks:
        process.start()
    end_at = time.monotonic() + work["job_s"]
    while left := [process for process in ranks if process.exitcode is None]:
        connection.wait([process.sentinel for process in left], timeout=max(0.0, end_at - time.monotonic()))
        if any(process.exitcode for process in ranks) or time.monotonic() > end_at:
            break
    for process in left:
        process.kill()
    for process in ranks:
        process.join()
    if answer.exists() and not left:
        found: dict[str, Any] = json.loads(answer.read_text())
        return found
    codes = [process.exitcode for process in ranks]
    return {"error": error.read_text() if error.exists() else f"its processes ended with the codes {codes}"}


def _rank(rank: int, job: dict[str, Any], work: dict[str, Any], folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    on_gpu = work["device"] == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=dist.FileStore(str(folder / "meeting"), job["world"]), rank=rank,
            world_size=job["world"], timeout=timedelta(seconds=work["job_s"]),
        )  # fmt: skip
        own = _steps(job, torch.device("cuda", rank) if on_gpu else torch.device("cpu"))
        ranks: list[Any] = [None] * job["world"]
        dist.all_gather_object(ranks, own)
        if rank == 0:
            (folder / "answer.json").write_text(json.dumps({"ranks": ranks}))
        dist.barrier()
    except Exception:  # noqa: BLE001 - who asked reads it
        # The first to fail says why; the others fail because of it.
        with suppress(FileExistsError), (folder / "error.txt").open("x") as told:
            told.write(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    # Threads of process groups may never end.
    os._exit(0)


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
    found["outputs_kept"] = sum(len(stage.output_chunks) for stage in trainer.stages if stage.is_last)
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
    """Answers one job after the other."""
    import profiler.trial.steps  # noqa: F401 - loaded once, before processes part

    given, out = (Path(each) for each in sys.argv[1:])
    work = json.loads(given.read_text())
    for job in work["jobs"]:
        with tempfile.TemporaryDirectory(dir=out.parent) as folder, out.open("a") as told:
            told.write(json.dumps(_answered(job, work, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
