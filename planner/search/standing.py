"""How a tuning stands: what its trials found, what is believed of the plans left, which one to measure next, and whether to stop.

It is worked out from the plans and the trials alone and knows no storage, so that whoever has both says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from planner.search.beliefs import Belief, Candidate, believed

Status = Literal["ok", "oom", "hang", "crash"]
StopReason = Literal["separated", "budget", "max-trials", "gpu-hours", "nothing-left", "cancelled", "failed"]
WORTH_FRACTION = 0.01
"""Share of a step that another plan must be faster to matter: two runs of one plan may differ by as much."""
SEPARATED_CHANCE = 0.10
"""Chance that any plan left is faster by `WORTH_FRACTION`, below which the best counts as separated."""
HOPELESS_FRACTION = 0.15
"""How much slower than the best the fastest early step of a trial must be for the trial to be ended early."""
_EARLY_STEPS = 2
IMPLAUSIBLE = 50.0
"""Times that a measurement may be off its prediction either way; beyond, it was of something else."""
PROCESSORS = "CPU"
"""What a trial record names as its GPU where it ran on none."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tuning may spend; None where there is no limit."""

    budget_s: float | None = None
    """Seconds of all trials together."""
    max_trials: int | None = None
    """Trials that are started, those that fail included."""
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    status: Status
    step_time_s: float | None = None
    """Median seconds of a step; None unless `status` is "ok"."""
    took_s: float = 0.0
    gpu_seconds: float = 0.0
    record: Mapping[str, Any] | None = None
    """The trial record in full, as JSON."""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Outcome:
        """The outcome that a trial record tells."""
        return cls(record["status"], record["step_time_s"], record["took_s"], record["gpu_seconds"], record)


@dataclass(frozen=True, slots=True)
class Told:
    """A trial that ended."""

    number: int
    """Number of the trial in its study."""
    candidate: int
    """Place of its plan among the candidates."""
    expected_step_time_s: float
    """Median seconds that were believed of it before it ran."""
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Running:
    """A trial that somebody has taken and not told."""

    number: int
    candidate: int
    owner: str


