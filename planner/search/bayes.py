"""Knobs without a closed form, searched by asking for values and telling what they cost: TPE, seeded, storable.

Whoever measures asks for the next values, runs some steps and tells the seconds. A study lives in memory, or in a database
whose URL is given, where any later process goes on with it. Values follow from the seed, the number of the trial and what
was told before, so a study that was interrupted asks the same as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

STARTUP_TRIALS = 10
"""Random values before the first model of what is good."""
_KNOBS, _SEED, _ABOUT = "knobs", "seed", "about"
"""What a study remembers beside its trials."""


@dataclass(frozen=True, slots=True)
class Knob:
    """Range of one knob: whole numbers or real ones between two ends, or a list of choices."""

    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None
    is_whole: bool = True
    is_log: bool = False
    """Whether factors rather than differences matter."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Values that were asked for, by number."""

    number: int
    values: Mapping[str, Any]
    step_s: float | None = None
    """What they were told to cost."""


class StudyExistsError(Exception):
    """The storage has a study of that name."""


class KnobStudy:
    """One search over knobs; equal seeds and equal costs ask for equal values."""

    def __init__(self, study: Any) -> None:
        """An Optuna study that `start` made.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is another one.
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
            knobs: ranges by name.
            name: by which the study is found again.
            seed: of the sampler.
            storage: an Optuna storage; in memory without.
            first: values that are asked before any others.
            about: JSON that is kept with the study.

        Raises:
            StudyExistsError: the storage has a study of that name.
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
            KeyError, TypeError, ValueError, AttributeError: there is none, or it is not one that `start` made.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return cls(optuna.load_study(study_name=name, storage=storage))

    @property
    def about(self) -> dict[str, Any]:
        """What was kept with the study."""
        return dict(self._study.user_attrs[_ABOUT])

    def ask(self) -> Trial:
        """The next values to try."""
        from optuna.samplers import TPESampler

        trial = self._study.ask()
        own = np.random.SeedSequence([self.seed, trial.number]).generate_state(1)
        self._study.sampler = TPESampler(seed=int(own[0]), n_startup_trials=STARTUP_TRIALS)
        return Trial(trial.number, {name: _suggested(trial, name, knob) for name, knob in self.knobs.items()})

    def tell(self, number: int, step_s: float | None) -> None:
        """What they cost; None where they could not be run, which counts as worse than all that could.

        Raises:
            ValueError: there is no such trial, or its cost was told before.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            if step_s is None:
                self._study.tell(number, state=TrialState.PRUNED)
            else:
                self._study.tell(number, step_s)
        except UpdateFinishedTrialError as error:  # another process told it in between
            raise ValueError(f"trial {number} was told before") from error

    def trials(self) -> list[Trial]:
        """Every trial whose cost was told, in the order they were asked."""
        return [
            Trial(trial.number, dict(trial.params), trial.value)
            for trial in self._study.get_trials(deepcopy=False)
            if trial.value is not None
        ]

    def counts(self) -> dict[str, int]:
        """Trials by state: told, failed, open."""
        from optuna.trial import TrialState

        states = [trial.state for trial in self._study.get_trials(deepcopy=False)]
        names = {"told": TrialState.COMPLETE, "failed": TrialState.PRUNED, "open": TrialState.RUNNING}
        return {name: states.count(state) for name, state in names.items()}

    @property
    def best(self) -> Trial | None:
        """The cheapest trial told so far."""
        return min(self.trials(), key=lambda trial: (trial.step_s, trial.number), default=None)


def open_storage(url: str) -> Any:
    """Optuna's storage at SQLAlchemy's URL. Its tables are Optuna's own, so give it a schema or a file of its own.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, ImportError: the URL, its driver or its database are not there.
        ValueError, TypeError: an option of the URL cannot be read.
        RuntimeError: its tables are of another version of Optuna.
    """
    from optuna.storages import RDBStorage

    return RDBStorage(url)


TABLES = frozenset({"studies", "trials", "version_info"})
"""Some of what Optuna keeps."""


def study_names(storage: Any) -> list[str]:
    """Names of the studies in a storage, sorted."""
    from optuna.study import get_all_study_names

    return sorted(get_all_study_names(storage))


def storage_errors() -> tuple[type[Exception], ...]:
    """What Optuna raises where its storage fails."""
    from optuna.exceptions import StorageInternalError

    return (StorageInternalError,)


def _suggested(trial: Any, name: str, knob: Knob) -> Any:
    if knob.choices is not None:
        choices: Sequence[Any] = knob.choices
        return trial.suggest_categorical(name, choices)
    assert knob.low is not None
    assert knob.high is not None
    if knob.is_whole:
        return trial.suggest_int(name, int(knob.low), int(knob.high), log=knob.is_log)
    return trial.suggest_float(name, knob.low, knob.high, log=knob.is_log)
