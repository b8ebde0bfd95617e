"""Which process this is among those that measure together, as torchrun or srun state it in the environment.

A process without a launcher is a world of one. Every node must run the same number of processes, one per device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cost_models.errors import InvalidInputError, Problem

# srun names no port, and all ranks must choose the same one without talking: it follows from the job's and the step's number, so
# that two jobs on one node rarely meet.
_FIRST_PORT, _PORTS = 20_000, 20_000


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among all ranks, which are numbered node by node."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    launcher: Literal["none", "torchrun", "slurm"]
    master_address: str = "127.0.0.1"
    master_port: int = 29_500

    @property
    def node(self) -> int:
        return self.rank // self.local_world

    @property
    def num_nodes(self) -> int:
        return self.world // self.local_world


def ranks_from(environment: Mapping[str, str]) -> Ranks:
    """The place of this process.

    Raises:
        InvalidInputError: the variables of the launcher are incomplete or contradict each other.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        place = _torchrun(environment)
    # salloc and sbatch set SLURM's variables for a plain process too; only with several tasks did srun start this one.
    elif "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        place = _slurm(environment)
    else:
        return Ranks(0, 1, 0, 1, "none")
    if place.local_world < 1 or place.world % place.local_world or place.rank >= place.world:
        _refuse(f"{place.world} processes cannot fill nodes of {place.local_world} evenly (this is rank {place.rank})")
    return place


def _torchrun(environment: Mapping[str, str]) -> Ranks:
    world = _count(environment, "WORLD_SIZE")
    return Ranks(
        rank=_count(environment, "RANK"),
        world=world,
        local_rank=_count(environment, "LOCAL_RANK", 0),
        local_world=_count(environment, "LOCAL_WORLD_SIZE", world),
        launcher="torchrun",
        master_address=environment.get("MASTER_ADDR", "127.0.0.1"),
        master_port=_count(environment, "MASTER_PORT", 29_500),
    )


def _slurm(environment: Mapping[str, str]) -> Ranks:
    world = _count(environment, "SLURM_NTASKS")
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or str(world)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST") or "127.0.0.1"
    counts = re.findall(r"(\d+)(?:\(x\d+\))?", tasks)
    if len(set(counts)) != 1:
        _refuse(f"SLURM placed unequal numbers of tasks on the nodes: {tasks}")
    job = _count(environment, "SLURM_JOB_ID", 0) + 7 * _count(environment, "SLURM_STEP_ID", 0)
    return Ranks(
        rank=_count(environment, "SLURM_PROCID"),
        world=world,
        local_rank=_count(environment, "SLURM_LOCALID", 0),
        local_world=int(counts[0]),
        launcher="slurm",
        master_address=environment.get("MASTER_ADDR") or first_host(nodes),
        master_port=_count(environment, "MASTER_PORT", _FIRST_PORT + job % _PORTS),
    )


def first_host(node_list: str) -> str:
    """First name of SLURM's compressed list of nodes: `node[003-006,009],other1` gives `node003`."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", node_list)
    if match is None:
        return node_list
    prefix, inside = match.groups()
    return prefix if inside is None else prefix + re.split(r"[-,]", inside)[0]


def _count(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdigit():
        _refuse(f"{name} is {text!r}, not a number")
        raise AssertionError
    return int(text)


def _refuse(message: str) -> None:
    hint = "Start one process per device: torchrun --nproc-per-node N -m meshwright profile run …, or srun."
    raise InvalidInputError([Problem("", message, hint)])
