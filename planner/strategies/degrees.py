"""Every combination of degrees on whole nodes, held without being multiplied out.

A *mesh* is a choice of (tp, pp, cp, dp). The other fields of a base row (micro-batch, expert degrees, sequence parallelism) depend
on (tp, cp, dp) alone. They are therefore held once for all numbers of stages, and rows are made for as many meshes at a time as
are wanted. Array suffixes: M meshes, R rows of what goes with one (tp, cp, dp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import SearchBudgetError
from cost_models.job import Job
from planner.rules import active_rules
from planner.rules.rule import divisors
from planner.schemas.plan_request import Constraints

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
MOST_ROWS = 20_000_000
"""Most meshes, or rows of what goes with them, that are held at a time: about 1 GiB.

A job on 100,000 GPUs whose batch has 60 divisors needs a twentieth of that.
"""
MOST_COMBINATIONS = 1_000_000_000
"""Most combinations of degrees that are searched, which takes minutes."""
MIN_TOKENS_PER_CP_RANK = 256
"""Shortest share of a sequence for which context parallelism is tried."""
# The golden ratio's multiples modulo 1 spread evenly, so that a sample taken by them has no period in common with the order
# of the meshes (a low-discrepancy sequence).
_GOLDEN = (5.0**0.5 - 1.0) / 2.0
MESH_AXES = ("tp", "pp", "cp", "dp")
INNER_AXES = ("ep", "etp", "micro_batch_size", "sequence_parallel")
DEGREE_AXES = (*MESH_AXES, *INNER_AXES)
_REFUSES_VALUE = {"sequence-parallel-unsupported": True, "moe-needs-sequence-parallel": False}
"""The value of sequence_parallel that each of these rules refuses in every strategy of a job with tensor parallelism."""


@dataclass(frozen=True, eq=False)
class Degrees:
    """Combinations of degrees, in the order tp, pp, cp, dp, micro_batch_size, ep, etp, sequence_parallel."""

    mesh: Columns
    """MESH_AXES, shape (M,)."""
    group: Ints
    """Number of the (tp, cp, dp) that each mesh has, shape (M,)."""
    inner: Columns
    """INNER_AXES, shape (R,), sorted by group."""
    first: Ints
    """Where the rows of each group start in `inner`, and where those of the last one end."""

    def __len__(self) -> int:
        """How many meshes there are."""
        return len(self.group)

    @cached_property
    def worlds(self) -> Ints:
        """GPUs that each mesh uses, shape (M,)."""
        return np.asarray(self.mesh["tp"] * self.mesh["pp"] * self.mesh["cp"] * self.mesh["dp"])

    @cached_property
    def sizes(self) -> Ints:
        """How many combinations each mesh has, shape (M,)."""
        return np.asarray(np.diff(self.first)[self.group])

    def rows(self, meshes: Ints) -> Columns:
        """The DEGREE_AXES of every combination of these meshes, mesh by mesh."""
        sizes = self.sizes[meshes]
        origin = np.repeat(meshes, sizes)
        within = np.arange(len(origin)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self._rows(origin, self.first[self.group[origin]] + within)

    def _rows(self, mesh: Ints, inner: Ints) -> Columns:
        return {
            **{name: column[mesh] for name, column in self.mesh.items()},
            **{name: column[inner] for name, column in self.inner.items()},
        }

    def different_layers(self) -> Columns:
        """The DEGREE_AXES of one combination for each that a layer's work may depend on: all fields but pp and dp."""
        of_group = np.full(len(self.first) - 1, -1)
        of_group[self.group] = np.arange(len(self.group))
        mesh = np.repeat(of_group, np.diff(self.first))
        inner = np.flatnonzero(mesh >= 0)
        key = np.zeros(len(inner), np.int64)
        for column in (
            *(self.mesh[name][mesh[inner]] for name in ("tp", "cp")),
            *(self.inner[n][inner] for n in INNER_AXES),
        ):
            key = np.unique(key * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1].reshape(-1)
        inner = inner[np.unique(key, return_index=True)[1]]
        return self._rows(mesh[inner], inner)

    def values(self, name: str) -> list[Any]:
        """The different values of one axis, in rising order."""
        source = self.mesh if name in self.mesh else self.inner
        return list(np.unique(source[name]).tolist())

    def blocks(self, meshes: Ints, *, most_rows: int) -> list[Ints]:
        """The meshes in parts of about `most_rows` combinations each.

        Where there are several parts, the first is a sample of all meshes. It soon tells about how good the best plan is, which
        lets bounds exclude much of the rest. Each of the others holds neighbours in (tp, cp, dp), which share the costs of
        their layers.
        """
        parts = -(-int(self.sizes[meshes].sum()) // most_rows)
        if parts <= 1:
            return [meshes]
        alike = meshes[np.argsort(self.group[meshes], kind="stable")]
        is_sample = np.fmod(np.arange(len(alike)) * _GOLDEN, 1.0) < 1.0 / parts
        rest = alike[~is_sample]
        before = np.cumsum(self.sizes[rest]) - self.sizes[rest]
        ends = np.flatnonzero(np.diff(before // most_rows)) + 1
        return [alike[is_sample], *np.split(rest, ends)]


def build_degrees(
    job: Job, constraints: Constraints, given: Mapping[str, Any], *, stages: Ints, worlds: Ints | None = None
) -> Degrees:
    """Every combination of degrees on whole nodes.

    Args:
        job: what is planned.
        constraints: how many nodes may be used.
        given: values by field where the request fixes or lists them.
        stages: numbers of stages that the layers can be split over.
        worlds: numbers of GPUs that may be used; whole nodes of the job's cluster by default.

    Raises:
        SearchBudgetError: there are more combinations than can be held or searched.
    """
    allowed_gpus = _allowed_gpus(job, constraints) if worlds is None else worlds
    mesh = _meshes(job, given, stages=stages, allowed_gpus=allowed_gpus)
    keys = np.stack([mesh["tp"], mesh["cp"], mesh["dp"]], axis=1)
    groups, group = np.unique(keys, axis=0, return_inverse=True)
    rows = _Rows({"tp": groups[:, 0], "cp": groups[:, 1], "dp": groups[:, 2], "group": np.arange(len(groups))})
    _cross_inner(job, given, rows)
    sizes = np.bincount(rows["group"], minlength=len(groups))
    found = Degrees(
        mesh=mesh,
        group=group.reshape(-1),
        inner={name: rows[name] for name in INNER_AXES},
        first=np.concatenate([[0], np.cumsum(sizes)]),
    )
    kept = found.sizes > 0
    if not kept.all():
        found = Degrees({k: column[kept] for k, column in mesh.items()}, found.group[kept], found.inner, found.first)
    total = int(found.sizes.sum())
    if total > MOST_COMBINATIONS:
        raise _too_many(f"{total:,} combinations of {', '.join(DEGREE_AXES)}")
    return found


def _meshes(job: Job, given: Mapping[str, Any], *, stages: Ints, allowed_gpus: Ints) -> Columns:
    """tp, pp, cp and dp of every mesh.

    They are built one tp at a time, so that combinations that need too many GPUs are dropped before they are crossed further.
    """
    gpus, batch = job.cluster.num_gpus, job.training.global_batch_size
    parts = []
    for tp in given.get("tp", divisors(job.model.num_attention_heads)):
        if tp > gpus:
            continue
        rows = _Rows({"tp": np.array([tp], dtype=np.int64)})
        rows.cross("pp", stages)
        rows.cross("cp", given.get("cp", _context_degrees(job)))
        rows.keep(rows["tp"] * rows["pp"] * rows["cp"] <= gpus)
        rows.cross("dp", given.get("dp", divisors(batch)))
        world = rows["tp"] * rows["pp"] * rows["cp"] * rows["dp"]
        rows.keep(np.isin(world, allowed_gpus) & (batch % rows["dp"] == 0))
        parts.append(rows.columns)
        if sum(len(part["tp"]) for part in parts) > MOST_ROWS:
            raise _too_many(f"more than {MOST_ROWS:,} combinations of {', '.join(MESH_AXES)}")
    empty = {name: np.zeros(0, np.int64) for name in MESH_AXES}
    return {name: np.concatenate([empty[name], *(part[name] for part in parts)]) for name in MESH_AXES}


def _cross_inner(job: Job, given: Mapping[str, Any], rows: _Rows) -> None:
    """Adds micro-batch, expert degrees and sequence parallelism to each (tp, cp, dp)."""
    batch = job.training.global_batch_size
    rows.cross("micro_batch_size", given.get("micro_batch_size", divisors(batch)))
    rows.keep((batch // rows["dp"]) % rows["micro_batch_size"] == 0)
    _cross_experts(job, given, rows)
    if "sequence_parallel" in given:
        rows.cross("sequence_parallel", given["sequence_parallel"])
        rows.keep((rows["tp"] > 1) | ~rows["sequence_parallel"].astype(bool))
    else:
        refused = {_REFUSES_VALUE[rule.code] for rule in active_rules(job) if rule.code in _REFUSES_VALUE}
        tried = [value for value in (True, False) if value not in refused]
        rows.cross("sequence_parallel", tried)
        rows.keep((rows["tp"] > 1) | ~rows["sequence_parallel"].astype(bool) | (len(tried) == 1))
        rows.columns["sequence_parallel"] = rows["sequence_parallel"].astype(bool) & (rows["tp"] > 1)


def _allowed_gpus(job: Job, constraints: Constraints) -> Ints:
    """Numbers of GPUs that a plan may use: whole nodes in the requested range, or all of them where none may be idle."""
    cluster, limits = job.cluster, constraints.num_nodes
    most = min(limits.max or cluster.num_nodes, cluster.num_nodes)
    least = limits.min or 1
    nodes = np.arange(least if constraints.allow_idle_gpus else most, most + 1, dtype=np.int64)
    return nodes * cluster.gpus_per_node


def _context_degrees(job: Job) -> list[int]:
    longest = job.training.seq_length // MIN_TOKENS_PER_CP_RANK
    return [c for c in divisors(job.training.seq_length) if c <= min(max(longest, 1), job.cluster.num_gpus)]


def _cross_experts(job: Job, given: Mapping[str, Any], rows: _Rows) -> None:
    moe = job.model.moe
    if moe is None:
        rows.cross("ep", given.get("ep", (1,)))
        rows.cross("etp", given.get("etp", (1,)))
        return
    rows.cross("ep", given.get("ep", divisors(moe.num_experts)))
    rows.keep((rows["tp"] * rows["cp"] * rows["dp"]) % rows["ep"] == 0)
    if "etp" in given:
        rows.cross("etp", given["etp"])
    else:
        rows.cross("etp", (0, 1) if job.framework.etp_defaults_to_tp else (1,))
        # etp 0 stands for etp = tp until tp is known; where tp is 1 that is the other choice already.
        rows.keep((rows["etp"] != 0) | (rows["tp"] > 1))
        rows.columns["etp"] = np.where(rows["etp"] == 0, rows["tp"], rows["etp"])
    rows.keep((rows["tp"] * rows["cp"] * rows["dp"]) % (rows["ep"] * rows["etp"]) == 0)


class _Rows:
    """Columns of equal length that grow by crossing with new values and shrink by masks."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def cross(self, name: str, values: Sequence[Any] | Ints) -> None:
        """Crosses every row with every value."""
        listed = np.array(list(values)) if len(values) else np.zeros(0, np.int64)
        length = len(next(iter(self.columns.values())))
        if length * len(listed) > MOST_ROWS:
            raise _too_many(f"{length:,} combinations of {', '.join(self.columns)} with {len(listed)} values of {name}")
        self.columns = {key: np.repeat(column, len(listed)) for key, column in self.columns.items()}
        self.columns[name] = np.tile(listed, length)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self.columns = {key: column[mask] for key, column in self.columns.items()}


def _too_many(what: str) -> SearchBudgetError:
    hint = "Fix or list tp, pp, dp, cp, ep or micro_batch_size in constraints."
    return SearchBudgetError(f"{what} are too many to search", hint=hint)
