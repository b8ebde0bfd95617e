"""A training log read for one row: which program wrote it, what a step took, and what memory it needed.

Every reader looks at every line, because a log may hold the lines of several programs: the trainer's, its engine's, a launcher's. The
one that says most about a step of the row's framework is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.frameworks.log_formats import LOG_FORMATS, NUMBERS, LogFormat
from cost_models.hints import choice_hint, shown
from cost_models.inputs.cluster import resolve_cluster
from cost_models.inputs.fields import SMALLEST
from cost_models.inputs.pools import resolve_pools
from cost_models.strict_json import strict_loads
from cost_models.units import GIB
from profiler.logs.composer import ComposerReader
from profiler.logs.deepspeed import BreakdownReader, DeepSpeedReader, PipelineReader
from profiler.logs.exported import ExportedReader
from profiler.logs.hugging_face import StateReader, TrainerReader
from profiler.logs.megatron import MegatronReader, NemoReader
from profiler.logs.nanotron import NanotronReader
from profiler.logs.reading import Flag, Line, LineReader, LogReading, RunFacts
from profiler.logs.summary import reading_of
from profiler.logs.text import UnclearNumberError, lines_of, pieces_of, printed
from profiler.logs.torchtitan import TorchtitanReader

_MOST_KEPT_LINES = 5
_MOST_SHOWN = 300
"""Characters that are kept of a line which was read."""
_LINES_LOOKED_AT = 100
"""Lines after which a log that holds bytes which are not text is no longer called binary."""
_LARGEST_STATE = 1 << 26
"""Characters of the largest trainer_state.json: a million entries."""
_LARGEST = 1e7
"""Seconds of a step, or GiB of a GPU, that no run has."""
_HINT = (
    "Known are the logs of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, transformers' Trainer, axolotl, composer and "
    "nanotron. Give the file that the launch printed, or the step's time itself (--step-time, or `measured`)."
)


def read_log(
    source: str | Iterable[str | bytes],
    *,
    row: Mapping[str, Any],
    format: str | None = None,  # noqa: A002 - what users call it
) -> LogReading:
    """What this log says of the run of this row.

    Args:
        source: the log as a text, or an open file, of which one piece at a time is kept in memory.
        row: the evaluate row of the run, whose batch, sequence length and GPUs turn a throughput into a time.
        format: name of the log's format; None to find out.

    Raises:
        InvalidInputError: the row lacks a fact, the format is unknown, or no line of a format of the row's framework was found.
    """
    facts = facts_of(row)
    wanted = _wanted(format)
    document, rest = _document(source)
    readers: list[LineReader] = []
    flags: set[Flag] = set()
    seen = _Seen()
    if document is not None and isinstance(document.get("log_history"), list):
        readers, seen.is_state = [_state(document)], True
    elif document is not None and "step_time_s" in document:
        return reading_of_numbers(document)
    else:
        readers = _readers(facts)
        _read_lines(lines_of(rest), readers, flags, seen)
    return _chosen(readers, facts, wanted, flags, seen)


def facts_of(row: Mapping[str, Any]) -> RunFacts:
    """What a log's numbers are converted with.

    Raises:
        InvalidInputError: the row does not say its batch, its sequence length or its number of GPUs.
    """
    training, strategy = _part(row, "training"), _part(row, "strategy")
    problems: list[Problem] = []

    def count(values: Mapping[str, Any], part: str, name: str) -> int:
        value = values.get(name)
        if type(value) is int and 0 < value < 2**53:
            return value
        message = f"{name} is missing" if value is None else f"{name} must be a whole number above 0"
        problems.append(Problem(f"/row/{part}/{name}", message, "Give the row that the run was started with."))
        return 1

    seq_length = count(training, "training", "seq_length")
    if training.get("global_batch_tokens") is not None and training.get("global_batch_size") is None:
        batch = count(training, "training", "global_batch_tokens") / seq_length
    else:
        batch = float(count(training, "training", "global_batch_size"))
    degrees = [
        count(strategy, "strategy", name) if strategy.get(name) is not None else 1 for name in ("tp", "pp", "cp")
    ]
    of_replica = degrees[0] * degrees[1] * degrees[2]
    replicas = None if strategy.get("dp") is None else count(strategy, "strategy", "dp")
    if problems:
        raise InvalidInputError(problems)
    # The whole cluster works where nothing else is said.
    num_gpus = _gpus_of(_part(row, "cluster")) if replicas is None else of_replica * replicas
    framework = training.get("framework")
    return RunFacts(framework if isinstance(framework, str) else None, batch, seq_length, num_gpus)


def _gpus_of(cluster: Mapping[str, Any]) -> int:
    """GPUs of a cluster of one or several kinds of node."""
    resolve = resolve_cluster if cluster.get("pools") is None else resolve_pools
    return resolve(cluster, pointer="/row/cluster").num_gpus


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object of the row; an empty one where it has none, of which the missing fields are told."""
    part = row.get(name)
    return part if isinstance(part, Mapping) else {}


