"""Whole optimizer steps of a split model: forward and backward of every micro-batch, reductions, clipping, the optimizer."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as schedules_of_torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel

from profiler.trial.mesh import Mesh, own_positions, own_tokens
from profiler.trial.modules import Chunk, flex, loss_of, rotation
from profiler.trial.parallel import replicated, split
from profiler.trial.plan import TrialPlan
from profiler.trial.terms import LOSS, OPTIMIZER
from profiler.trial.weights import initialize

_SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
LEARNING_RATE = 1e-4
"""Small, so that bf16 stays finite for as many steps as one likes; it moves no time."""


@dataclass(slots=True)
class Measured:
    """What one rank measured. Times are seconds of whole steps, memory is bytes of the allocator after the warm-up."""

    step_s: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    device_bytes: int = 0

    @property
    def median_s(self) -> float:
        return median(self.step_s)


class Trainer:
    """A model that is trained on random tokens as the plan says."""

    def __init__(
        self, plan: TrialPlan, device: torch.device, *, seed: int = 0, learning_rate: float = LEARNING_RATE
    ) -> None:
        self.plan, self.device, self.seed, self.learning_rate = plan, device, seed, learning_rate
        self.mesh = Mesh.build(plan, device.type)
        self.stage_rank = self.mesh.stage
        self.chunks = [self._chunk(place) for place in self._places()]
        parameters = [p for chunk in self.chunks for p in chunk.parameters()]
        self.parameters = list(dict.fromkeys(parameters))
        self.optimizer = self._optimizer()
        self._loss_of: Callable[[Tensor, Tensor], Tensor] = torch.compile(loss_of) if plan.compiled_loss else loss_of
        self.stages: list[PipelineStage] = []
        """This rank's stages of a pipeline, in their order."""
        self.schedule = self._schedule() if plan.pp > 1 else None
        self.gradient_norm: Tensor | None = None
        """Of the last step, before gradients were clipped; it stays on the device."""
        self._tokens = torch.Generator(device=device).manual_seed(seed)

    def step(self) -> float:
        """One optimizer step; the loss of the own tokens on ranks of the last stage, else NaN."""
        plan = self.plan
        own = plan.num_micro_batches * plan.micro_batch_size
        # Every rank draws the whole batch and keeps its own part, so that all plans of a job see the same batches.
        shape = (own * plan.dp, plan.seq_length + 1)
        tokens = torch.randint(0, plan.model.vocab_size, shape, device=self.device, generator=self._tokens)
        inputs, labels = own_tokens(plan, tokens[:, :-1]), own_tokens(plan, tokens[:, 1:])
        loss = self._pipelined(inputs, labels) if self.schedule else self._accumulated(inputs, labels)
        with torch.profiler.record_function(OPTIMIZER):
            self._clip()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _places(self) -> list[int]:
        """Numbers of this rank's chunks in model order."""
        plan = self.plan
        if plan.schedule in ("zb-v", "dualpipe-v"):
            return [self.stage_rank, 2 * plan.pp - 1 - self.stage_rank]
        return [self.stage_rank + turn * plan.pp for turn in range(plan.vpp)]

    def _chunk(self, place: int) -> nn.Module:
        plan = self.plan
        first = sum(plan.layers_per_stage[:place])
        with torch.device("meta"):
            chunk = Chunk(
                plan.model, first=first, last=first + plan.layers_per_stage[place], seq_length=plan.seq_length // plan.cp,
                is_first=place == 0, is_last=place == plan.pp * plan.vpp - 1,
                cudnn_first=plan.attention_kernel == "cudnn",
            )  # fmt: skip
        if plan.param_dtype == "bf16":
            for parameter in chunk.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)
        # What splits and compiles layers puts others in their places.
        layers = list(chunk.layers.values())
        made = split(chunk, plan, self.mesh)
        made.to_empty(device=self.device)
        chunk.tie()
        if plan.attention_kernel == "flex":
            attend = flex(plan.seq_length, self.device)
            for layer in layers:
                layer.attention.core.flex = attend
        with torch.no_grad():
            chunk.rotation.copy_(rotation(own_positions(plan, self.device), plan.model))
        initialize(made, seed=self.seed)
        made.train()
        return replicated(made, plan, self.mesh)

    def _optimizer(self) -> Any:
        on_gpu = self.device.type == "cuda"
        # PyTorch 2.11 has no fused SGD of split tensors.
        fused = on_gpu and self.plan.optimizer == "adam"
        options: dict[str, Any] = {"lr": self.learning_rate, "fused": fused, "foreach": None if fused else True}
        made = torch.optim.AdamW if self.plan.optimizer == "adam" else torch.optim.SGD
        if self.plan.zero == 1 and self.plan.replicas > 1:
            from torch.distributed.optim import ZeroRedundancyOptimizer

            group = self.mesh.copies(self.plan).get_group()
            return ZeroRedundancyOptimizer(self.parameters, made, process_group=group, **options)
        # One update takes only tensors that the same ranks share: experts apart from the rest.
        return made([{"params": group} for group in self._by_ranks(self.parameters)], **options)

    def _schedule(self) -> Any:
        plan = self.plan
        self.stages = stages = [
            PipelineStage(chunk, place, plan.pp * plan.vpp, self.device, group=self.mesh.dense["pp"].get_group())
            for chunk, place in zip(self.chunks, self._places(), strict=True)
        ]
        made = getattr(schedules_of_torch, _SCHEDULES[plan.schedule])
        several = issubclass(made, schedules_of_torch.PipelineScheduleMulti)
        return made(stages if several else stages[0], n_microbatches=plan.num_micro_batches, loss_fn=self._loss)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        with torch.profiler.record_function(LOSS):
            return self._loss_of(logits, labels)

    def _pipelined(self, inputs: Tensor, labels: Tensor) -> float:
        assert self.schedule is not None
        losses: list[Tensor] = []
        first = self.stage_rank == 0
        last = (self.plan.pp * self.plan.vpp - 1) in self._places()
        # Logits of every micro-batch would else stay until the step's end; torchtitan says the same (train.py). PyTorch 2.9 cannot be told.
        told = {"return_outputs": False} if "return_outputs" in inspect.signature(self.schedule.step).parameters else {}
        with self._precision(), loss_parallel() if self.plan.tp > 1 else contextlib.nullcontext():
            self.schedule.step(
                *((inputs,) if first else ()), target=labels if last else None, losses=losses if last else None, **told
            )
        return _number(torch.stack([_local(loss) for loss in losses]).mean()) if last else float("nan")

    def _accumulated(self, inputs: Tensor, labels: Tensor) -> float:
        (chunk,) = self.chunks
        count = self.plan.num_micro_batches
        total = torch.zeros((), device=self.device)
        for place in range(count):
            part = slice(place * self.plan.micro_batch_size, (place + 1) * self.plan.micro_batch_size)
            self._synchronizes(chunk, is_last=place == count - 1)
            with loss_parallel() if self.plan.tp > 1 else contextlib.nullcontext():
                with self._precision():
                    loss = self._loss(chunk(inputs[part]), labels[part]) / count
                loss.backward()
            total += _local(loss.detach())
        return _number(total)

    def _synchronizes(self, chunk: Any, *, is_last: bool) -> None:
        """Whether the coming backward reduces gradients."""
        if self.plan.replicas > 1:
            chunk.set_requires_gradient_sync(is_last or self.plan.grad_sync_each)

    def _precision(self) -> Any:
        """bf16 where FSDP does not cast by itself."""
        if self.plan.uses_fsdp or self.plan.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _clip(self) -> None:
        own = [p for p in self.parameters if p.grad is not None]
        for parameter in own:
            parameter.grad = _summed(_gradient(parameter))
        groups = self._by_ranks(own)
        norms = [nn.utils.get_total_norm([_gradient(p) for p in group], foreach=True) for group in groups]
        squared = torch.stack([_local(norm) ** 2 for norm in norms]).sum()
        if self.plan.pp > 1:
            dist.all_reduce(squared, group=self.mesh.dense["pp"].get_group())
        self.gradient_norm = squared.sqrt()
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, 1.0, self.gradient_norm, foreach=True)

    @staticmethod
    def _by_ranks(parameters: list[Tensor]) -> list[list[Tensor]]:
        """Parameters that the same ranks share, each kind for itself: no operation takes others together."""
        groups: dict[object, list[Tensor]] = {}
        for parameter in parameters:
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        return list(groups.values())


