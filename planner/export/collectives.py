"""How a launch is told which algorithms and protocol its collectives take: NCCL's own environment variables."""

from __future__ import annotations

from dataclasses import replace

from cost_models.errors import NotExpressibleError
from cost_models.operations import Op
from cost_models.specs.collectives import Algorithm, Collectives
from planner.export.quantities import FieldNotExpressibleError
from planner.export.target import Launch, Target, Variable

_FUNCTIONS: dict[Op, str] = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast",
}  # fmt: skip
_NAMES: dict[Algorithm, str] = {
    "ring": "ring", "tree": "tree", "nvls": "nvls", "nvls-tree": "nvlstree", "collnet": "collnetdirect,collnetchain", "pat": "pat",
}  # fmt: skip
FOR_DIAGNOSIS = (
    "NCCL chooses an algorithm and a protocol for every call by itself, and its authors mean these variables for finding faults: "
    "measure a run without them as well."
)


def with_collectives(launch: Launch, stated: Collectives | None, target: Target, version: str) -> Launch:
    """The launch with what is forced on its collectives.

    Raises:
        FieldNotExpressibleError: no variable tells the library, or the algorithm.
    """
    if stated is None:
        return launch
    # Frameworks start NCCL or RCCL by the name of the back end in their own code, where no setting reaches.
    if stated.library not in ("nccl", "rccl"):
        raise _refusal("library", stated.library, target, version, nearest="nccl")
    program = next(((op, name) for op, name in stated.forced if name not in _NAMES), None)
    if program is not None:
        raise _refusal(f"algorithm.{program[0]}", program[1], target, version, nearest="auto")
    variables = _variables(stated)
    notes = (FOR_DIAGNOSIS,) if variables else ()
    return replace(launch, variables=(*launch.variables, *variables), notes=(*launch.notes, *notes))


def _variables(stated: Collectives) -> tuple[Variable, ...]:
    found = []
    if stated.forced:
        # What is said of one function leaves the choice of all others to NCCL.
        told = ";".join(f"{_FUNCTIONS[op]}:{_NAMES[name]}" for op, name in stated.forced)
        found.append(
            Variable(
                "NCCL_ALGO", told, "The plan forces these algorithms; NCCL takes a name for each function since 2.24."
            )
        )
    if stated.protocol is not None:
        found.append(Variable("NCCL_PROTO", stated.protocol, "The plan forces this protocol."))
    if any(name == "collnet" for _, name in stated.forced):
        found.append(
            Variable("NCCL_COLLNET_ENABLE", "1", "NCCL sums in the network's switches only where it is told to.")
        )
    return tuple(found)


def _refusal(field: str, value: str, target: Target, version: str, *, nearest: str) -> NotExpressibleError:
    name = f"cluster.collectives.{field}"
    why = "its processes talk through NCCL or RCCL, which no variable makes take another library's algorithms"
    refusal = FieldNotExpressibleError(name, value, target.name, version, why=why)
    # What is stated of a cluster is no field of the plan, so that no nearest plan is looked for.
    refusal.hint = f"Plan with {name} {nearest}."
    return refusal