@dataclass(frozen=True, slots=True)
class Used:
    """What the trials that ended have cost."""

    seconds: float
    trials: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Why nothing more is measured."""

    reason: StopReason
    message: str


@dataclass(frozen=True)
class Standing:
    """A tuning at one moment."""

    candidates: Sequence[Candidate]
    told: Sequence[Told] = ()
    """Trials that ended, in the order in which they did."""
    running: Sequence[Running] = ()
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    by_hand: Stop | None = None
    """That somebody ended it."""

    @cached_property
    def measured_s(self) -> dict[int, float]:
        """Measured median seconds by the place of the plan, those left out that cannot be the plan's."""
        return {place: step_s for place, step_s in self._timed.items() if place not in self.implausible}

    @cached_property
    def implausible(self) -> dict[int, float]:
        """Measured over predicted seconds by place, of trials whose time cannot be their plan's: they are kept, and decide nothing."""
        # A clock that went wrong would else make a plan the best for ever. Processors take any number of times as long as GPUs.
        found = {}
        for each in self.told:
            machine = (each.outcome.record or {}).get("machine") or {}
            if each.candidate in self._timed and machine.get("gpu", PROCESSORS) != PROCESSORS:
                ratio = self._timed[each.candidate] / self.candidates[each.candidate].step_time_s
                if not 1.0 / IMPLAUSIBLE < ratio < IMPLAUSIBLE:
                    found[each.candidate] = ratio
        return found

    @cached_property
    def _timed(self) -> dict[int, float]:
        return {
            each.candidate: each.outcome.step_time_s
            for each in self.told
            if each.outcome.status == "ok" and each.outcome.step_time_s is not None
        }

    @property
    def best(self) -> int | None:
        """Place of the fastest measured plan, of equally fast ones the first; None before one was measured."""
        return min(self.measured_s, key=lambda place: (self.measured_s[place], place), default=None)

    @cached_property
    def used(self) -> Used:
        seconds = sum(each.outcome.took_s for each in self.told)
        return Used(seconds, len(self.told), sum(each.outcome.gpu_seconds for each in self.told) / 3600.0)

    @cached_property
    def belief(self) -> Belief:
        """What is believed of all plans after the trials that ended, those that run counted as they are expected to end."""
        return believed(self.candidates, self.measured_s, running=[each.candidate for each in self.running])

    @cached_property
    def left_out(self) -> dict[int, str]:
        """Plans that will not be measured because of how others ended, by place, each with the reason."""
        # A hang or a crash tells nothing of memory. Predictions of memory order plans of one framework well, so that what needs more
        # than a plan that failed would fail, too.
        failed = [each.candidate for each in self.told if each.outcome.status == "oom"]
        if not failed:
            return {}
        least = min(failed, key=lambda place: self.candidates[place].device_bytes)
        limit = self.candidates[least].device_bytes
        taken = self._taken
        return {
            place: f"predicted to need {each.device_bytes / _GIB:.1f} GiB; plan {self.candidates[least].rank} ran out of memory, "
            f"predicted to need {limit / _GIB:.1f} GiB"
            for place, each in enumerate(self.candidates)
            if place not in taken and each.device_bytes >= limit
        }

    @cached_property
    def left(self) -> list[int]:
        """Places of the plans that may still be measured."""
        out = self._taken | self.left_out.keys()
        return [place for place in range(len(self.candidates)) if place not in out]

    @cached_property
    def chance_of_better(self) -> float:
        """Chance that any plan left is faster than the best measured one by `WORTH_FRACTION`; 1 before one was measured."""
        if self.best is None:
            return 1.0
        # Any of them, and not each: thirty plans with a chance of 2 % each are worth another trial, unless they err alike.
        limit_s = (1.0 - WORTH_FRACTION) * self.measured_s[self.best]
        return self.belief.chance_of_faster(limit_s, among=self.left, seed=self.seed)

    def chances_of_better(self) -> dict[int, float]:
        """The same for each plan left by itself, by place, likeliest first."""
        if self.best is None:
            return {}
        limit_s = (1.0 - WORTH_FRACTION) * self.measured_s[self.best]
        each = {place: self.belief.chance_of_one(limit_s, place) for place in self.left}
        return dict(sorted(each.items(), key=lambda item: (-item[1], item[0])))

    @property
    def choice(self) -> int | None:
        """Place of the plan to measure next: the analytic first, then whichever is expected to gain most. None where none is left."""
        if not self.left:
            return None
        if self.best is not None:
            best_s = self.measured_s[self.best]
        elif self.running:
            best_s = float(min(self.belief.median_s()[each.candidate] for each in self.running))
        else:
            # Nothing is known: the analytic order, which is that of the medians.
            return self.left[0]
        gains = self.belief.expected_gain(best_s)
        # Of equal gains, such as none at all, the better rank.
        return max(self.left, key=lambda place: (round(float(gains[place]), 9), -place))

    @property
    def closed(self) -> Stop | None:
        """Why nothing more is asked for; None while something is. Trials that run may still end."""
        # What somebody decided counts more than what follows from figures.
        if self.by_hand is not None:
            return self.by_hand
        if spent := self._spent():
            return spent
        if not self.left:
            return None if self.running else Stop("nothing-left", self._nothing_left())
        if self.best is not None and self.chance_of_better < SEPARATED_CHANCE:
            return Stop("separated", self._separated())
        return None

    @property
    def stop(self) -> Stop | None:
        """Why the tuning has ended; None while a trial runs or will."""
        return None if self.running else self.closed

    @property
    def hopeless_above_s(self) -> float | None:
        """Seconds beyond which each early step of a trial must lie for it to be ended early; None before a plan was measured."""
        return None if self.best is None else (1.0 + HOPELESS_FRACTION) * self.measured_s[self.best]

    def is_hopeless(self, step_s: Sequence[float]) -> bool:
        """Whether a running trial may be ended early: each of its steps so far is far slower than the best plan's.

        Args:
            step_s: seconds of its steps, those of the warm-up left out.
        """
        return are_hopeless(step_s, above_s=self.hopeless_above_s)

    @property
    def _taken(self) -> set[int]:
        """Places of the plans that were or are being measured."""
        return {each.candidate for each in self.told} | {each.candidate for each in self.running}

    def _spent(self) -> Stop | None:
        limits, used = self.limits, self.used
        # Trials that run count here, or several processes would together start more than are allowed.
        if limits.max_trials is not None and used.trials + len(self.running) >= limits.max_trials:
            ran = "1 trial was" if limits.max_trials == 1 else f"{limits.max_trials} trials were"
            return Stop("max-trials", f"{ran} run, as many as were allowed.")
        if limits.gpu_hours is not None and used.gpu_hours >= limits.gpu_hours:
            return Stop("gpu-hours", f"{used.gpu_hours:.3g} of {limits.gpu_hours:g} GPU-hours are spent.")
        # A trial that the end of the budget would cut off tells nothing, so the last one must have room for the longest so far.
        longest_s = max((each.outcome.took_s for each in self.told), default=0.0)
        if limits.budget_s is not None and used.seconds + longest_s >= limits.budget_s:
            told = f"{used.seconds:.0f} of {limits.budget_s:.0f} s are spent, and the longest trial took {longest_s:.0f} s."
            return Stop("budget", told)
        return None

    def _nothing_left(self) -> str:
        ended = dict.fromkeys(("ok", "oom", "hang", "crash"), 0)
        for each in self.told:
            ended[each.outcome.status] += 1
        counted = ", ".join(f"{count} {status}" for status, count in ended.items() if count) or "no trials"
        left_out = (
            f"; {len(self.left_out)} were left out because they need more memory than one that failed"
            if self.left_out
            else ""
        )
        return f"All plans were tried ({counted}{left_out})."

    @property
    def any_left(self) -> str:
        """The plans that may still be tried, as a sentence names them."""
        count = len(self.left)
        return "the plan left" if count == 1 else f"any of the {count} plans left"

    def _separated(self) -> str:
        assert self.best is not None
        plan, chance = self.candidates[self.best], self.chance_of_better
        told = f"{chance:.1%}" if chance >= 0.001 else "less than 0.1%"
        return (
            f"The chance that {self.any_left} is more than {WORTH_FRACTION:.0%} faster than plan {plan.rank} "
            f"({self.measured_s[self.best]:.4g} s) is {told}."
        )


def are_hopeless(step_s: Sequence[float], *, above_s: float | None) -> bool:
    """Whether these seconds of a trial's first steps all lie above `above_s`, and are enough to tell; None is above all."""
    return above_s is not None and len(step_s) >= _EARLY_STEPS and min(step_s) > above_s