def measure(
    trainer: Trainer,
    *,
    warm_up: int,
    steps: int,
    note: Callable[[int, float], None],
    goes_on: Callable[[], bool] = lambda: True,
) -> Measured:
    """Times whole steps, each between two barriers.

    Args:
        trainer: the model.
        warm_up: steps that are not timed; memory peaks count from their end.
        steps: number of timed steps.
        note: told the number and the seconds of each step, so that a trial which is stopped leaves what it had.
        goes_on: asked before each step whether it should be run; every rank must be told the same.
    """
    found = Measured()
    on_gpu = trainer.device.type == "cuda"
    for number in range(warm_up + steps):
        if not goes_on():
            break
        if number == warm_up and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        settle(on_gpu=on_gpu)
        begun_at = time.perf_counter()
        loss = trainer.step()
        settle(on_gpu=on_gpu)
        took_s = time.perf_counter() - begun_at
        # JSON has no NaN, which is the loss of a rank without the head.
        found.losses.append(None if math.isnan(loss) else loss)
        note(number, took_s)
        if number >= warm_up:
            found.step_s.append(took_s)
    if on_gpu:
        found.peak_allocated_bytes = torch.cuda.max_memory_allocated()
        found.peak_reserved_bytes = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        found.device_bytes = total - free
    return found


def settle(*, on_gpu: bool) -> None:
    """Waits until every rank's device has done what it was given."""
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _summed(gradient: Tensor) -> Tensor:
    """The gradient with the parts of its ranks added up.

    PyTorch 2.11 multiplies parts that are still to be summed in copies of them, so that clipping would leave gradients of norms as they are.
    """
    if isinstance(gradient, DTensor) and any(place.is_partial() for place in gradient.placements):
        return gradient.redistribute(
            placements=[Replicate() if place.is_partial() else place for place in gradient.placements]
        )
    return gradient


def _local(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _number(value: Tensor) -> float:
    return float(value.item())