class _Seen:
    """What was in a log that nothing could be read from."""

    def __init__(self) -> None:
        self.lines = 0
        self.has_binary = False
        self.is_state = False


def _wanted(name: str | None) -> LogFormat | None:
    if name is None:
        return None
    if name not in LOG_FORMATS:
        message = f"{name[:60]!r} is not a format of logs that is known here"
        raise InvalidInputError([Problem("/format", message, choice_hint(name, LOG_FORMATS))])
    return LOG_FORMATS[name]


def _document(source: str | Iterable[str | bytes]) -> tuple[dict[str, Any] | None, Iterable[str]]:
    """The source as one JSON object where it is one, and otherwise its pieces; a log of JSON lines is none."""
    pieces = pieces_of(source)
    head = next(pieces, "").lstrip("\ufeff")
    text = head.lstrip()
    # Only a source that begins as an object is held in memory, up to a bound; every other is streamed.
    # A dictionary that Python printed begins with a brace, too, but goes on with another quotation mark.
    if not text.startswith("{") or text[1:].lstrip()[:1] not in ("", '"'):
        return None, itertools.chain([head], pieces)
    first, newline, _ = text.partition("\n")
    if newline and (line := _loaded(first)) is not None and not _is_document(line):
        return None, itertools.chain([head], pieces)
    held, size = [head], len(head)
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size > _LARGEST_STATE:
            return None, itertools.chain(held, pieces)
    document = _loaded("".join(held))
    return (document, ()) if document is not None and _is_document(document) else (None, held)


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        document = strict_loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_document(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("log_history"), list) or "step_time_s" in document


def _state(document: Mapping[str, Any]) -> LineReader:
    reader = StateReader()
    reader.take_state(document["log_history"])
    return reader


def reading_of_numbers(document: Mapping[str, Any]) -> LogReading:
    """A reading of numbers that somebody wrote down.

    Args:
        document: `step_time_s`, and where it is known `peak_memory_gib`.

    Raises:
        InvalidInputError: one of them is no number, or none that a run can have.
    """
    value = document["step_time_s"]
    peak = document.get("peak_memory_gib")
    for name, given in (("step_time_s", value), ("peak_memory_gib", peak)):
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        is_absent = name == "peak_memory_gib" and given is None
        if not is_absent and not (is_number and SMALLEST <= given < _LARGEST):  # type: ignore[operator]
            message = f"{name} is {shown(given)}; it must be a number from {SMALLEST:g} to {_LARGEST:g}"
            raise InvalidInputError([Problem(f"/log/{name}", message, "Give seconds and GiB.")])
    _, unit, digits = printed(repr(value))
    return LogReading(
        format=NUMBERS.name, step_time_s=float(value), num_steps=1, kind="step", samples_s=(float(value),),
        memory_bytes=None if peak is None else float(peak) * GIB,
        memory_counter=None if peak is None else "allocated", memory_rank=None,
        peaks_bytes={} if peak is None else {"allocated": float(peak) * GIB}, digits=digits,
        resolution_fraction=unit / float(value), flags=(), lines=(),
    )  # fmt: skip


