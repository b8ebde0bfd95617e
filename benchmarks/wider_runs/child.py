"""One process of one run: python -m benchmarks.wider_runs.child CASE.json OUT.json

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which process it is; rank 0 writes what all of them measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from benchmarks.wider_runs.cases import MODELS, Case
from benchmarks.wider_runs.inputs import batch, register_varlen
from benchmarks.wider_runs.optimizers import optimizers, state_bytes

WARM_UP, MEASURED, PHASED = 4, 12, 3
"""Steps before the measured ones, measured ones, and ones after them that stop between backward and update."""
_PACKAGES = ("torch", "transformers", "triton", "bitsandbytes", "torchao", "flash-linear-attention")


def main() -> None:
    """Runs the case and writes its result, or leaves an exception on stderr."""
    case = json.loads(Path(sys.argv[1]).read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu") if case.get("dry") else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if case["form"] == "fsdp2":
        dist.init_process_group("gloo" if device.type == "cpu" else "nccl", rank=rank, world_size=world)
    run = Run(case, device)
    found = run.measure()
    everyone: list[Any] = [found]
    if dist.is_initialized():
        everyone = [None] * world
        dist.all_gather_object(everyone, found)
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps({**run.described(), "step_s": everyone[0]["step_s"],
            "step_time_s": median(everyone[0]["step_s"]), "ranks": everyone}))  # fmt: skip
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


class Run:
    """A model, its optimizers and the batch that every step trains it on."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        register_varlen()
        torch.manual_seed(0)
        self.model = self._model()
        every = sum(each.numel() for each in self.model.parameters())
        self.parameters = {"all": every, "trained": sum(p.numel() for p in self.model.parameters() if p.requires_grad)}
        if case["form"] == "fsdp2":
            _shard(self.model, device)
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizers = optimizers(case["optimizer"], self.model)
        self.inputs = batch(case, self.model.config, device)
        self.losses: list[float] = []

    def described(self) -> dict[str, Any]:
        """What ran: sizes, versions, and which of the kernels that replace plain PyTorch were there."""
        packages = {}
        for name in _PACKAGES:
            with contextlib.suppress(PackageNotFoundError):
                packages[name] = version(name)
        kernels = {name: _importable(name) for name in ("causal_conv1d", "mamba_ssm.ops.triton.ssd_combined", "fla")}
        gpu = torch.cuda.get_device_name() if self.device.type == "cuda" else "none"
        config = {**MODELS[self.case["model"]], **self.case.get("hf_config", {})}
        return {
            "parameters": self.parameters, "hf_config": config, "packages": packages, "kernels": kernels, "gpu": gpu,
            "cuda": torch.version.cuda, "nccl": list(torch.cuda.nccl.version()) if self.device.type == "cuda" else None, "losses": self.losses,
        }  # fmt: skip

    def measure(self) -> dict[str, Any]:
        """Seconds of each measured step, and bytes after the warm-up; then forward with backward, and update, alone."""
        for _ in range(WARM_UP):
            self.timed(self.whole)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps = [self.timed(self.whole) for _ in range(MEASURED)]
        found: dict[str, Any] = {"step_s": steps, **self._memory()}
        phases: dict[str, list[float]] = {"forward_backward_s": [], "update_s": []}
        peaks: dict[str, int] = {}
        for _ in range(PHASED):
            for name, part in (("forward_backward_s", self._backward), ("update_s", self._update)):
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                phases[name].append(self.timed(part))
                peaks[name.replace("_s", "_peak_bytes")] = self._memory()["peak_allocated_bytes"]
        return {
            **found,
            **{name: median(each) for name, each in phases.items()},
            **peaks,
            "state_bytes": state_bytes(self.optimizers),
        }

    def _model(self) -> Any:
        case = self.case
        fields = case.get("hf_config", MODELS[case["model"]])
        config = AutoConfig.for_model(**fields)
        config.use_cache = False
        auto = AutoModelForImageTextToText if "vision_config" in fields else AutoModelForCausalLM
        dtype = torch.bfloat16 if case["form"] == "bf16" else torch.float32
        with self.device:
            model = auto.from_config(config, dtype=dtype, attn_implementation=case["attention"])
        if case.get("towers") == "frozen":
            # The projectors, which the tower's module holds, are trained, as usual where a language model meets a tower.
            for name, parameter in model.model.visual.named_parameters():
                parameter.requires_grad_("merger" in name)
        if case["recompute"]:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model.train()

    def whole(self) -> None:
        """One step: forward, backward, clipping and update."""
        self._backward()
        self._update()

    def _backward(self) -> None:
        autocast = self.case["form"] == "autocast"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = self.model(**self.inputs).loss
        loss.backward()
        self.loss = loss.detach()

    def _update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        for each in self.optimizers:
            each.step()
        for parameter in self.trained:
            parameter.grad = None

    def timed(self, part: Callable[[], None]) -> float:
        """Seconds that a part takes on all ranks, which wait for each other before it and after."""
        self._together()
        begun_at = time.perf_counter()
        part()
        self._together()
        took_s = time.perf_counter() - begun_at
        self.losses.append(float(self.loss))
        return took_s

    def _together(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if dist.is_initialized():
            dist.barrier()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _memory(self) -> dict[str, int]:
        if self.device.type == "cpu":
            return {"peak_allocated_bytes": 0}
        found = torch.cuda.memory_stats()
        free, whole = torch.cuda.mem_get_info()
        return {
            "peak_allocated_bytes": found["allocated_bytes.all.peak"], "peak_reserved_bytes": found["reserved_bytes.all.peak"],
            "held_bytes": found["allocated_bytes.all.current"], "device_bytes": whole - free,
        }  # fmt: skip


def _shard(model: Any, device: torch.device) -> None:
    """fully_shard on every layer and on the root, with bf16 compute and fp32 reduction."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = {name for part in model.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    for part in list(model.modules()):
        if type(part).__name__ in layers:
            fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _importable(name: str) -> bool:
    try:
        import_module(name)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


if __name__ == "__main__":
    main()
