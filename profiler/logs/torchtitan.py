"""Lines of torchtitan (pytorch/torchtitan, torchtitan/components/metrics.py, `MetricsProcessor.log`).

`tps` is the mean rate since the line before: the tokens of one data-parallel rank, divided by the ranks that share them (tensor,
pipeline and context parallelism). All ranks of the run together therefore handle `tps` times their number. It is rounded to whole
tokens and printed with commas between thousands. `memory` is the largest *reserved* peak of the rank that prints, in GiB. Lines of
validation look the same but for the word before `step`.
"""

from __future__ import annotations

import re

from cost_models.frameworks.log_formats import TORCHTITAN, LogFormat
from cost_models.units import GIB
from profiler.logs.reading import Line, LineReader, RunFacts
from profiler.logs.text import NUMBER, printed
from profiler.logs.throughput import of_rate


class TorchtitanReader(LineReader):
    """Steps that torchtitan logs; releases before 2025 call `tps` `wps`."""

    marks = ("tps: ", "wps: ")
    # One after the other and not in one expression, whose time would grow with the cube of a line that somebody has made up.
    _step = re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s")
    _memory = re.compile(rf"\bmemory:\s*({NUMBER})GiB")
    _rate = re.compile(rf"\b[tw]ps:\s*({NUMBER})(?=\s|$)")

    def __init__(self, facts: RunFacts) -> None:
        super().__init__()
        self._facts = facts

    @property
    def format(self) -> LogFormat:
        return TORCHTITAN

    def take(self, line: Line) -> None:
        """Reads the mean rate and the peak since the line before."""
        step = self._step.search(line.text)
        memory = self._memory.search(line.text, step.end()) if step else None
        rate = self._rate.search(line.text, memory.end()) if memory else None
        if not (step and memory and rate):
            return
        tokens_of_gpu = self._facts.tokens / self._facts.num_gpus
        sample = of_rate(
            tokens_of_gpu, rate[1], kind="interval_mean", step=int(step[1]), rank=line.rank, has_thousands=True
        )
        if sample:
            self.found.add(sample)
        self.found.add_peak("reserved", printed(memory[1])[0] * GIB, line.rank)
