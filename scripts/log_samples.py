"""Short training logs of real runs on this machine's CPU, for the tests of the readers of logs.

    python -m scripts.log_samples FOLDER

Each program trains a toy for a few steps and prints what it always prints: transformers' Trainer (and its trainer_state.json),
DeepSpeed's engine with `wall_clock_breakdown`, and torchtitan's logger, which times steps that do nothing but sleep. The last two
come from what `scripts/launch_packages.py` unpacks. Beside each log lie the seconds that this script's own clock saw, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ORACLES = Path(os.environ.get("MESHWRIGHT_LAUNCH_PACKAGES", ".oracles/launch"))
STEPS, SEQUENCE, BATCH = 12, 64, 4
"""Optimizer steps, tokens of a sequence, and sequences of a step."""


def _tokens(count: int) -> list[dict[str, list[int]]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 128, (count, SEQUENCE), generator=generator).tolist()
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path) -> None:
    """Trains with transformers' Trainer: a log entry every second step with the tokens seen so far, a checkpoint at the end."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seconds.append(-time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            time.sleep(0.05)  # a toy's steps are shorter than the four decimals of the log
            seconds[-1] += time.perf_counter()

    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=128
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=2, report_to="none",
        include_num_input_tokens_seen="all", save_steps=STEPS, use_cpu=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=_tokens(STEPS * BATCH), callbacks=[Clock()]).train()
    (state,) = (folder / "checkpoints").glob("checkpoint-*/trainer_state.json")
    state.replace(folder / "trainer_state.json")
    _save(folder / "trainer.seconds.json", seconds)


def deepspeed(folder: Path) -> None:
    """Trains with DeepSpeed's engine: two micro-batches a step, a line every step, and the parts of each."""
    import deepspeed as ds
    import torch
    from deepspeed.utils import logger

    class Slow(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)  # much longer than what lies between the parts that are timed
            return super().forward(rows)

    model = torch.nn.Sequential(Slow(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    config = {
        "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": BATCH // 2, "steps_per_print": 1, "wall_clock_breakdown": True,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 0},
    }  # fmt: skip
    engine, *_ = ds.initialize(model=model, model_parameters=model.parameters(), config=config)
    # Of its timer it speaks on a level that is not shown by default since 0.18.
    for speaker in (logger, *logger.handlers):
        speaker.setLevel(logging.INFO)
    seconds: list[float] = []
    rows = torch.ones(BATCH // 2, 64)
    for _ in range(STEPS):
        start = time.perf_counter()
        for _ in range(2):
            engine.backward(engine(rows).square().mean())
            engine.step()
        seconds.append(time.perf_counter() - start)
    _save(folder / "deepspeed.seconds.json", seconds)


def torchtitan(folder: Path) -> None:
    """Calls torchtitan's logger as its trainer does."""
    # The logger imports tensorboard's writer, which it makes nothing with unless it is asked to.
    sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=None)  # type: ignore[assignment]
    from torchtitan.components import metrics as titan
    from torchtitan.tools.logging import init_logger

    init_logger()
    # There is no GPU whose memory could be asked for: these are the peaks that the log tells of.
    peaks = titan.DeviceMemStats(10.0, 12.5, 12.34, 15.4, 0, 0)
    monitor = SimpleNamespace(
        device_name="NVIDIA H100 80GB HBM3", reset_peak_stats=lambda: None, get_peak_stats=lambda: peaks
    )
    titan.build_device_memory_monitor = lambda: monitor
    # Two ranks that share each sequence: the logger divides by them.
    degrees = SimpleNamespace(non_data_parallel_size=2, pp_enabled=False)
    metrics = titan.MetricsProcessor(titan.MetricsProcessor.Config(log_freq=2), parallel_dims=degrees)
    metrics.num_flops_per_token = 1000
    seconds: list[float] = []
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        time.sleep(0.05)
        metrics.ntokens_since_last_log += BATCH * SEQUENCE
        metrics.data_loading_times.append(0.0)
        if metrics.should_log(step):
            metrics.log(step, 1.0, 1.0, 1.0)
        seconds.append(time.perf_counter() - start)
    _save(folder / "torchtitan.seconds.json", seconds)


def _save(path: Path, seconds: list[float]) -> None:
    path.write_text(json.dumps({"seconds": seconds}) + "\n", encoding="utf-8")


PROGRAMS = {
    "trainer": (trainer, ("accelerate-1.15.0", ".")), "deepspeed": (deepspeed, ("deepspeed-0.19.8", ".")), "torchtitan": (torchtitan, ("torchtitan-0.3.0", ".")),
}  # fmt: skip
"""Each program with the folders of the unpacked packages that it imports from."""


def main() -> None:
    """Runs every program in a process of its own and keeps what it prints."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        PROGRAMS[sys.argv[2]][0](folder)
        return
    for name, (_, packages) in PROGRAMS.items():
        path = os.pathsep.join([".", *(str(ORACLES / package) for package in packages)])
        environment = {
            **os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        if name == "trainer":
            for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                del environment[variable]
        command = [sys.executable, "-m", "scripts.log_samples", str(folder), name]
        with (folder / f"{name}.log").open("wb") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)  # noqa: S603 - ourselves


if __name__ == "__main__":
    main()
