"""Which plan to measure next: ranked plans go in, trials are asked for and told, until the best is separated or a limit is spent.

The trials are those of an Optuna study. Several processes can work on one and none measures what another has: each trial names its
plan, and of two that name the same one the first counts. What is asked next follows from the plans, the seed and what was told, so that
a study which was interrupted goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.search.bayes import StudyExistsError
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome, Running, Standing, Stop, StopReason, Told, Used

_CANDIDATES, _SEED, _ABOUT, _LIMITS, _STOP = "candidates", "seed", "about", "limits", "stop"
_PLACE, _OUTCOME, _OWNER, _EXPECTED = "candidate", "outcome", "owner", "expected_s"
"""Attributes that a study and its trials keep."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A trial that the caller has taken and must tell or release."""

    number: int
    candidate: int
    """Place of the plan among the study's candidates."""
    expected_step_time_s: float
    """Median seconds that are believed of it before it runs, with what was learnt by then."""


class TuningStudy:
    """One search over ranked plans. Equal plans, seeds and outcomes make it ask for the same plans."""

    def __init__(self, name: str, *, storage: Any) -> None:
        """Wraps the study that `start` made.

        Raises:
            KeyError, TypeError, ValueError: there is no such study, or something other than `start` made it.
        """
        # Optuna takes a third of a second to load, which planning alone must not cost.
        import optuna

        # It tells of every study and trial on stderr, where the progress of the command stands.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name = name
        self._storage = optuna.storages.get_storage(storage)
        self._id = self._storage.get_study_id_from_name(name)
        kept = self._storage.get_study_user_attrs(self._id)
        self.candidates = tuple(Candidate.from_json(each) for each in kept[_CANDIDATES])
        self.seed, self.about = int(kept[_SEED]), dict(kept[_ABOUT])

    @classmethod
    def start(
        cls,
        candidates: Sequence[Candidate],
        *,
        name: str,
        storage: Any = None,
        seed: int = 0,
        about: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> TuningStudy:
        """A new study.

        Args:
            candidates: the plans to choose from, best first.
            name: the name under which it can be resumed.
            storage: an Optuna storage; in memory by default.
            seed: of the draws by which chances are estimated.
            about: JSON that is kept with the study.
            limits: what it may spend.

        Raises:
            StudyExistsError: the storage already has a study of that name.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        kept = optuna.storages.get_storage(storage)
        try:
            study_id = kept.create_new_study([optuna.study.StudyDirection.MINIMIZE], name)
        except optuna.exceptions.DuplicatedStudyError as error:
            raise StudyExistsError(name) from error
        # The plans come last: a study without them, whose process died here, is not taken for a whole one.
        for key, value in (
            (_SEED, seed), (_ABOUT, dict(about or {})), (_LIMITS, asdict(limits or Limits())),
            (_CANDIDATES, [each.to_json() for each in candidates]),
        ):  # fmt: skip
            kept.set_study_user_attr(study_id, key, value)
        return cls(name, storage=kept)

    @classmethod
    def resume(cls, name: str, *, storage: Any) -> TuningStudy:
        """The stored study of that name.

        Raises:
            KeyError, TypeError, ValueError: there is no such study, or something other than `start` made it.
        """
        return cls(name, storage=storage)

    def ask(self, *, owner: str = "") -> Ask | None:
        """Takes the plan that is worth measuring next; None where the tuning has stopped, or waits for trials that run.

        Args:
            owner: who runs it, kept with the trial until it is told.
        """
        while (standing := self.standing()).closed is None and (place := standing.choice) is not None:
            expected_s = float(standing.belief.median_s()[place])
            # Where another process took the plan in between, what is then best is looked for again.
            if (number := self._taken(place, owner, expected_s)) is not None:
                return Ask(number, place, expected_s)
        return None

    def take(self, candidate: int, *, owner: str = "", expected_s: float | None = None) -> Ask:
        """Takes the plan at one place, whatever is worth measuring: for whoever keeps the trials elsewhere, too.

        Raises:
            ValueError: there is no such plan, somebody runs it, or it was told already.
        """
        if not 0 <= candidate < len(self.candidates):
            raise ValueError(f"there is no plan at place {candidate}")
        expected_s = self.candidates[candidate].step_time_s if expected_s is None else expected_s
        number = self._taken(candidate, owner, expected_s)
        if number is None:
            raise ValueError(f"the plan at place {candidate} was taken or told already")
        return Ask(number, candidate, expected_s)

    def tell(self, number: int, outcome: Outcome) -> None:
        """Reports how a trial ended.

        Raises:
            ValueError: there is no such trial, it was given back, or it was told already.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        trial_id = self._id_of(number)
        try:
            # First what was found, then that it is finished: whoever dies in between has lost nothing, see `release`.
            self._storage.set_trial_user_attr(trial_id, _OUTCOME, asdict(outcome))
            self._finish(trial_id, outcome)
        except UpdateFinishedTrialError as error:
            raise ValueError(f"trial {number} was told already, or given back") from error

    def release(self, number: int) -> bool:
        """Gives a trial back whose process died, so that its plan is asked for again; False where it does not run.

        A trial whose outcome was stored before its process died is finished instead, and not measured twice.

        Raises:
            ValueError: there is no such trial.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        trial_id = self._id_of(number)
        trial = self._storage.get_trial(trial_id)
        if trial.state != TrialState.RUNNING:
            return False
        # Its process may still be alive, and only slow: whoever finishes the trial first decides, and the other one is told.
        try:
            if _OUTCOME in trial.user_attrs:
                self._finish(trial_id, Outcome(**trial.user_attrs[_OUTCOME]))
            else:
                self._storage.set_trial_state_values(trial_id, _void())
        except UpdateFinishedTrialError:  # its process was alive after all, and has told it
            return False
        return True

    def standing(self) -> Standing:
        """How the study stands now, as the storage has it."""
        from optuna.trial import TrialState

        told: list[tuple[Any, Told]] = []
        running = []
        for place, trial in self._trials().items():
            kept = trial.user_attrs
            if trial.state == TrialState.RUNNING:
                running.append(Running(trial.number, place, str(kept.get(_OWNER, ""))))
            elif trial.state.is_finished():
                ended = Told(trial.number, place, float(kept[_EXPECTED]), Outcome(**kept[_OUTCOME]))
                told.append(((trial.datetime_complete, trial.number), ended))
        stop = self._storage.get_study_user_attrs(self._id).get(_STOP)
        return Standing(
            candidates=self.candidates,
            told=tuple(each for _, each in sorted(told, key=lambda pair: pair[0])),
            running=tuple(running),
            limits=self.limits,
            seed=self.seed,
            by_hand=None if stop is None else Stop(**stop),
        )

    def running(self) -> tuple[Running, ...]:
        """Trials that were asked for and neither told nor released."""
        return tuple(self.standing().running)

    def told(self) -> tuple[Told, ...]:
        """Trials that ended, in the order in which they did."""
        return tuple(self.standing().told)

    def stop(self, reason: StopReason, message: str) -> None:
        """Ends the study: nothing more is asked for. What runs may still be told."""
        self._storage.set_study_user_attr(self._id, _STOP, {"reason": reason, "message": message})

    def go_on(self, limits: Limits) -> None:
        """Takes back that the study was stopped by hand, and sets what it may spend in all."""
        self._storage.set_study_user_attr(self._id, _STOP, None)
        self._storage.set_study_user_attr(self._id, _LIMITS, asdict(limits))

    @property
    def limits(self) -> Limits:
        return Limits(**self._storage.get_study_user_attrs(self._id)[_LIMITS])

    @property
    def stopped(self) -> StopReason | None:
        """Why nothing more is measured; None while a trial runs or will. `standing().stop` says it in a sentence."""
        stop = self.standing().stop
        return None if stop is None else stop.reason

    @property
    def used(self) -> Used:
        """What the trials that ended have cost."""
        return self.standing().used

    def _trials(self) -> dict[int, Any]:
        """The trial of each plan that was taken, by the place of the plan."""
        found: dict[int, Any] = {}
        for trial in sorted(self._storage.get_all_trials(self._id, deepcopy=False), key=lambda each: each.number):
            if trial.state != _void():
                found.setdefault(int(trial.user_attrs[_PLACE]), trial)
        return found

    def _taken(self, place: int, owner: str, expected_s: float) -> int | None:
        """Number of a new trial of the plan at a place; None where another process has taken it."""
        from optuna.trial import TrialState, create_trial

        attributes = {_PLACE: place, _OWNER: owner, _EXPECTED: expected_s}
        ticket = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        trial_id = self._storage.create_new_trial(self._id, template_trial=ticket)
        number = int(self._storage.get_trial_number_from_id(trial_id))
        # Every storage makes trials one after the other, so that whoever has the lower number for a plan is seen here. Waiting
        # trials, which Optuna would hand out itself, can be had by two processes at once on SQLite, which locks no rows.
        if self._trials()[place].number == number:
            return number
        self._storage.set_trial_state_values(trial_id, _void())
        return None

    def _id_of(self, number: int) -> int:
        try:
            return int(self._storage.get_trial_id_from_study_id_trial_number(self._id, number))
        except KeyError as error:
            raise ValueError(f"there is no trial {number}") from error

    def _finish(self, trial_id: int, outcome: Outcome) -> None:
        from optuna.trial import TrialState

        # Figures are read from the stored outcome; Optuna's own value is for its dashboards.
        if outcome.status == "ok" and outcome.step_time_s is not None:
            self._storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [outcome.step_time_s])
        else:
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)


def _void() -> Any:
    """State of a trial that does not count: given back, or a moment later than another one of the same plan."""
    from optuna.trial import TrialState

    return TrialState.PRUNED


def has_study(name: str, *, storage: Any) -> bool:
    """Whether the storage has a study of that name, whatever is in it."""
    try:
        storage.get_study_id_from_name(name)
    except KeyError:
        return False
    return True


def forget_study(name: str, *, storage: Any) -> bool:
    """Deletes a study with its trials; False where there is none of that name."""
    import optuna

    kept = optuna.storages.get_storage(storage)
    try:
        kept.delete_study(kept.get_study_id_from_name(name))
    except KeyError:
        return False
    return True
