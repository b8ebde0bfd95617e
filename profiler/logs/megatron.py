"""Lines of Megatron-LM and what is built on Megatron Core: Megatron-Bridge and NeMo.

Megatron-LM prints the mean of each logging interval in milliseconds with one decimal (NVIDIA/Megatron-LM,
megatron/training/training.py, `training_log`), and once, after the first interval, every model-parallel rank's peaks in MiB, which it
calls MB (megatron/training/utils.py, `report_memory`). Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge,
src/megatron/bridge/training/utils/train_utils.py) prints the same line and before it "Step Time" in seconds with two decimals, and its
peaks in gigabytes of 1e9 bytes with five significant digits. NeMo 2 (NVIDIA/NeMo,
nemo/lightning/pytorch/callbacks/progress_printer.py) prints the interval's mean in seconds with four significant digits.
"""

from __future__ import annotations

import re

from cost_models.frameworks.log_formats import MEGATRON, MEGATRON_BRIDGE, NEMO, LogFormat
from profiler.logs.reading import Line, LineReader, Sample
from profiler.logs.text import NUMBER, printed

_MIB, _GIGA = float(2**20), 1e9


class MegatronReader(LineReader):
    """Iterations of Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge."""

    marks = ("elapsed time per iteration (ms):", "Step Time :", "max allocated:", "mem-max-")
    _iteration = re.compile(r"\biteration\s+(\d{1,15})\s*/\s*(?:\d+|infinity)\s*\|")
    # Primus, which runs Megatron on AMD's GPUs, prints the mean of the last intervals behind a slash.
    _elapsed = re.compile(rf"elapsed time per iteration \(ms\):\s*({NUMBER})\s*[|/]")
    _batch = re.compile(r"global batch size:\s*(\d{1,15})\s*\|")
    _step_time = re.compile(rf"Step Time\s*:\s*({NUMBER})s\b")
    _rank = re.compile(r"\[Rank (\d{1,9})\]")
    # Older releases call the reserved bytes cached. A last number may be followed by more counters, or by nothing.
    _peaks = re.compile(
        r"\| max allocated:\s*([\d.]+)\s*\| (?:reserved|cached):\s*[\d.]+\s*\| max (?:reserved|cached):\s*([\d.]+)(?:\s|$)"
    )
    _device = re.compile(r"\| total device memory used:\s*([\d.]+)(?:\s|$)")
    _bridge_peak = re.compile(r"mem-max-(allocated|reserved)-gigabytes:\s*([\d.]+)\s*(?=\||\[|$)")

    def __init__(self) -> None:
        super().__init__()
        self.is_bridge = False
        self._shown_s: list[Sample] = []

    @property
    def format(self) -> LogFormat:
        return MEGATRON_BRIDGE if self.is_bridge else MEGATRON

    def take(self, line: Line) -> None:
        """Reads an iteration, a step's time or peaks."""
        iteration = self._iteration.search(line.text)
        elapsed = self._elapsed.search(line.text, iteration.end()) if iteration else None
        if iteration and elapsed:
            value, unit, digits = printed(elapsed[1])
            batch = self._batch.search(line.text)
            self.found.add(
                Sample(
                    value / 1e3, unit / 1e3, digits, "interval_mean", step=int(iteration[1]), rank=line.rank,
                    batch=float(batch[1]) if batch else None,
                )
            )  # fmt: skip
        elif match := self._step_time.search(line.text):
            # The iteration's own line follows, with more digits, unless somebody has filtered it away.
            self.is_bridge = True
            value, unit, digits = printed(match[1])
            self._shown_s.append(Sample(value, unit, digits, "interval_mean", rank=line.rank))
        elif "mem-max-" in line.text:
            self._take_bridge_peaks(line)
        elif match := self._peaks.search(line.text):
            named = self._rank.search(line.text)
            rank = int(named[1]) if named else line.rank
            self.found.add_peak("allocated", printed(match[1])[0] * _MIB, rank)
            self.found.add_peak("reserved", printed(match[2])[0] * _MIB, rank)
            if device := self._device.search(line.text, match.end() - 1):
                self.found.add_peak("device", printed(device[1])[0] * _MIB, rank)

    def _take_bridge_peaks(self, line: Line) -> None:
        self.is_bridge = True
        # Ranks write without waiting for each other, so that one line may hold what two of them print.
        for part in re.split(r"(?=\[Rank \d+\])", line.text):
            named = self._rank.match(part)
            rank = int(named[1]) if named else line.rank
            for counter, text in self._bridge_peak.findall(part):
                self.found.add_peak(counter, printed(text)[0] * _GIGA, rank)

    def finish(self) -> None:
        """Falls back on the steps' own lines where no iteration was printed."""
        if not self.found.samples:
            for sample in self._shown_s:
                self.found.add(sample)


class NemoReader(LineReader):
    """Iterations of NeMo 2, and of NeMo 1's progress bar."""

    marks = ("train_step_timing in s",)
    _timing = re.compile(rf"train_step_timing in s\s*[:=]\s*({NUMBER})(?=\s*(?:[|,\]]|$))")
    _step = re.compile(r"global_step\s*[:=]\s*(\d{1,15})|iteration (\d{1,15})/")
    _batch = re.compile(r"global_batch_size\s*[:=]\s*(\d{1,15})")

    @property
    def format(self) -> LogFormat:
        return NEMO

    def take(self, line: Line) -> None:
        """Reads an iteration."""
        match = self._timing.search(line.text)
        if not match:
            return
        value, unit, digits = printed(match[1])
        step, batch = self._step.search(line.text), self._batch.search(line.text)
        self.found.add(
            Sample(
                value, unit, digits, "interval_mean", step=int(step[1] or step[2]) if step else None, rank=line.rank,
                batch=float(batch[1]) if batch else None,
            )
        )  # fmt: skip
