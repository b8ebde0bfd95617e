"""Exported launch files as trials: what the launch prints becomes the record, and what it does wrong its reason.

The launches are scripts of a test that print what the exported ones print; one real launch is run by the proofs.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from app.cli.agent.trial_program import main
from app.cli.agent.trials import prepare_trial
from cost_models.errors import InvalidInputError, MeasurementError
from profiler.trial.exported import run_export
from profiler.trial.processes import MARK
from profiler.trial.record import TrialRecord
from profiler.trial.watch import Limits

MODEL = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
ROW = {
    "model": MODEL,
    "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"framework": "fsdp", "precision": "bf16", "seq_length": 32, "global_batch_size": 8},
    "strategy": {"dp": 2, "zero": 3, "micro_batch_size": 2},
}
GIB = 2**30


def _sentence(step: int, seconds: float, allocated_gib: float) -> str:
    """As hf_model.py prints a step."""
    return f"step {step}: {seconds:.4f} s, peak allocated {allocated_gib:.2f} GiB, peak reserved {allocated_gib + 1:.2f} GiB"


def _object(step: int, seconds: float, allocated: int) -> str:
    """As train.py of the target pytorch prints it."""
    line = {"step": step, "seconds": seconds, "peak_allocated_bytes": allocated, "peak_reserved_bytes": 2 * allocated}
    return json.dumps(line)


def _launch(
    folder: Path, *lines: str, then: str = "", marker: str = "hf_model.py", text: str = "import json\n"
) -> Path:
    """A launch that tells what it was started with, prints the lines, and goes on with a piece of shell."""
    (folder / marker).write_text(text)
    (folder / "plan.json").write_text(json.dumps(ROW))
    said = "\n".join(["started with $*", *lines]).replace('"', '\\"')
    (folder / "mock.sh").write_text(
        f'#!/usr/bin/env bash\ncd "$(dirname "$0")"\necho "{said}" | tee said.txt\n{then}\n'
    )
    return folder


def _run(folder: Path, **how: Any) -> TrialRecord:
    trial = run_export(folder, ROW, **{"deadline_s": 60, "device": "cpu", "warm_up": 1, "steps": 3, **how})
    # Every record can be sent and stored.
    assert TrialRecord.from_json(trial.to_json()) == trial
    return trial


def test_steps_and_peaks_are_those_that_a_launch_prints(tmp_path: Path) -> None:
    """The first of four steps warms up: the median is of 0.5, 0.3 and 0.4 s, and the peak of the warm-up does not count."""
    folder = _launch(
        tmp_path, _sentence(1, 9.0, 80.0), _sentence(2, 0.5, 60.0), _sentence(3, 0.3, 62.5), _sentence(4, 0.4, 61.0),
        "median of 3 steps: 0.4000 s, peak allocated 62.50 GiB, peak reserved 63.50 GiB",
    )  # fmt: skip
    trial = _run(folder)
    assert (trial.status, trial.backend, trial.step_time_s) == ("ok", "export", 0.4)
    assert (trial.step_s, trial.warm_up) == ((9.0, 0.5, 0.3, 0.4), 1)
    assert (trial.peak_allocated_bytes, trial.peak_reserved_bytes) == (62.5 * GIB, 63.5 * GIB)
    assert (trial.ranks, trial.terms_s, trial.reason) == ((), None, None)
    assert (folder / "said.txt").read_text().startswith("started with --steps 4 --warmup 1\n")


@pytest.mark.parametrize(
    ("above_s", "then", "status", "notes"),
    [
        (1.9, "sleep 600", "ok", ["ended early, after 5 of 9 steps"]),
        # No step is slow enough, so that the program waits for more, and the launch ends without them.
        (2.1, "", "crash", []),
        (None, "", "crash", []),
    ],
)
def test_an_agents_program_ends_a_launch_early_that_is_clearly_slower_than_the_best(
    above_s: float | None, then: str, status: str, notes: list[str], tmp_path: Path
) -> None:
    """Three steps warm up and two count, each of 2.0 s."""
    folder = tmp_path / "launch"
    folder.mkdir()
    _launch(folder, *(_sentence(step, 2.0, 1.0) for step in range(1, 6)), then=then)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    trial = {
        "row": ROW,
        "backend": "export",
        "gpus": 2,
        "deadline_s": 60.0,
        "hopeless_above_s": above_s,
        "files": files,
    }
    out = tmp_path / "record.json"
    described = prepare_trial({"lease": "l", "trial": trial}, out=out, device="cpu")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main([str(described), f"--out={out}"]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    record = json.loads(out.read_text())
    assert (record["status"], record.get("notes", [])) == (status, notes)


@pytest.mark.parametrize(
    ("marker", "asked"), [("train_plan.json", "--steps 4"), ("plan_steps.py", "--training.steps 4")]
)
def test_each_kind_of_launch_is_told_its_steps(marker: str, asked: str, tmp_path: Path) -> None:
    lines = [_object(step, step / 10, 1000 * step) for step in range(1, 5)]
    trial = _run(_launch(tmp_path, *lines, marker=marker, text=""), options=["--torch-adam"])
    assert (trial.status, trial.step_time_s) == ("ok", 0.3)
    assert (trial.peak_allocated_bytes, trial.peak_reserved_bytes) == (4000, 8000)
    assert (tmp_path / "said.txt").read_text().startswith(f"started with {asked} --torch-adam\n")


@pytest.mark.parametrize(
    ("config", "is_replaced"),
    [
        ({"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}}, True),
        # On the host PyTorch's Adam would take far longer than DeepSpeed's.
        ({"optimizer": {"type": "AdamW"}, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, False),
        ({"optimizer": {"type": "Lion"}}, False),
        ({"zero_optimization": {"stage": 2}}, False),
    ],
)
def test_nothing_is_compiled_for_deepspeeds_adam_within_a_trial(
    config: dict[str, Any], is_replaced: bool, tmp_path: Path
) -> None:
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    trial = _run(_launch(tmp_path, *(_sentence(step, 0.5, 1.0) for step in range(1, 5))))
    assert trial.status == "ok"
    assert ("--torch-adam" in (tmp_path / "said.txt").read_text()) == is_replaced
    assert any("--torch-adam" in note for note in trial.notes) == is_replaced


def _trace(*operations: tuple[str, int, int]) -> str:
    """A rank's trace of a step of 100 µs in which operations run from one moment to another."""
    events = [("meshwright:step", 0, 100), *operations]
    kinds = {"meshwright:step": "user_annotation"}
    told = [
        {"ph": "X", "cat": kinds.get(name, "cpu_op"), "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}
        for name, start, end in events
    ]
    return json.dumps({"traceEvents": told})


def test_terms_are_those_of_the_rank_that_waits_least(tmp_path: Path) -> None:
    """Rank 0 waits for 60 of 100 µs and rank 1 for 30; half of its step are products and a fifth the loss.

    What is traced in 100 µs takes 0.5 s without a trace: 70 µs of work stay, and the rest is waiting.
    """
    (tmp_path / "rank0").write_text(_trace(("aten::mm", 0, 40)))
    (tmp_path / "rank1").write_text(_trace(("aten::mm", 0, 50), ("aten::log_softmax", 60, 80)))
    copied = 'cp rank0 "${!#}/rank0.json"; cp rank1 "${!#}/rank1.json"'
    lines = [_sentence(step, 0.5, 1.0) for step in range(1, 5)]
    trial = _run(_launch(tmp_path, *lines, then=copied, text="# --trace\n"), trace=True)
    assert trial.terms_s == pytest.approx({"gemm": 50e-6, "loss": 20e-6, "launch": 0.5 - 70e-6})
    assert " --trace " in (tmp_path / "said.txt").read_text()
    assert trial.notes == ()


def test_a_launch_that_is_not_traced_to_its_end_keeps_its_steps(tmp_path: Path) -> None:
    lines = [_sentence(step, 0.5, 1.0) for step in range(1, 5)]
    trial = _run(_launch(tmp_path, *lines, then='echo "{" > "${!#}/rank0.json"', text="# --trace\n"), trace=True)
    assert (trial.status, trial.step_time_s, trial.terms_s) == ("ok", 0.5, None)
    assert trial.notes == ("the step was not traced to its end",)


def test_a_launch_of_an_earlier_export_is_not_asked_for_a_trace(tmp_path: Path) -> None:
    lines = [_sentence(step, 0.5, 1.0) for step in range(1, 5)]
    trial = _run(_launch(tmp_path, *lines), trace=True)
    assert (trial.status, trial.terms_s, trial.notes) == ("ok", None, ())
    assert "--trace" not in (tmp_path / "said.txt").read_text()


def test_a_launch_that_runs_out_of_memory_says_what_was_asked_for(tmp_path: Path) -> None:
    error = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    trial = _run(_launch(tmp_path, _sentence(1, 9.0, 80.0), error, then="exit 1"))
    assert (trial.status, trial.step_time_s, trial.step_s) == ("oom", None, (9.0,))
    assert trial.reason == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("lines", "then", "status", "reason"),
    [
        (("ValueError: bf16 is not supported",), "exit 1", "crash", "ValueError: bf16 is not supported"),
        ((), "exit 7", "crash", "it ended with code 7 and said nothing"),
        (("all is well",), "exit 0", "crash", "it ended and told no steps"),
        ((_sentence(1, 9.0, 1.0), _sentence(2, 0.5, 1.0)), "exit 3", "crash", "it ended with code 3 and said nothing"),
        (
            (_sentence(1, 9.0, 1.0),), "setsid sleep 600 & sleep 600", "hang",
            "nothing came for 0.3 s in the phase step after 1 steps",
        ),
    ],
)  # fmt: skip
def test_how_a_launch_fails_is_told(
    lines: tuple[str, ...], then: str, status: str, reason: str, tmp_path: Path
) -> None:
    limits = Limits(deadline_s=60.0, step_s=0.3) if status == "hang" else None
    trial = _run(_launch(tmp_path, *lines, then=then), limits=limits)
    assert (trial.status, trial.reason, trial.step_time_s) == (status, reason, None)


