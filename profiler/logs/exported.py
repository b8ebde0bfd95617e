"""Lines of the launches that `meshwright export` writes: one for every step, with the largest values among all ranks.

Some scripts print JSON with seconds and bytes, those around Hugging Face's modules a sentence with four decimals
(`planner/export`). Both are of one step, from a synchronised start to a synchronised end.
"""

from __future__ import annotations

import json
import re

from cost_models.frameworks.log_formats import EXPORTED, LogFormat
from cost_models.units import GIB
from profiler.logs.reading import ALL_RANKS, Line, LineReader, Sample
from profiler.logs.text import NUMBER, printed


class ExportedReader(LineReader):
    """Steps that exported launches print."""

    marks = ('"seconds":', "peak allocated ")
    _sentence = re.compile(
        rf"\bstep (\d{{1,15}}): ({NUMBER}) s, peak allocated ({NUMBER}) GiB, peak reserved ({NUMBER}) GiB(?=\s|$)"
    )
    _object = re.compile(r"\{[^{}]{1,1000}\}")

    @property
    def format(self) -> LogFormat:
        return EXPORTED

    def take(self, line: Line) -> None:
        """Reads one step."""
        if match := self._sentence.search(line.text):
            value, unit, digits = printed(match[2])
            self.found.add(Sample(value, unit, digits, "step", step=int(match[1]), rank=ALL_RANKS))
            self.found.add_peak("allocated", printed(match[3])[0] * GIB, ALL_RANKS)
            self.found.add_peak("reserved", printed(match[4])[0] * GIB, ALL_RANKS)
        elif match := self._object.search(line.text):
            self._take_object(match[0])

    def _take_object(self, text: str) -> None:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return
        # Other programs print JSON too; only numbers of the right kind are a step of ours.
        step, seconds = document.get("step"), document.get("seconds")
        if type(step) is not int or type(seconds) is not float:
            return
        # The clock's own resolution is far finer than any step.
        self.found.add(Sample(seconds, 1e-6, 7, "step", step=step, rank=ALL_RANKS))
        for counter in ("allocated", "reserved"):
            peak = document.get(f"peak_{counter}_bytes")
            if type(peak) is int:
                self.found.add_peak(counter, float(min(peak, 2**60)), ALL_RANKS)
