"""What is computed for a client that waits, as an answering process computes it: from bytes to bytes, without the storage.

Bodies are parsed here and not in the service, whose event loop and whose lock on Python's objects everybody shares.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

from app.observations.observe import stored_form
from app.service.answering.messages import Last
from app.service.api.examples.requests import REQUESTS
from app.service.api.strict_json import parse_json
from app.service.intake.own_calibrations import CalibrationSource, OwnCalibrations
from app.service.intake.sent_corrections import received
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import shown
from cost_models.inputs.fields import validated
from planner.export.export import export_row, target_named
from planner.export.imported_row import Overrides
from planner.export.judge.judge import judge
from planner.export.launch_plan import plans_of, row_of_plan
from planner.export.settings import InputFile
from planner.export.target import LaunchFile
from planner.rows import evaluate_arriving, evaluate_rows
from planner.schemas import EvaluateRow
from planner.schemas.judgement import JudgeRequest
from planner.schemas.observation import ObservationRequest

_MOST_ROWS = 10_000
"""Bodies of the default size hold fewer rows. This bounds the work of one request where a deployment accepts larger ones."""
_MOST_PROBLEMS = 20
_SEARCH_S = 20.0
"""Longest search for the best plan. Most take less than a second; a client waits for this answer, as for an evaluation."""
# The same files give the same archive, so that clients can compare what they got.
_DATE = (1980, 1, 1, 0, 0, 0)


def warm_up() -> None:
    """Builds the tables that every evaluation looks into, so that forked processes share them."""
    example = next(iter(REQUESTS["/v1/evaluate"].values())).body
    list(evaluate_rows(example if isinstance(example, list) else [example]))


def evaluated(
    calibrations: CalibrationSource, raw: bytes, *, max_depth: int, as_lines: bool, learnt: bytes
) -> Iterator[bytes | Last]:
    """Pieces of the JSON text of an evaluation, or of the list of them; as lines, whole lines with one evaluation each.

    `learnt` holds the tenant's own corrections, as `OwnCorrections` sends them.

    Raises:
        NotJsonError: the body is not strict JSON.
        InvalidInputError: it is neither a row nor a list of rows, or it names too much.
    """
    body = parse_json(raw, max_depth=max_depth)
    own, corrections = OwnCalibrations(calibrations, tenant=""), received(learnt)
    if not isinstance(body, list):
        # A single row that does not match the schema is refused with 422. In a list such a row gets the verdict `invalid`, which
        # is for `evaluate_rows` to find, so that the rows beside it are answered.
        validated(EvaluateRow, body, pointer="")
        (answer,) = evaluate_rows(own.named([body]), extra=own.found, own_corrections=corrections)
        yield Last(_text(answer) + (b"\n" if as_lines else b""))
        return
    _require_rows(body)
    named = own.named(body)
    if as_lines:
        for answers in evaluate_arriving([named], extra=own.found, own_corrections=corrections):
            yield b"".join(_text(answer) + b"\n" for answer in answers)
        return
    before = b"["
    for answers in evaluate_arriving([named], extra=own.found, own_corrections=corrections):
        yield before + b",".join(map(_text, answers))
        before = b","
    yield b"]" if named else b"[]"


def _require_rows(rows: list[Any]) -> None:
    if len(rows) > _MOST_ROWS:
        problem = Problem(
            "",
            f"the list has {len(rows)} rows; one request takes at most {_MOST_ROWS}",
            "Split them over several requests.",
        )
        raise InvalidInputError([problem])
    problems = [
        Problem(f"/{position}", f"is {shown(row)}; a row must be an object", "Send each row as an object {…}.")
        for position, row in enumerate(rows)
        if not isinstance(row, dict)
    ]
    if problems:
        raise InvalidInputError(problems[:_MOST_PROBLEMS])


def judged(calibrations: CalibrationSource, raw: bytes, *, max_depth: int) -> Iterator[bytes]:
    """The JSON text of a judgement.

    Raises:
        NotJsonError: the body is not strict JSON.
        InvalidInputError: the request, or one of the files, cannot be read.
    """
    asked = validated(JudgeRequest, parse_json(raw, max_depth=max_depth), pointer="")
    own = OwnCalibrations(calibrations, tenant="")
    (named,) = own.named([{"cluster": asked.cluster}])
    strategy = asked.strategy.model_dump(exclude_unset=True, mode="json")
    yield _text(
        judge(
            [InputFile(file.path, file.content) for file in asked.files],
            given=Overrides(asked.model, named["cluster"], asked.training, strategy),
            framework=asked.framework,
            extra=own.found,
            time_limit_s=_SEARCH_S,
        )
    )


def observed(calibrations: CalibrationSource, raw: bytes, *, max_depth: int) -> Iterator[dict[str, Any]]:
    """One observation: its document, and the framework and GPU by which it is stored.

    Raises:
        NotJsonError: the body is not strict JSON.
        InvalidInputError: the request does not match its schema, or its row or log cannot be read.
    """
    asked = parse_json(raw, max_depth=max_depth)
    validated(ObservationRequest, asked, pointer="")
    own = OwnCalibrations(calibrations, tenant="")
    (row,) = own.named([asked["row"]])
    yield stored_form({**asked, "row": row}, extra=own.found)


def exported(
    calibrations: CalibrationSource,
    response: str,
    framework: str,
    *,
    rank: int,
    version: str | None,
    as_zip: bool,
    changed: bool = False,
) -> Iterator[bytes]:
    """The launch files of one ranked plan of a stored response, as JSON or as an archive.

    Raises:
        InvalidInputError, NotExpressibleError: the target is unknown, or cannot run this plan.
    """
    document: dict[str, Any] = json.loads(response)
    own_version = version if target_named(framework).own_version else None
    row = row_of_plan(document, rank, framework_version=own_version, changed=changed)
    # Calibrations are stored under ids that only their tenant may name.
    predicted = next(each for each in plans_of(document, changed=changed) if each["rank"] == rank)["evaluation"]
    own = OwnCalibrations(calibrations, tenant="")
    (named,) = own.named([row])
    files = tuple(export_row(named, framework, framework_version=version, predicted=predicted, extra=own.found))
    if as_zip:
        yield _zipped(files)
    else:
        yield _text({"files": [{"path": file.path, "content": file.content} for file in files]})


def _zipped(files: tuple[LaunchFile, ...]) -> bytes:
    """An archive of the files, in which scripts may be executed."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.path, date_time=_DATE)
            entry.external_attr = (0o755 if file.executable else 0o644) << 16
            archive.writestr(entry, file.content, compress_type=zipfile.ZIP_DEFLATED)
    return held.getvalue()


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