def test_a_launch_that_has_told_all_its_steps_is_measured_however_it_leaves(tmp_path: Path) -> None:
    lines = [_sentence(step, 0.5, 1.0) for step in range(1, 5)]
    assert _run(_launch(tmp_path, *lines, then="kill -ABRT $$")).status == "ok"


def test_a_slow_launch_can_be_ended_early(tmp_path: Path) -> None:
    lines = [_sentence(1, 9.0, 1.0), _sentence(2, 8.0, 1.0)]
    trial = _run(_launch(tmp_path, *lines, then="sleep 600"), goes_on=lambda number, _took_s: number < 1)
    assert (trial.status, trial.step_time_s) == ("ok", 8.0)
    assert trial.notes == ("ended early, after 2 of 4 steps",)


def test_a_launch_that_logs_in_its_frameworks_way_is_read_when_it_has_ended(tmp_path: Path) -> None:
    """Megatron-LM's lines, whose first interval holds the start: 500 ms and 520 ms are left."""
    iteration = " iteration {:8d}/       4 | consumed samples: 8 | elapsed time per iteration (ms): {:.1f} | global batch size: 8 |"
    lines = [iteration.format(number, took) for number, took in ((1, 9000), (2, 500), (3, 520))]
    row = {**ROW, "training": {**ROW["training"], "framework": "megatron"}}  # type: ignore[dict-item]
    folder = _launch(tmp_path, *lines, then="# --train-iters 50", marker="none.json", text="{}")
    trial = run_export(folder, row, deadline_s=60, device="cpu", warm_up=1, steps=3)
    assert (trial.status, trial.reason) == ("ok", None)
    assert trial.step_time_s == pytest.approx(0.51)
    assert (folder / "said.txt").read_text().startswith("started with --train-iters 4\n")


