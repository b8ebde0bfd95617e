"""What users state of the library that runs collectives (`cluster.collectives`): refused where the library, or the cluster, has no such
algorithm.
"""

from __future__ import annotations

from typing import Literal

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.hardware.algorithms import OFFERED, ROUTED, obstacle
from cost_models.hints import child
from cost_models.inputs.fields import STRICT
from cost_models.operations import Op
from cost_models.specs.cluster import Cluster
from cost_models.specs.collectives import Algorithm, Collectives, Library, Protocol

_SOURCES = {
    "nccl": "NCCL src/graph/tuning.cc",
    "rccl": "RCCL src/graph/tuning.cc, and the programs of MSCCL",
    "msccl": "msccl-tools examples/mscclang",
    "gloo": "gloo docs/algorithms.md",
}
_SIMPLE_ALONE = ("nvls", "nvls-tree", "collnet", "pat")
"""Algorithms that NCCL runs under the protocol Simple only."""
_PROGRAMS = ("halving-doubling", "hierarchical", "torus-2d")


class AlgorithmsInput(Documented):
    """The algorithm of each operation that has several."""

    model_config = STRICT

    all_reduce: Literal[Algorithm, "auto"] = "auto"
    """Algorithm of all-reduces; "auto" leaves it to the library. Default "auto"."""
    all_gather: Literal[Algorithm, "auto"] = "auto"
    """Algorithm of all-gathers; "auto" leaves it to the library. Default "auto"."""
    reduce_scatter: Literal[Algorithm, "auto"] = "auto"
    """Algorithm of reduce-scatters; "auto" leaves it to the library. Default "auto"."""
    broadcast: Literal[Algorithm, "auto"] = "auto"
    """Algorithm of broadcasts; "auto" leaves it to the library. Default "auto"."""


class CollectivesInput(Documented):
    """Which library runs collectives, and what it is forced to take. Where a calibration measured a group, its curve is taken."""

    model_config = STRICT

    library: Library | None = None
    """The library. Default: NCCL on NVIDIA's GPUs, RCCL on AMD's."""
    algorithm: AlgorithmsInput | None = None
    """The algorithm of each operation. A group that cannot have the named one takes what the library chooses. Default: "auto"."""
    protocol: Literal[Protocol, "auto"] = "auto"
    """The protocol of NCCL and RCCL; "auto" leaves it to them. Default "auto"."""


def resolve_collectives(given: CollectivesInput, cluster: Cluster, *, pointer: str) -> Collectives:
    """The stated library with what is forced.

    Args:
        given: what was stated.
        cluster: everything else of the cluster.
        pointer: where it was stated.

    Raises:
        InvalidInputError: with one Problem for each choice that the library or the cluster does not have.
    """
    is_amd = cluster.gpu.generation.startswith("cdna")
    library: Library = given.library or ("rccl" if is_amd else "nccl")
    problems = _of_library(library, cluster, child(pointer, "library"))
    if problems:
        raise InvalidInputError(problems)
    # Sorted, so that the same choices in another order are the same cluster and the same digest.
    asked = {} if given.algorithm is None else {op: getattr(given.algorithm, op) for op in ROUTED}
    forced: dict[Op, Algorithm] = {op: name for op, name in asked.items() if name != "auto"}
    protocol = None if given.protocol == "auto" else given.protocol
    for op, name in forced.items():
        problems += _of_algorithm(library, op, name, cluster, child(pointer, "algorithm", op))
    problems += _of_protocol(library, forced, protocol, child(pointer, "protocol"))
    if problems:
        raise InvalidInputError(problems)
    return Collectives(library, tuple(sorted(forced.items())), protocol)


def _of_library(library: Library, cluster: Cluster, at: str) -> list[Problem]:
    is_amd = cluster.gpu.generation.startswith("cdna")
    if library == ("nccl" if is_amd else "rccl"):
        other, vendor = ("rccl", "AMD's") if is_amd else ("nccl", "NVIDIA's")
        message = f"library is {library!r}, which does not run on {vendor} GPUs such as {cluster.gpu.name}"
        return [Problem(at, message, f"Use {other!r}, 'msccl' or 'gloo'.")]
    return []


def _of_algorithm(library: Library, op: Op, name: Algorithm, cluster: Cluster, at: str) -> list[Problem]:
    offered = OFFERED[library][op]
    if name not in offered:
        others = [each for each, table in OFFERED.items() if name in table[op]]
        where = f"; {' and '.join(others)} {'have' if len(others) > 1 else 'has'} it" if others else ""
        message = f"{library} has no algorithm {name!r} for {op} ({_SOURCES[library]}){where}"
        return [Problem(at, message, f"Use one of {', '.join(offered)}, or 'auto'.")]
    if why := obstacle(cluster, name):
        return [Problem(at, f"{op} is forced to take {name!r}, which {why}", "Use 'auto', or another algorithm.")]
    return []


def _of_protocol(library: Library, forced: dict[Op, Algorithm], protocol: Protocol | None, at: str) -> list[Problem]:
    if protocol is None:
        return []
    if library not in ("nccl", "rccl"):
        message = f"protocol is {protocol!r}, but {library} has no protocols"
        return [Problem(at, message, "Leave it out, or use the library 'nccl' or 'rccl'.")]
    program = next((name for name in forced.values() if name in _PROGRAMS), None)
    if program is not None:
        message = f"protocol is {protocol!r}, but {program} is one of MSCCL's programs, which choose theirs themselves"
        return [Problem(at, message, "Leave the protocol out.")]
    alone = next((name for name in forced.values() if name in _SIMPLE_ALONE), None)
    if alone is not None and protocol != "Simple":
        message = f"protocol is {protocol!r}, but NCCL runs {alone} under Simple only ({_SOURCES['nccl']})"
        return [Problem(at, message, "Use 'Simple', or leave it out.")]
    return []
