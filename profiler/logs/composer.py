"""Blocks of lines that composer's console logger prints, which llm-foundry trains with.

A block begins with where the run is, such as `[batch=20/100]:`, and has one metric a line (mosaicml/composer,
composer/loggers/console_logger.py) with four decimals (composer/loggers/logger.py, `format_log_data_value`). Rates are of a rolling
window of a hundred batches by default (composer/callbacks/speed_monitor.py). Memory is that of the rank that prints, in gigabytes of
1e9 bytes (composer/callbacks/memory_monitor.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cost_models.frameworks.log_formats import COMPOSER, LogFormat
from profiler.logs.reading import Counter, Line, LineReader, RunFacts
from profiler.logs.text import NUMBER, printed
from profiler.logs.throughput import of_rate

_GIGA = 1e9
_PEAKS: Mapping[str, Counter] = {"peak_allocated_mem": "allocated", "peak_reserved_mem": "reserved"}


class ComposerReader(LineReader):
    """Blocks of metrics."""

    marks = ("[batch=", "Train throughput/", "Train memory/")
    # A head of evaluation has "Eval batch" in it, and its metrics begin with Eval.
    _head = re.compile(r"\[batch=(\d{1,15})(?:/\d+)?\]:?\s*$")
    _metric = re.compile(rf"^\s+Train (throughput|memory)/(\w+): ({NUMBER})\s*$")

    def __init__(self, facts: RunFacts) -> None:
        super().__init__()
        self._facts = facts
        self._step: int | None = None
        self._batches: str | None = None

    @property
    def format(self) -> LogFormat:
        return COMPOSER

    def take(self, line: Line) -> None:
        """Reads a head or a metric. The rates of batches and of samples come in this order, one below the other."""
        if head := self._head.search(line.text):
            # A block without a rate of samples is complete only when the next one begins.
            self._close(line)
            self._step = int(head[1])
            return
        match = self._metric.match(line.text) if line.is_whole else None
        if not match:
            return
        group, name, text = match.groups()
        if group == "memory" and name in _PEAKS:
            self.found.add_peak(_PEAKS[name], printed(text)[0] * _GIGA, line.rank)
        elif name == "batches_per_sec":
            self._batches = text
        elif name == "samples_per_sec" and self._batches is not None:
            self._add(self._batches, text, line.rank)
            self._batches = None

    def _add(self, batches: str, samples: str | None, rank: int | None) -> None:
        shown = of_rate(1.0, batches, kind="rolling", step=self._step, rank=rank)
        finer = samples and of_rate(self._facts.global_batch_size, samples, kind="rolling", step=self._step, rank=rank)
        # Four decimals of a rate below one a second are few digits; that of samples has more, where the batch is the row's.
        if shown and finer and abs(finer.seconds - shown.seconds) <= max(shown.resolution_s, 0.01 * shown.seconds):
            shown = min(shown, finer, key=lambda each: each.resolution_s)
        if shown:
            self.found.add(shown)

    def _close(self, line: Line) -> None:
        if self._batches is not None:
            self._add(self._batches, None, line.rank)
            self._batches = None

    def finish(self) -> None:
        """Takes what stood last, where no rate of samples followed it."""
        if self._batches is not None:
            self._add(self._batches, None, None)
