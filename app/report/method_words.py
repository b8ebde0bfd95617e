"""How replicas stay together and are updated, in words: for the table, the terminal's footer and the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.plan_cells import Json, degrees_above_one, seconds

CHANGED_COLUMNS = ("plan", "what is changed", "split", "step s", "pays below")
CHANGED_NOTE = (
    "These plans change the mathematics of training, so that they are ranked apart. Pays below: the share of extra steps up to which such a "
    "plan is faster than the fastest exact one. How many steps it needs is not known here, and nothing is said of the quality that it reaches."
)


def method_in_words(strategy: Json) -> str:
    """What a strategy names of ways that are not the framework's own, such as "diloco, every 100 steps" or "ZenFlow"; empty for the plain one."""
    sync, compression = strategy.get("sync") or {}, strategy.get("compression") or {}
    parts = []
    if sync:
        parts.append(sync["method"])
        if sync.get("sync_every"):
            parts.append(f"every {sync['sync_every']} steps")
        if (sync.get("fragments") or 1) > 1:
            parts.append(f"{sync['fragments']} fragments")
        if sync.get("quantize") == "fp8":
            parts.append("in fp8")
        if sync.get("servers"):
            parts.append(f"{sync['servers']} servers")
    if compression:
        rank = compression.get("rank")
        parts.append(f"{compression['kind']} of rank {rank}" if rank else compression["kind"])
    if (strategy.get("offload") or {}).get("optimizer_overlap") == "zenflow":
        parts.append("ZenFlow")
    return ", ".join(parts)


def arithmetic(plan: Json) -> str:
    """Whether a plan is exact, or what rounds it."""
    evaluation = plan["evaluation"]
    kind = evaluation.get("mathematics") or "exact"
    named = method_in_words(plan["strategy"])
    return f"{kind}: {named}" if named else kind


def has_other_arithmetic(plans: Sequence[Json]) -> bool:
    """Whether any of the plans is not exact, or is exact in a way of its own."""
    return any(arithmetic(plan) != "exact" for plan in plans)


def changed_rows(response: Json, *, most: int | None = None) -> Iterator[tuple[str, str, str, str, str]]:
    """The cells of each changed plan, or of the `most` first ones, in the order of `CHANGED_COLUMNS`."""
    for plan in (response.get("changed_plans") or ())[:most]:
        extra = plan["break_even_extra_steps"]
        yield (
            str(plan["rank"]),
            method_in_words(plan["strategy"]),
            f"{degrees_above_one(plan)} mb{plan['strategy'].get('micro_batch_size') or 1}",
            seconds(plan["evaluation"]["step_time_s"]),
            "no exact plan to compare with" if extra is None else _pays(extra),
        )


def _pays(extra: float) -> str:
    # A plan that is slower than an exact one would have to need fewer steps than it.
    return f"{extra:.0%} more steps" if extra > 0 else "never: it is slower"
