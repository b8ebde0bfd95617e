"""What transformers' Trainer leaves: `trainer_state.json` and the dictionaries that it prints; axolotl prints the same with memory.

`train_runtime` is of the whole run so far (huggingface/transformers, src/transformers/trainer_utils.py, `speed_metrics`), start-up,
evaluations and checkpoints included. With `include_num_input_tokens_seen` every log entry has one (trainer.py, `Trainer.log`), so that
differences between entries are means of the intervals between them. Otherwise only the last entry has one, and it is cumulative.
`trainer_state.json` keeps four decimals and the number of the step; what is printed has four significant digits and no step
(trainer_callback.py, `PrinterCallback`), so that steps are counted by the tokens seen. axolotl adds the allocator's peaks of each rank
in GiB with two decimals (axolotl-ai-cloud/axolotl, src/axolotl/core/trainers/base.py); its tokens a second are *trained* tokens and tell
nothing about a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

from cost_models.frameworks.log_formats import AXOLOTL, TRAINER_STATE, TRANSFORMERS, LogFormat
from cost_models.units import GIB
from profiler.logs.reading import Counter, Line, LineReader, RunFacts, Sample
from profiler.logs.text import NUMBER, printed

_PEAKS: Mapping[str, Counter] = {
    "memory/max_allocated (GiB)": "allocated", "memory/device_reserved (GiB)": "reserved",
    "memory/max_mem_allocated(gib)": "allocated", "memory/device_mem_reserved(gib)": "reserved",
}  # fmt: skip
_STATE_UNIT_S = 1e-4
"""Seconds to which `train_runtime` is rounded."""


_LARGEST = 1e15
"""Number of steps, seconds or GiB that no run has."""


class TrainerReader(LineReader):
    """Dictionaries that the Trainer prints, behind a progress bar or on lines of their own."""

    marks = ("'train_runtime':", '"train_runtime":')
    _dictionary = re.compile(r"\{['\"][^{}]{1,4000}\}")
    # Numbers are quoted or not, by the release; what is no number is none of ours.
    _number = re.compile(rf"['\"]([\w/ ()]{{1,60}})['\"]: ['\"]?({NUMBER})['\"]?(?=[,}}])")

    def __init__(self, facts: RunFacts) -> None:
        super().__init__()
        self._facts = facts
        self._is_axolotl = False
        self._before: tuple[float, float, float] | None = None
        """Seconds, their unit and the tokens seen at the entry before."""
        self._counted = 0

    @property
    def format(self) -> LogFormat:
        return AXOLOTL if self._is_axolotl else TRANSFORMERS

    def take(self, line: Line) -> None:
        """Reads one entry."""
        for match in self._dictionary.finditer(line.text):
            self._take_entry(dict(self._number.findall(match[0])), line.rank)

    def _take_entry(self, entry: Mapping[str, str], rank: int | None) -> None:
        for name, counter in _PEAKS.items():
            if name in entry:
                self._is_axolotl = True
                self.found.add_peak(counter, printed(entry[name])[0] * GIB, rank)
        # Only the last entry of a run has rates of steps; with them it is about the whole run, whatever else it holds.
        if "train_steps_per_second" in entry:
            self._take_whole_run(entry, rank)
        elif {"train_runtime", "num_input_tokens_seen"} <= entry.keys():
            self._take_interval(entry, rank)

    def _take_interval(self, entry: Mapping[str, str], rank: int | None) -> None:
        (runtime_s, unit_s, _), (seen, _, _) = printed(entry["train_runtime"]), printed(entry["num_input_tokens_seen"])
        before, self._before = self._before, (runtime_s, unit_s, seen)
        if before is None or seen <= before[2] or runtime_s < before[0]:
            return  # the first entry, or another run in the same file
        steps = round((seen - before[2]) / self._facts.tokens)
        # Whole steps of full sequences, or it cannot be said how many steps there were.
        if steps < 1 or abs((seen - before[2]) / self._facts.tokens - steps) > 0.01 * steps:
            self.found.flags.add("different-batch")
            return
        self._counted += steps
        seconds, resolution_s = (runtime_s - before[0]) / steps, max(unit_s, before[1]) / steps
        self.found.add(
            Sample(
                seconds, resolution_s, _digits(seconds, resolution_s), "interval_mean", step=self._counted, rank=rank, covers=steps
            )
        )  # fmt: skip

    def _take_whole_run(self, entry: Mapping[str, str], rank: int | None) -> None:
        steps_per_s, unit, digits = printed(entry["train_steps_per_second"])
        if steps_per_s <= 0.0:
            return
        seconds, fraction = 1.0 / steps_per_s, unit / steps_per_s
        # Samples a second are more than steps a second, and are rounded to three decimals as well.
        if "train_samples_per_second" in entry:
            samples_per_s, sample_unit, sample_digits = printed(entry["train_samples_per_second"])
            if samples_per_s > 0.0:
                by_samples = self._facts.global_batch_size / samples_per_s
                if abs(by_samples - seconds) <= fraction * seconds and sample_unit / samples_per_s < fraction:
                    seconds, fraction, digits = by_samples, sample_unit / samples_per_s, sample_digits
        runtime_s = printed(entry["train_runtime"])[0] if "train_runtime" in entry else 0.0
        covers = max(1, round(runtime_s / seconds))
        self.found.add(Sample(seconds, fraction * seconds, digits, "cumulative", rank=rank, covers=covers))

    def finish(self) -> None:
        """Means of intervals tell more than that of the run."""
        if any(sample.kind != "cumulative" for sample in self.found.samples):
            self.found.samples = [sample for sample in self.found.samples if sample.kind != "cumulative"]


class StateReader(LineReader):
    """The log history of a `trainer_state.json`."""

    @property
    def format(self) -> LogFormat:
        return TRAINER_STATE

    def take(self, line: Line) -> None:
        """A state is one document; see `take_state`."""

    def take_state(self, history: Sequence[Any]) -> None:
        """Reads a log history, whose entries are objects; others are left out."""
        timed: list[tuple[int, float]] = []
        whole: list[tuple[int, float]] = []
        for entry in history:
            if not isinstance(entry, Mapping):
                continue
            for name, counter in _PEAKS.items():
                if _is_number(entry.get(name)):
                    self.found.add_peak(counter, float(entry[name]) * GIB, None)
            step, runtime_s = entry.get("step"), entry.get("train_runtime")
            if type(step) is not int or abs(step) >= _LARGEST or not _is_number(runtime_s):
                continue
            (whole if "train_steps_per_second" in entry else timed).append((step, float(runtime_s)))
        for (step_before, before_s), (step, runtime_s) in pairwise(timed):
            # Evaluations and checkpoints between two entries count as steps do, which the median forgives unless they are everywhere.
            # A resumed run counts its seconds from its own start.
            if step > step_before and runtime_s > before_s:
                steps = step - step_before
                seconds, unit_s = (runtime_s - before_s) / steps, _STATE_UNIT_S / steps
                self.found.add(
                    Sample(seconds, unit_s, _digits(seconds, unit_s), "interval_mean", step=step, covers=steps)
                )
        if not self.found.samples and whole:
            step, runtime_s = whole[-1]
            if step > 0:
                seconds, unit_s = runtime_s / step, _STATE_UNIT_S / step
                self.found.add(Sample(seconds, unit_s, _digits(seconds, unit_s), "cumulative", step=step, covers=step))


def _is_number(value: object) -> TypeGuard[int | float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Whole numbers of JSON may be larger than any float.
    return is_number and abs(value) < _LARGEST  # type: ignore[arg-type]


def _digits(seconds: float, resolution_s: float) -> int:
    """Significant digits of a number that is known to this resolution."""
    return max(1, len(f"{seconds / resolution_s:.0f}"))
