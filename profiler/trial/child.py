"""One rank of a trial: python -m profiler.trial.child ROW.json, with torchrun's variables.

Rank 0 prints one JSON line for each thing it learns.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from profiler.machine.fingerprint import CPU_NAME, preset_of
from profiler.trial.plan import trial_plan
from profiler.trial.processes import die_with_parent
from profiler.trial.steps import LEARNING_RATE, Measured, Trainer, measure
from profiler.trial.traced import traced_terms

_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    """Runs the trial of the row, and prints what this rank or all ranks found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--gpu-fraction", type=float, help="share of the GPU's memory that the allocator may take")
    parser.add_argument("--stop", type=Path, help="once this file is there, no further step is begun")
    parser.add_argument("--trace", action="store_true", help="trace one more step for its terms")
    arguments = parser.parse_args()
    die_with_parent()
    plan = trial_plan(json.loads(arguments.row.read_text()))
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        if arguments.gpu_fraction is not None:
            torch.cuda.set_per_process_memory_fraction(arguments.gpu_fraction)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo", timeout=_TIMEOUT)
    rank = dist.get_rank()
    _say(rank, {"phase": "build", "machine": _machine(device)})
    try:
        trainer = Trainer(plan, device, learning_rate=arguments.learning_rate)
        _say(rank, {"phase": "warm-up" if arguments.warm_up else "step"})
        found = measure(
            trainer, warm_up=arguments.warm_up, steps=arguments.steps,
            note=lambda number, took_s: _say(rank, {"step": number, "seconds": took_s}),
            goes_on=lambda: not _is_asked_to_stop(arguments.stop, device),
        )  # fmt: skip
        # Told before the trace, which may run out of memory or time where the steps did not.
        if found.step_s:
            _say(rank, {"result": _of_all(found, device)})
            if arguments.trace:
                _say(rank, {"terms_s": traced_terms(trainer, step_time_s=found.median_s)})
    except torch.OutOfMemoryError as error:
        # Every rank says so by itself: the others may hang in a collective until they are ended.
        print(json.dumps({"rank": rank, "out_of_memory": str(error).split(". ")[0]}), flush=True)  # noqa: T201 - its output
        os._exit(3)
    dist.barrier()
    dist.destroy_process_group()


def _is_asked_to_stop(stop: Path | None, device: torch.device) -> bool:
    """Whether rank 0 has seen the file. Every rank learns the same, or some would wait for a step that others do not begin."""
    if stop is None:
        return False
    asked = torch.tensor(int(stop.exists()), device=device)
    dist.broadcast(asked, src=0)
    return bool(asked.item())


def _of_all(found: Measured, device: torch.device) -> dict[str, Any]:
    own: dict[str, Any] = {"losses": found.losses}
    if device.type == "cuda":
        own |= {
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "peak_reserved_bytes": found.peak_reserved_bytes,
            "device_bytes": found.device_bytes,
        }
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return {"step_time_s": found.median_s, "ranks": ranks}


def _machine(device: torch.device) -> dict[str, Any]:
    """The fields of a record's machine that torch knows."""
    if device.type != "cuda":
        return {"gpu": CPU_NAME, "torch": torch.__version__}
    name = torch.cuda.get_device_name(device)
    memory = torch.cuda.get_device_properties(device).total_memory
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"gpu": preset_of(name, float(memory)) or name, "torch": torch.__version__, "nccl": nccl}


def _say(rank: int, what: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(what), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main()