def test_what_is_no_launch_of_this_plan_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"holds no mock\.sh"):
        _run(tmp_path)
    with pytest.raises(MeasurementError, match="a share of it was asked for"):
        _run(tmp_path, limits=Limits(deadline_s=60.0, gpu_fraction=0.5))
    folder = _launch(tmp_path, "never", text="import json\nimport no_such_framework.parts\nfrom other_one import x\n")
    with pytest.raises(MeasurementError, match="import no_such_framework, other_one, which are not installed here"):
        _run(folder)
    _launch(folder, "never")
    (folder / "mock.sh").write_text("exec torchrun -m no_such_program.train\n")
    with pytest.raises(MeasurementError, match="import no_such_program, which is not installed here"):
        _run(folder)
    with pytest.raises(InvalidInputError, match=r"/strategy/dp: dp is 4, but the launch files in .* say 2"):
        run_export(folder, {**ROW, "strategy": {"dp": 4}}, deadline_s=60, device="cpu")
    assert not (folder / "said.txt").exists()
    assert MARK not in os.environ


@pytest.mark.proof
def test_a_launch_of_pytorchs_own_parallelism_runs_as_exported(tmp_path: Path) -> None:
    """FSDP2 over two processes with gloo."""
    pytest.importorskip("torch")
    from planner.export.export import export_row

    for file in export_row(ROW, "pytorch"):
        (tmp_path / file.path).write_text(file.content)
    trial = _run(tmp_path, deadline_s=240, trace=True)
    assert (trial.status, trial.reason, trial.notes) == ("ok", None, ())
    assert len(trial.step_s) == 4
    assert sorted(trial.step_s[1:])[1] == trial.step_time_s
    assert trial.terms_s is not None
    assert sum(trial.terms_s.values()) == pytest.approx(trial.step_time_s)
    assert {"gemm", "attention", "embedding", "head", "loss", "optimizer", "dp_comm"} <= set(trial.terms_s)
