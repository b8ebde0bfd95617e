"""The thin front of meshwright: `plan`, `evaluate` and the tuning of knobs for Python programs, and the version.

Nothing heavy is imported before a function is called, and no user needs to know the packages behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.knobs.tuning import KnobTuning
    from planner.search.progress import Progress

# The one home of the version: pyproject.toml reads it from here, and everything else from the installed package.
__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "export", "import_config", "judge", "plan", "resume_knobs", "start_knobs"]


def plan(
    request: Mapping[str, Any],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The plan response for a plan request, both as the JSON documents of the HTTP interface.

    Args:
        request: `{"model": ..., "cluster": ..., "training": ...}` and optional fields; `cluster.calibration` may be a path.
        on_progress: called now and then while the search runs.
        should_stop: asked now and then; when it returns true, the search ends with the best plans so far.

    Raises:
        meshwright.errors.InvalidInputError: the request breaks a rule; `problems` lists every one.
    """
    from planner.plan import plan as build_plan

    return build_plan(request, allow_files=True, on_progress=on_progress, should_stop=should_stop)


def evaluate(rows: Iterable[str | Mapping[str, Any]], *, calibration: str | None = None) -> Iterator[dict[str, Any]]:
    """One evaluation per row, in order. A bad row gets the verdict "invalid" with its reasons.

    Args:
        rows: documents `{"id": ..., "model": ..., "cluster": ..., "training": ..., "strategy": ...}`, or their JSON texts.
        calibration: name or file of a calibration that replaces every row's own.
    """
    from planner.rows import evaluate_rows

    return evaluate_rows(rows, calibration=calibration, allow_files=True)


def export(
    response: Mapping[str, Any], framework: str, *, plan: int = 1, framework_version: str | None = None
) -> dict[str, str]:
    """The launch files of one ranked plan: texts by path.

    Args:
        response: what `plan` returned.
        framework: the target, such as "megatron", "accelerate" or "pytorch".
        plan: rank of the plan.
        framework_version: the target's release; by default the request's, or the newest known one of a front end.

    Raises:
        meshwright.errors.NotExpressibleError: the target cannot say the plan; `context` names the field and the nearest plan that
            it can say.
    """
    from planner.export.export import export as launch_files

    files = launch_files(response, framework, plan=plan, framework_version=framework_version, allow_files=True)
    return {file.path: file.content for file in files}


def import_config(
    files: Mapping[str, str],
    *,
    megatron_args: str | None = None,
    cluster: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    strategy: Mapping[str, Any] | None = None,
    framework: str | None = None,
) -> dict[str, Any]:
    """An existing configuration as `{"row", "format", "unknown", "missing", "notes"}`. Nothing in it is executed.

    Args:
        files: texts by path; endings tell what they hold.
        megatron_args: arguments of Megatron-LM as one text.
        cluster: where it runs; without it the row is not complete.
        model: the model, where the files do not say it.
        training: fields of the training that take the place of the files'.
        strategy: fields of the strategy that take the place of the files'.
        framework: whose files these are, where it cannot be told.

    Raises:
        meshwright.errors.InvalidInputError: a file cannot be read, or the files contradict each other; with file and line.
    """
    from planner.export.import_config import import_config as read
    from planner.export.imported_row import Overrides
    from planner.export.settings import InputFile

    given = Overrides(model, cluster, training or {}, strategy or {})
    texts = [InputFile(path, content) for path, content in files.items()]
    return read(texts, megatron_args=megatron_args, given=given, framework=framework, allow_files=True).document()


def judge(
    files: Mapping[str, str],
    *,
    cluster: Mapping[str, Any],
    megatron_args: str | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    strategy: Mapping[str, Any] | None = None,
    framework: str | None = None,
) -> dict[str, Any]:
    """An existing configuration beside the best plan for the same job, with what each changed line gains, and a diff of the files.

    Arguments are those of `import_config`.

    Raises:
        meshwright.errors.InvalidInputError: a file cannot be read, or something that has to be known is missing.
    """
    from planner.export.imported_row import Overrides
    from planner.export.judge.judge import judge as judged
    from planner.export.settings import InputFile

    given = Overrides(model, cluster, training or {}, strategy or {})
    texts = [InputFile(path, content) for path, content in files.items()]
    return judged(texts, megatron_args=megatron_args, given=given, framework=framework, allow_files=True)


def start_knobs(
    response: Mapping[str, Any], *, storage: str, plan: int = 1, name: str | None = None, seed: int = 0
) -> KnobTuning:
    """A tuning of the run-time knobs of one plan: `ask` for values, run them, `tell` the seconds, and read the `best`.

    Args:
        response: what `plan` returned.
        storage: SQLAlchemy URL of the database that keeps it, such as "sqlite:///knobs.db".
        plan: rank of the plan.
        name: name by which it is resumed; by default made of the request's digest and the rank.
        seed: with the same seed and the same measured times, the same values are proposed.
    """
    from app.knobs.tuning import KnobTuning

    return KnobTuning.start(response, storage=storage, plan=plan, name=name, seed=seed)


def resume_knobs(storage: str, *, name: str | None = None) -> KnobTuning:
    """The stored tuning of that name, or the only one that a storage has."""
    from app.knobs.tuning import KnobTuning

    return KnobTuning.resume(storage, name=name)
