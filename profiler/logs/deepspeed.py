"""Lines of DeepSpeed's engines (deepspeedai/DeepSpeed).

The engine's ThroughputTimer (deepspeed/utils/timer.py) prints the samples a second of the last step, all ranks together, and rank 0's
peak of allocated memory in GiB, which it calls GB. The pipeline engine (deepspeed/runtime/pipe/engine.py) prints the mean of the last
`steps_per_print` steps. `wall_clock_breakdown` (deepspeed/runtime/engine.py) prints the parts of each step: names that end in
`_microstep` are of one micro-batch, `bwd_inner` and `bwd_allreduce` are within `bwd`, and what the host does between these parts is in
none of them.
"""

from __future__ import annotations

import re

from cost_models.frameworks.log_formats import DEEPSPEED, DEEPSPEED_BREAKDOWN, DEEPSPEED_PIPELINE, LogFormat
from cost_models.units import GIB
from profiler.logs.reading import Line, LineReader, RunFacts, Sample
from profiler.logs.text import NUMBER, printed
from profiler.logs.throughput import of_rate


class DeepSpeedReader(LineReader):
    """Lines of the engine's ThroughputTimer."""

    # The running average beside it holds the first steps for ever, and is not read.
    marks = ("CurrSamplesPerSec=",)
    _line = re.compile(
        rf"global_step=(\d{{1,15}}), RunningAvgSamplesPerSec=[^,]+, CurrSamplesPerSec=({NUMBER}), MemAllocated=[\d.]+GB, "
        rf"MaxMemAllocated=({NUMBER})GB"
    )

    def __init__(self, facts: RunFacts) -> None:
        super().__init__()
        self._facts = facts

    @property
    def format(self) -> LogFormat:
        return DEEPSPEED

    def take(self, line: Line) -> None:
        """Reads the step that the timer has just seen."""
        match = self._line.search(line.text)
        if not match:
            return
        sample = of_rate(self._facts.global_batch_size, match[2], kind="step", step=int(match[1]), rank=line.rank)
        if sample:
            self.found.add(sample)
        self.found.add_peak("allocated", printed(match[3])[0] * GIB, 0)


class PipelineReader(LineReader):
    """Lines of the pipeline engine, and of the memory reports beside them."""

    # The memory report is see_memory_usage of deepspeed/runtime/utils.py, which clears the peaks each time.
    marks = ("iter time (s):", "Max_MA ")
    _step = re.compile(r"\bsteps?:\s*(\d{1,15})\b")
    _line = re.compile(rf"\biter time \(s\):\s*({NUMBER})\s+samples/sec:\s*({NUMBER})(?=\s|$)")
    _peaks = re.compile(r"Max_MA ([\d.]+) GB\s+CA [\d.]+ GB\s+Max_CA ([\d.]+) GB")

    def __init__(self, facts: RunFacts) -> None:
        super().__init__()
        self._facts = facts

    @property
    def format(self) -> LogFormat:
        return DEEPSPEED_PIPELINE

    def take(self, line: Line) -> None:
        """Reads an interval, or the peaks since the report before."""
        if match := self._peaks.search(line.text):
            self.found.add_peak("allocated", printed(match[1])[0] * GIB, line.rank)
            self.found.add_peak("reserved", printed(match[2])[0] * GIB, line.rank)
        step = self._step.search(line.text)
        match = self._line.search(line.text, step.end()) if step else None
        if not (step and match):
            return
        value, unit, digits = printed(match[1])
        shown = Sample(value, unit, digits, "interval_mean", step=int(step[1]), rank=line.rank)
        # Both numbers have three decimals; the larger one tells more, where the run's batch is the row's.
        finer = of_rate(self._facts.global_batch_size, match[2], kind="interval_mean", step=shown.step, rank=line.rank)
        if finer and finer.resolution_s < unit and abs(finer.seconds - value) <= unit:
            shown = finer
        self.found.add(shown)


class BreakdownReader(LineReader):
    """The parts of each step that `wall_clock_breakdown` prints."""

    marks = ("time (ms) |",)
    _part = re.compile(rf"\| (\w+): ({NUMBER})(?= \||\s*$)")
    # Names of today and of releases before 0.10.
    _whole = (("fwd", "bwd", "step"), ("forward", "backward", "step"))

    @property
    def format(self) -> LogFormat:
        return DEEPSPEED_BREAKDOWN

    def take(self, line: Line) -> None:
        """Reads the parts of a step; a line of micro-steps has other names."""
        if not line.is_whole:
            return  # a part may be missing at its end
        parts = {name: printed(text) for name, text in self._part.findall(line.text)}
        for names in self._whole:
            if all(name in parts for name in names):
                values, units, digits = zip(*(parts[name] for name in names), strict=True)
                # The least rounded digit of the sum, and as many digits as its largest part has.
                self.found.add(Sample(sum(values) / 1e3, sum(units) / 1e3, max(digits), "step", rank=line.rank))
                self.found.flags.add("sum-of-parts")
                return