def _readers(facts: RunFacts) -> list[LineReader]:
    """A reader for every format, those that say most first."""
    return [
        ExportedReader(), MegatronReader(), NemoReader(), TorchtitanReader(facts), NanotronReader(), DeepSpeedReader(facts),
        PipelineReader(facts), TrainerReader(facts), ComposerReader(facts), BreakdownReader(),
    ]  # fmt: skip


def _read_lines(lines: Iterable[Line], readers: list[LineReader], flags: set[Flag], seen: _Seen) -> None:
    for line in lines:
        text = line.text
        seen.lines += 1
        if seen.lines <= _LINES_LOOKED_AT and ("\0" in text or "\ufffd" in text):
            seen.has_binary = True
        for reader in readers:
            if any(mark in text for mark in reader.marks):
                _take(reader, line, flags)
    for reader in readers:
        # What stands last may be unclear as well.
        try:
            reader.finish()
        except UnclearNumberError:
            reader.found.flags.add("unclear-numbers")


def _take(reader: LineReader, line: Line, flags: set[Flag]) -> None:
    found = reader.found
    before = len(found.samples), len(found.peaks)
    try:
        reader.take(line)
    except UnclearNumberError:
        found.flags.add("unclear-numbers")
    if (len(found.samples), len(found.peaks)) != before and len(found.lines) < _MOST_KEPT_LINES:
        found.lines.append(line.text[:_MOST_SHOWN].strip())
    elif not line.is_whole:
        flags.add("line-cut")


def _chosen(
    readers: list[LineReader], facts: RunFacts, wanted: LogFormat | None, flags: set[Flag], seen: _Seen
) -> LogReading:
    with_times = [reader for reader in readers if reader.found.samples]
    fitting = [reader for reader in with_times if reader.format.fits(facts.framework)]
    asked = [reader for reader in fitting if wanted is None or reader.format is wanted]
    if not asked:
        raise InvalidInputError([_why_not(with_times, fitting, facts, wanted, seen)])
    if any(len(reader.found.samples) > 1 and reader not in fitting for reader in with_times):
        flags.add("mixed-formats")
    # A trainer that runs an engine prints lines of both, each right in its way.
    # A mean of the whole run is the last resort; among the others the order of the readers decides.
    best = min(asked, key=lambda reader: all(sample.kind == "cumulative" for sample in reader.found.samples))
    # An engine may print the memory, and the trainer around it the times.
    for other in readers:
        if other is not best and other.format.fits(facts.framework):
            for (counter, rank), peak in other.found.peaks.items():
                best.found.add_peak(counter, peak, rank)
    reading = reading_of(best.found, best.format, facts, flags=sorted(flags))
    assert reading is not None  # it has samples
    return reading


def _why_not(
    with_times: list[LineReader], fitting: list[LineReader], facts: RunFacts, wanted: LogFormat | None, seen: _Seen
) -> Problem:
    """What is wrong with a log of which nothing can be used."""
    if wanted is not None and fitting:
        others = " and ".join(reader.format.title for reader in fitting)
        return Problem(
            "/format", f"the log has no step of {wanted.title}, but steps of {others}", "Leave the format out."
        )
    if with_times:
        names = " and ".join(reader.format.title for reader in with_times)
        message = f"the log is of {names}, which the row's framework {facts.framework} does not run"
        return Problem("/log", message, "Give the row of the run that wrote this log, or the log of this row's run.")
    if seen.is_state:
        hint = (
            "It was saved before the training ended. Call trainer.save_state() after trainer.train(), or give what the run printed. "
            "With include_num_input_tokens_seen=True the Trainer times each logging interval, which tells more."
        )
        return Problem("/log", "no entry of the trainer's state says how long it took (train_runtime)", hint)
    if not seen.lines:
        return Problem("/log", "the log is empty", _HINT)
    what = "is not text" if seen.has_binary else f"has {seen.lines:,} lines, but none of them says how long a step took"
    return Problem("/log", f"the log {what}", _HINT)
