"""Knobs without a closed form, searched by asking for values and telling what they cost: TPE, seeded, storable.

Bucket sizes, prefetch depth and shares of offload have no formula here; whoever measures them (live trials) asks for the
next values and tells the seconds. Studies live in memory, or in a database whose URL is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STARTUP_TRIALS = 10
"""Random values before the first model of what is good."""


@dataclass(frozen=True, slots=True)
class Knob:
    """Range of one knob: whole numbers or real ones between two ends, or a list of choices."""

    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    is_whole: bool = True
    is_log: bool = False
    """Whether factors rather than differences matter."""


KNOBS: Mapping[str, Knob] = {
    "bucket_elements": Knob(low=1_000_000, high=1_000_000_000, is_log=True),
    "prefetch_depth": Knob(low=0, high=4),
    "offload_optimizer_fraction": Knob(low=0.0, high=1.0, is_whole=False),
}
"""The knobs that the search itself leaves at their defaults."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Values to try, with the number to tell their cost by."""

    number: int
    values: Mapping[str, Any]


class KnobStudy:
    """One search over knobs; equal seeds and equal costs ask for equal values."""

    def __init__(self, knobs: Mapping[str, Knob], *, name: str, seed: int, storage_url: str | None = None) -> None:
        """`storage_url` is SQLAlchemy's; Optuna keeps tables of its own there, so give it a schema or a file of its own."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.knobs = dict(knobs)
        storage = None if storage_url is None else optuna.storages.RDBStorage(storage_url)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        self._study = optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="minimize", load_if_exists=True
        )
        self._open: dict[int, Any] = {}

    def ask(self) -> Asked:
        """The next values to try."""
        trial = self._study.ask()
        values = {name: _suggested(trial, name, knob) for name, knob in self.knobs.items()}
        self._open[trial.number] = trial
        return Asked(trial.number, values)

    def tell(self, number: int, step_s: float | None) -> None:
        """What they cost; None where they could not be run."""
        trial = self._open.pop(number)
        if step_s is None:
            from optuna.trial import TrialState

            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, step_s)

    @property
    def best(self) -> tuple[Mapping[str, Any], float] | None:
        """The best values told so far and their cost."""
        done = [trial for trial in self._study.get_trials(deepcopy=False) if trial.value is not None]
        if not done:
            return None
        best = min(done, key=lambda trial: (trial.value, trial.number))
        assert best.value is not None
        return best.params, best.value

    @property
    def told(self) -> int:
        """Trials with a cost, those of earlier sessions included."""
        return sum(trial.value is not None for trial in self._study.get_trials(deepcopy=False))


def _suggested(trial: Any, name: str, knob: Knob) -> Any:
    if knob.choices is not None:
        choices: Sequence[Any] = knob.choices
        return trial.suggest_categorical(name, choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.is_whole:
        return trial.suggest_int(name, int(knob.low), int(knob.high), log=knob.is_log)
    return trial.suggest_float(name, knob.low, knob.high, log=knob.is_log)
