"""Knobs without a closed form: a sampler (TPE) proposes values, and whoever measures reports what they cost.

The caller asks for the next values, runs some steps and tells the seconds. A study lives in memory, or in a database in which
any later process can continue it. The values follow from the seed, the number of the trial and the costs told so far, so a study
that was interrupted asks for the same values as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

STARTUP_TRIALS = 10
"""Trials with random values before the sampler builds its first model of what is good."""
_KNOBS, _SEED, _ABOUT = "knobs", "seed", "about"
"""Attributes that a study keeps beside its trials."""


@dataclass(frozen=True, slots=True)
class Knob:
    """The range of one knob: whole or real numbers between two ends, or a list of choices."""

    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    is_whole: bool = True
    is_log: bool = False
    """Whether ratios of values matter rather than differences."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The values that one trial asks for."""

    number: int
    values: Mapping[str, Any]
    step_s: float | None = None
    """Seconds of a step with these values, as they were told; None before that."""


class StudyExistsError(Exception):
    """The storage already has a study of that name."""


class KnobStudy:
    """One search over knobs. Equal seeds and equal costs make it ask for equal values."""

    def __init__(self, study: Any) -> None:
        """Wraps an Optuna study that `start` made.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the study was made by something else.
        """
        self._study = study
        self.knobs = {
            name: Knob(**{**knob, "choices": None if knob["choices"] is None else tuple(knob["choices"])})
            for name, knob in study.user_attrs[_KNOBS].items()
        }
        if not self.knobs or any(k.choices is None and (k.low is None or k.high is None) for k in self.knobs.values()):
            raise ValueError("knobs need a range or choices")
        self.seed = int(study.user_attrs[_SEED])

    @classmethod
    def start(
        cls,
        knobs: Mapping[str, Knob],
        *,
        name: str,
        seed: int,
        storage: Any = None,
        first: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> KnobStudy:
        """A new study.

        Args:
            knobs: the ranges by name.
            name: the name under which the study can be resumed.
            seed: the seed of the sampler.
            storage: an Optuna storage; in memory by default.
            first: values for the first trial.
            about: JSON that is kept with the study.

        Raises:
            StudyExistsError: the storage already has a study of that name.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(study_name=name, storage=storage, direction="minimize")
        except optuna.exceptions.DuplicatedStudyError as error:
            raise StudyExistsError(name) from error
        study.set_user_attr(_KNOBS, {key: asdict(knob) for key, knob in knobs.items()})
        study.set_user_attr(_SEED, seed)
        study.set_user_attr(_ABOUT, dict(about or {}))
        if first is not None:
            study.enqueue_trial(dict(first))
        return cls(study)

    @classmethod
    def resume(cls, name: str, *, storage: Any) -> KnobStudy:
        """The stored study of that name.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: there is no such study, or something other than `start` made it.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.load_study(study_name=name, storage=storage))

    @property
    def about(self) -> dict[str, Any]:
        """The JSON that is kept with the study."""
        return dict(self._study.user_attrs[_ABOUT])

    def ask(self) -> Trial:
        """The next values to try."""
        from optuna.samplers import TPESampler

        # A sampler of its own for each trial, seeded by the number of that trial: one long-lived sampler would lose its state
        # with the process, and a resumed study would then ask for other values.
        trial = self._study.ask()
        own = np.random.SeedSequence([self.seed, trial.number]).generate_state(1)
        self._study.sampler = TPESampler(seed=int(own[0]), n_startup_trials=STARTUP_TRIALS)
        return Trial(trial.number, {name: _suggested(trial, name, knob) for name, knob in self.knobs.items()})

    def add(self, values: Mapping[str, Any], step_s: float | None, *, is_open: bool = False) -> None:
        """Takes over a trial that was asked for elsewhere.

        Args:
            values: one for every knob.
            step_s: its cost in seconds; None where it could not be run, or has not ended.
            is_open: whether it has not ended.
        """
        from optuna.trial import TrialState, create_trial

        state = TrialState.RUNNING if is_open else TrialState.PRUNED if step_s is None else TrialState.COMPLETE
        ranges = {name: _distribution(knob) for name, knob in self.knobs.items()}
        self._study.add_trial(
            create_trial(state=state, params=dict(values), distributions=ranges, value=None if is_open else step_s)
        )

    def tell(self, number: int, step_s: float | None) -> None:
        """Reports the cost of a trial; None where it could not be run, which counts as worse than every trial that could.

        Raises:
            ValueError: there is no such trial, or its cost has been told already.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            if step_s is None:
                self._study.tell(number, state=TrialState.PRUNED)
            else:
                self._study.tell(number, step_s)
        except UpdateFinishedTrialError as error:  # another process may have told it in between
            raise ValueError(f"the cost of trial {number} has been told already") from error

    def trials(self) -> list[Trial]:
        """All trials whose cost has been told, in the order in which they were asked."""
        return [
            Trial(trial.number, dict(trial.params), trial.value)
            for trial in self._study.get_trials(deepcopy=False)
            if trial.value is not None
        ]

    def counts(self) -> dict[str, int]:
        """How many trials are told, failed and open."""
        from optuna.trial import TrialState

        states = [trial.state for trial in self._study.get_trials(deepcopy=False)]
        names = {"told": TrialState.COMPLETE, "failed": TrialState.PRUNED, "open": TrialState.RUNNING}
        return {name: states.count(state) for name, state in names.items()}

    @property
    def best(self) -> Trial | None:
        """The cheapest trial so far; None before the first."""
        return min(self.trials(), key=lambda trial: (trial.step_s, trial.number), default=None)


def open_storage(url: str, *, engine_options: Mapping[str, Any] | None = None) -> Any:
    """Optuna's storage at an SQLAlchemy URL. Optuna makes its own tables, so it needs a schema or a file of its own.

    `engine_options` go to SQLAlchemy's `create_engine`.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, ImportError: the URL is wrong, or its driver or database is missing.
        ValueError, TypeError: an option in the URL cannot be read.
        RuntimeError: the tables belong to another version of Optuna.
    """
    from optuna.storages import RDBStorage

    return RDBStorage(url, engine_kwargs=dict(engine_options or {}))


TABLES = frozenset({"studies", "trials", "version_info"})
"""Some of the tables that Optuna makes, by which its storage is recognised."""


def study_names(storage: Any) -> list[str]:
    """Names of the studies in a storage, sorted."""
    from optuna.study import get_all_study_names

    return sorted(get_all_study_names(storage))


def storage_errors() -> tuple[type[Exception], ...]:
    """The exceptions that Optuna raises when its storage fails."""
    from optuna.exceptions import StorageInternalError

    return (StorageInternalError,)


def _distribution(knob: Knob) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if knob.choices is not None:
        return CategoricalDistribution(knob.choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.is_whole:
        return IntDistribution(int(knob.low), int(knob.high), log=knob.is_log)
    return FloatDistribution(knob.low, knob.high, log=knob.is_log)


def _suggested(trial: Any, name: str, knob: Knob) -> Any:
    if knob.choices is not None:
        choices: Sequence[Any] = knob.choices
        return trial.suggest_categorical(name, choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.is_whole:
        return trial.suggest_int(name, int(knob.low), int(knob.high), log=knob.is_log)
    return trial.suggest_float(name, knob.low, knob.high, log=knob.is_log)
