"""Lines of nanotron (huggingface/nanotron, src/nanotron/trainer.py, `train_step_logs`, and src/nanotron/logging/base.py).

Times are of the step before the line and printed with three significant digits and a suffix for thousands. Memory is printed by
`log_memory` on rank 0, in MiB, whenever nanotron wants to know it; each print clears the peaks, so that the largest one counts.
"""

from __future__ import annotations

import re

from cost_models.frameworks.log_formats import NANOTRON, LogFormat
from profiler.logs.reading import Line, LineReader, Sample
from profiler.logs.text import NUMBER, printed

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MIB = float(2**20)


class NanotronReader(LineReader):
    """Steps and peaks that nanotron logs."""

    marks = ("time_per_iteration_ms:", "Peak allocated")
    # Some settings print CPU memory and timers behind these on the same line.
    _step = re.compile(r"\biteration:\s*(\d{1,15})\s*/\s*\d+\s*\|")
    _time = re.compile(rf"time_per_iteration_ms:\s*({NUMBER})([KMBT]?)\s*(?=\||$)")
    _peaks = re.compile(r"Peak allocated:?\s*([\d.]+)MiB\.?\s*Peak reserved:?\s*([\d.]+)MiB")

    @property
    def format(self) -> LogFormat:
        return NANOTRON

    def take(self, line: Line) -> None:
        """Reads a step, or the peaks since the print before."""
        if match := self._peaks.search(line.text):
            self.found.add_peak("allocated", printed(match[1])[0] * _MIB, 0)
            self.found.add_peak("reserved", printed(match[2])[0] * _MIB, 0)
            return
        step = self._step.search(line.text)
        match = self._time.search(line.text, step.end()) if step else None
        if step and match:
            scale = _SUFFIXES[match[2]] / 1e3
            value, _, _ = printed(match[1])
            # Trailing zeros are dropped, so that 1.2K has three digits, too.
            unit = 10.0 ** (_exponent(value) - 2)
            self.found.add(Sample(value * scale, unit * scale, 3, "step", step=int(step[1]), rank=line.rank))


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])
