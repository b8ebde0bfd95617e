"""Lines of every format as its program documents them, read with numbers that are worked out here by hand.

Every line below is written after the format string in the program's source that the reader's docstring names. Logs that real runs
printed are in `test_real_logs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.frameworks.log_formats import LOG_FORMATS
from profiler.logs.read import read_log

GIB, MIB = 2.0**30, 2.0**20


def row(framework: str, *, batch: int = 16, sequence: int = 4096, **strategy: int) -> dict[str, Any]:
    training = {"seq_length": sequence, "global_batch_size": batch, "framework": framework}
    return {"training": training, "strategy": {"dp": 1, **strategy}}


def megatron(step: int, shown: str, *, batch: int = 16) -> str:
    return (
        f" [2026-11-29 10:00:00.123456] iteration {step:8d}/     500 | consumed samples: {step * batch:12d} | "
        f"elapsed time per iteration (ms): {shown} | throughput per GPU (TFLOP/s/GPU): 402.1 | learning rate: 3.000000E-04 | "
        f"global batch size: {batch:5d} | lm loss: 8.1E+00 | loss scale: 1.0 | number of skipped iterations:   0 |\n"
    )


def titan(step: int, tps: str, *, memory: str = "45.67") -> str:
    return (
        f"\x1b[31mstep: {step:2}  \x1b[32mloss:  7.65432  \x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[36mmemory: {memory}GiB(32.71%)  "
        f"\x1b[34mtps: {tps}  \x1b[36mtflops: 412.34  \x1b[35mmfu: 41.69%\x1b[39m\n"
    )


def test_megatron_prints_means_of_intervals_and_memory_of_each_rank() -> None:
    text = "".join(megatron(10 * i, shown) for i, shown in enumerate(["9876.5", "1201.0", "1203.0", "1202.5"], start=1))
    text += "[Rank 0] (after 10 iterations) memory (MB) | allocated: 900.25 | max allocated: 2048.50 | reserved: 3000.00 | max reserved: 4096.00\n"
    text += "[Rank 7] (after 10 iterations) memory (MB) | allocated: 900.25 | max allocated: 2050.00 | reserved: 3000.00 | max reserved: 4090.00\n"
    reading = read_log(text, row=row("megatron"))
    # The first interval holds compilation; the median of the others is 1202.5 ms, one decimal of which is 0.1 ms.
    assert (reading.format, reading.kind, reading.step_time_s) == ("megatron", "interval_mean", 1.2025)
    assert (reading.num_steps, reading.digits) == (30, 5)
    assert reading.resolution_fraction == pytest.approx(0.1 / 1202.5)
    # "MB" are MiB; rank 7 allocates most and rank 0 reserves most.
    assert (reading.memory_bytes, reading.memory_counter, reading.memory_rank) == (2050.0 * MIB, "allocated", "worst")
    assert reading.peaks_bytes == {"allocated": 2050.0 * MIB, "reserved": 4096.0 * MIB}
    assert reading.flags == ()


def test_a_first_interval_alone_is_not_steady() -> None:
    assert read_log(megatron(10, "9876.5"), row=row("megatron")).flags == ("few-steps", "warm-up-only")


def test_iterations_before_the_batch_has_grown_are_left_out() -> None:
    text = "".join(megatron(i, "500.0", batch=8) for i in range(1, 5)) + "".join(
        megatron(i, "1000.0") for i in range(5, 10)
    )
    assert read_log(text, row=row("megatron")).step_time_s == 1.0
    assert read_log(text, row=row("megatron", batch=32)).flags == ("different-batch",)


def test_bridge_prints_gigabytes_of_a_thousand_million_bytes() -> None:
    lines = []
    for step, shown in ((1, "20.00"), (2, "2.34"), (3, "2.36")):
        lines.append(f"Step Time : {shown}s GPU utilization: 412.3MODEL_TFLOP/s/GPU\n")
        lines.append(megatron(step, f"{1000 * float(shown) + 1:.1f}"))
    # Two ranks in one line: they write without waiting for each other.
    lines.append(
        "[Rank 1] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 63.66 | mem-max-allocated-gigabytes: 153.4 | "
        "mem-max-reserved-gigabytes: 182.2 | mem-alloc-retires: 0[Rank 2] (after 2 iterations) memory (GB) | "
        "mem-allocated-gigabytes: 61.881 | mem-max-allocated-gigabytes: 153.47 | mem-max-reserved-gigabytes: 182.1\n"
    )
    reading = read_log("".join(lines), row=row("megatron"))
    assert (reading.format, reading.step_time_s, reading.digits) == ("megatron-bridge", pytest.approx(2.351), 5)
    assert reading.peaks_bytes == {"allocated": 153.47e9, "reserved": 182.2e9}
    # Where only its own lines were kept there are two decimals: 0.01 of 2.35 s.
    alone = read_log("".join(line for line in lines if line.startswith("Step")), row=row("megatron"))
    assert (alone.step_time_s, alone.digits) == (pytest.approx(2.35), 3)
    assert alone.resolution_fraction == pytest.approx(0.01 / 2.35)


def test_nemo_prints_seconds_with_four_digits() -> None:
    text = "".join(
        f"Training epoch 0, iteration {i}/249 | lr: 1.961e-06 | global_batch_size: 16 | global_step: {i} | reduced_train_loss: 1.3 | "
        f"train_step_timing in s: {shown}{end}\n"
        for i, (shown, end) in enumerate([("7.126", ""), ("2.505", " | consumed_samples: 32"), ("2.515", "")])
    )
    reading = read_log(text, row=row("megatron"))
    assert (reading.format, reading.step_time_s, reading.digits) == ("nemo", pytest.approx(2.51), 4)


def test_torchtitan_prints_tokens_a_second_of_each_gpu_and_reserved_memory() -> None:
    text = titan(1, "812") + titan(10, "8,000") + titan(20, "8,192") + titan(30, "8,192", memory="46.00")
    text += (
        "\x1b[33mvalidate step: 30  \x1b[32mloss:  7.0  \x1b[36mmemory: 99.00GiB(70.00%)  \x1b[34mtps: 99,999\x1b[39m\n"
    )
    reading = read_log(text, row=row("torchtitan", tp=2, dp=4))
    # 16 sequences of 4,096 tokens are 65,536 tokens; 8 GPUs at 8,192 tokens/s each handle as many in one second.
    assert (reading.format, reading.kind, reading.step_time_s) == ("torchtitan", "interval_mean", 1.0)
    assert reading.resolution_fraction == pytest.approx(1 / 8000 * 8192 / 8000)
    assert (reading.memory_bytes, reading.memory_counter, reading.memory_rank) == (46.0 * GIB, "reserved", None)


def test_a_row_without_dp_uses_the_whole_cluster() -> None:
    text = titan(1, "812") + titan(2, "8,192") + titan(3, "8,192")
    given = row("torchtitan", tp=2)
    del given["strategy"]["dp"]
    assert read_log(text, row={**given, "cluster": {"preset": "dgx-h100"}}).step_time_s == 1.0


def deepspeed(step: int, rate: str) -> str:
    return (
        f"[2026-11-29 10:00:00,123] [INFO] [timer.py:264:stop] epoch=0/micro_step={4 * step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=7.9, CurrSamplesPerSec={rate}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB\n"
    )


def test_deepspeed_prints_samples_a_second_of_all_ranks() -> None:
    text = "".join(deepspeed(10 * i, rate) for i, rate in enumerate(["2.0", "8.0", "8.000", "8.00"], start=1))
    reading = read_log(text, row=row("deepspeed", dp=8))
    assert (reading.format, reading.kind, reading.step_time_s) == ("deepspeed", "step", 2.0)
    assert (reading.memory_bytes, reading.memory_counter, reading.memory_rank) == (19.52 * GIB, "allocated", 0)
    assert (reading.digits, reading.num_steps) == (3, 2)  # the first two of four steps are left out


def test_deepspeed_pipelines_print_two_numbers_of_which_the_finer_counts() -> None:
    text = "".join(
        f"steps: {10 * i} loss: 7.1234 iter time (s): {seconds} samples/sec: {rate}\n"
        for i, (seconds, rate) in enumerate([("1.9", "8.421"), ("0.123", "130.219"), ("0.123", "130.219")], start=1)
    )
    text += "MA 10.12 GB         Max_MA 12.34 GB         CA 15.0 GB         Max_CA 16 GB \n"
    reading = read_log(text, row=row("deepspeed", pp=2))
    assert (reading.format, reading.kind, reading.num_steps) == ("deepspeed-pipeline", "interval_mean", 20)
    assert reading.step_time_s == pytest.approx(16 / 130.219)
    assert reading.resolution_fraction == pytest.approx(0.001 / 130.219)
    assert reading.peaks_bytes == {"allocated": 12.34 * GIB, "reserved": 16.0 * GIB}
    # Of another batch the samples say nothing, and the seconds stand.
    assert read_log(text, row=row("deepspeed", pp=2, batch=64)).step_time_s == 0.123


def test_a_breakdown_is_summed_without_what_lies_within_its_parts() -> None:
    text = ""
    for forward in ("900.00", "100.00", "101.00", "102.00"):
        text += f"[2026-11-29 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: {forward} | bwd_microstep: 90.00 | bwd_inner_microstep: 89.00 | bwd_allreduce_microstep: 0.01 | step_microstep: 20.00\n"
        text += f"time (ms) | fwd: {forward} | bwd: 200.50 | bwd_inner: 180.00 | bwd_allreduce: 20.50 | step: 50.25\n"
    reading = read_log(text, row=row("deepspeed"))
    # 101.5 ms, the median without the first two, + 200.5 ms + 50.25 ms.
    assert (reading.format, reading.step_time_s) == ("deepspeed-breakdown", pytest.approx(0.35225))
    assert reading.flags == ("few-steps", "sum-of-parts")


def nanotron(step: int, shown: str) -> str:
    return (
        f"\x1b[2;3m11/29 10:00:00 [INFO|DP=0|TP=0]\x1b[0m: iteration: {step} / 100 | consumed_tokens: {step * 65.5:.3g}K | "
        f"time_per_iteration_ms: {shown} | tokens_per_sec: 52.4K | tokens_per_sec_per_gpu: 6.55K | lm_loss: 7.1 | eta: 0:01:40\n"
    )


def test_nanotron_has_three_digits_and_a_suffix() -> None:
    text = "".join(nanotron(i, shown) for i, shown in enumerate(["12.3K", "1.26K", "1.3K", "1.25K", "1.25K"], start=1))
    text += " Memory usage: 1000.00MiB. Peak allocated 2048.00MiB. Peak reserved: 3072.00MiB\n"
    text += " Memory usage: 1000.00MiB. Peak allocated 1024.00MiB. Peak reserved: 4096.00MiB\n"
    reading = read_log(text, row=row("nanotron"))
    # The last three steps count; "1.3K" has three digits of which the last, a zero, is not printed.
    assert (reading.format, reading.step_time_s, reading.digits) == ("nanotron", 1.25, 3)
    assert reading.resolution_fraction == pytest.approx(0.008)
    assert reading.peaks_bytes == {"allocated": 2048.0 * MIB, "reserved": 4096.0 * MIB}
    assert reading.memory_rank == 0
    assert read_log("".join(nanotron(i, "812") for i in range(1, 9)), row=row("nanotron")).step_time_s == 0.812


def composer(step: int, batches: str, samples: str) -> str:
    return (
        f"[batch={step}/100]:\n\t Train time/batch: {step}\n\t Train loss/train/total: 7.1234\n\t Train throughput/batches_per_sec: {batches}\n"
        f"\t Train throughput/samples_per_sec: {samples}\n\t Train throughput/device/batches_per_sec: 9.9999\n"
        "\t Train throughput/device/samples_per_sec: 9.9999\n\t Train memory/peak_allocated_mem: 40.1230\n\t Train memory/peak_reserved_mem: 50.0000\n"
    )


def test_composer_prints_rates_of_a_rolling_window() -> None:
    text = composer(10, "0.1000", "1.6000") + composer(20, "0.4878", "7.8049") + composer(30, "0.4878", "7.8049")
    text += "[Eval batch=1/10] Eval on eval data\n"
    reading = read_log(text, row=row("fsdp"))
    assert (reading.format, reading.kind) == ("composer", "rolling")
    # 16 samples at 7.8049 a second, which says more than 0.4878 batches a second.
    assert reading.step_time_s == pytest.approx(16 / 7.8049)
    assert reading.resolution_fraction == pytest.approx(0.0001 / 7.8049)
    assert reading.peaks_bytes == {"allocated": 40.123e9, "reserved": 50e9}


def printed_entry(runtime: str, tokens: int) -> str:
    return (
        f"{{'loss': '7.123', 'grad_norm': '1.234', 'learning_rate': '4.5e-05', 'epoch': '0.1', 'num_input_tokens_seen': {tokens}, "
        f"'train_runtime': '{runtime}', 'train_tokens_per_second': '1234'}}\n"
    )


def test_the_trainer_counts_tokens_so_that_intervals_can_be_told() -> None:
    # 65,536 tokens a step: entries every 10 steps at 40, 65 and 90.5 s.
    text = printed_entry("40", 655360) + "100%|####| 30/30 [01:30<00:00]\r" + printed_entry("65", 1310720)
    text += printed_entry("90.5", 1966080) + printed_entry("116", 2621440)
    text += "{'train_runtime': '120', 'train_samples_per_second': '5.333', 'train_steps_per_second': '0.333', 'train_loss': '7', 'epoch': '1'}\n"
    reading = read_log(text, row=row("fsdp"))
    # Intervals of 25, 25.5 and 25.5 s, of which the first is dropped; the whole run's mean is not taken.
    assert (reading.format, reading.kind, reading.step_time_s) == ("transformers", "interval_mean", pytest.approx(2.55))
    assert reading.num_steps == 20


def test_the_trainers_last_line_is_of_the_whole_run() -> None:
    text = "{'train_runtime': 120.1234, 'train_samples_per_second': 5.333, 'train_steps_per_second': 0.333, 'train_loss': 7.0, 'epoch': 1.0}"
    reading = read_log(text, row=row("deepspeed"))
    assert (reading.kind, reading.flags) == ("cumulative", ("cumulative",))
    # 16 sequences at 5.333 a second are known more closely than 1 step at 0.333.
    assert reading.step_time_s == pytest.approx(16 / 5.333)
    assert reading.num_steps == 40


def test_axolotl_adds_memory() -> None:
    text = "{'train_runtime': '158.8', 'train_samples_per_second': '26.2', 'train_steps_per_second': '1.638', 'memory/max_active (GiB)': '2.42', 'memory/max_allocated (GiB)': '2.42', 'memory/device_reserved (GiB)': '7.89', 'tokens/train_per_sec_per_gpu': '0'}\n"
    reading = read_log(text, row=row("fsdp"))
    assert (reading.format, reading.memory_counter, reading.memory_bytes) == ("axolotl", "allocated", 2.42 * GIB)


def test_exported_launches_print_the_largest_of_all_ranks() -> None:
    text = "".join(
        f'{{"step": {i}, "seconds": {seconds}, "peak_allocated_bytes": {1000 + i}, "peak_reserved_bytes": 2000, "loss": 7.1}}\n'
        for i, seconds in enumerate([9.5, 1.5, 1.25, 1.125, 1.0, 1.25], start=1)
    )
    reading = read_log(text, row=row("torchtitan"))
    assert (reading.format, reading.kind) == ("meshwright", "step")
    assert (reading.step_time_s, reading.samples_s) == (1.125, (1.125, 1.0, 1.25))
    assert (reading.memory_bytes, reading.memory_rank) == (1006.0, "worst")
    sentences = "".join(
        f"step {i}: {seconds} s, peak allocated 67.60 GiB, peak reserved 78.70 GiB\n"
        for i, seconds in enumerate(["9.5000", "0.9123", "0.9125"], start=1)
    )
    sentences += "median of 2 steps: 0.9124 s, peak allocated 67.60 GiB, peak reserved 78.70 GiB\n"
    reading = read_log(sentences, row=row("fsdp"))
    assert (reading.step_time_s, reading.digits) == (pytest.approx(0.9124), 4)
    assert reading.peaks_bytes == {"allocated": 67.6 * GIB, "reserved": 78.7 * GIB}


def test_numbers_are_taken_as_they_are() -> None:
    reading = read_log('{"step_time_s": 1.25, "peak_memory_gib": 40.5}', row=row("nanotron"))
    assert (reading.format, reading.step_time_s, reading.memory_bytes) == ("numbers", 1.25, 40.5 * GIB)
    assert reading.resolution_fraction == pytest.approx(0.01 / 1.25)


def test_every_format_says_whose_runs_write_it() -> None:
    assert LOG_FORMATS["composer"].fits("fsdp")
    assert not LOG_FORMATS["composer"].fits("megatron")
    assert LOG_FORMATS["numbers"].fits("megatron")
    assert LOG_FORMATS["nanotron"].fits(None)
