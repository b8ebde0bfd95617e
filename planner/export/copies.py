"""How PyTorch's FSDP2 and what is built on it lay out the copies of a model: replicas, shards among them, and what is overlapped."""

from __future__ import annotations

from planner.export.quantities import Quantities
from planner.strategies.defaults import possible_overlaps


def replicas_and_shards(quantities: Quantities) -> tuple[int, int]:
    """Number of replicas of the whole state, and data-parallel ranks that share one of them (the cp ranks beside them share it, too).

    Raises:
        FieldNotExpressibleError: a group of shards is no multiple of cp.
    """
    dp, cp = quantities["dp"], quantities["cp"]
    # Every replica holds everything; a shard is then the replica itself.
    if quantities["zero"] == 0:
        return dp, 1
    quantities.only(
        "zero_param_shard_size", [quantities["zero_shard_size"]], why="parameters have no shard group of their own"
    )
    size = quantities["zero_shard_size"]
    # The mesh's shard dimension is dp_shard x cp, and replicas lie outside of it.
    if size % cp or (dp * cp) % size:
        raise quantities.refusal(
            "zero_shard_size",
            why=f"the {cp} context-parallel ranks always share one copy",
            nearest={"zero_shard_size": dp * cp},
        )
    return dp * cp // size, size // cp


def say_overlaps(quantities: Quantities, *names: str) -> None:
    """States that PyTorch overlaps what it does by itself, and nothing else: it has no switch for it.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (streams of gathers and reductions);
    torch/distributed/pipelining/schedules.py (sends are waited for between the actions of a rank).
    """
    plan = quantities.plan
    job = plan.job
    possible = possible_overlaps(
        plan.job.framework, {name: plan.strategy[name] for name in ("dp", "cp", "zero", "tp", "pp", "vpp", "ep")}
    )
    for name in names:
        does = bool(job.overlaps_by_default(name, zero=plan.strategy["zero"])) and bool(possible[name])
        quantities.implied(
            f"overlap.{name}", does, why=f"PyTorch {'always' if does else 'never'} overlaps it, and has no switch"
        )


def say_no_expert_parallelism(quantities: Quantities, *, why: str) -> None:
    """States that every rank holds whole layers of experts, so that no tokens are dispatched to other ranks.

    Raises:
        FieldNotExpressibleError: the plan spreads or cuts experts.
    """
    for field in ("ep", "etp"):
        quantities.only(field, [1], why=why)
    does = quantities.plan.job.framework.strategy.moe_dispatcher.label
    quantities.implied("moe_dispatcher", does, why="without expert parallelism there is nothing to choose")
