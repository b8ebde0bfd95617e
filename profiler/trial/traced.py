"""One more step of a trial under PyTorch's profiler, and the seconds of its terms."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from profiler.trial.steps import Trainer, settle
from profiler.trial.terms import EMBEDDING, HEAD, SETTLE, STEP, of_step, terms_of_trace, waits_least


def traced_terms(trainer: Trainer, *, step_time_s: float) -> dict[str, float]:
    """Seconds by named term, which sum to a step, of the rank that waits least: in a pipeline the stage that sets the pace.

    Every rank must call it. The traces lie in files only while they are read.

    Args:
        trainer: a model that has run steps.
        step_time_s: seconds of a step that is not traced.
    """
    on_gpu = trainer.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with _annotated(trainer), profile(activities=activities) as profiled:
        settle(on_gpu=on_gpu)
        with record_function(STEP):
            trainer.step()
            with record_function(SETTLE):
                settle(on_gpu=on_gpu)
    # The exported format rather than the profiler's objects: it is documented, stable, and what tests can hold.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_bytes())["traceEvents"]
    plan = trainer.plan
    own = terms_of_trace(events, pipeline=plan.pp > 1, spans_all=plan.spans_all)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return of_step(waits_least(everyone), step_time_s=step_time_s)


@contextlib.contextmanager
def _annotated(trainer: Trainer) -> Iterator[None]:
    """Names the ends of the model in the trace; what is not named there is layers."""
    handles: list[Any] = []
    for chunk in trainer.chunks:
        for name, part in (("embedding", EMBEDDING), ("norm", HEAD), ("head", HEAD)):
            module = getattr(chunk, name, None)
            if isinstance(module, nn.Module):
                handles += _named(module, part)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _named(module: nn.Module, part: str) -> list[Any]:
    # A stack, because a module that is run again by recomputation is entered a second time.
    entered: list[Any] = []

    def enter(*_: Any) -> None:
        entered.append(record_function(part))
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
