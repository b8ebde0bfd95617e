"""Low-rank adapters as the classes `LoRA`, `DoRA` and `CanonicalLoRA` of Megatron-Bridge and NeMo take them.

The first two adapt Megatron Core's fused modules, the last one the parts of these that other libraries call modules of their own.
Source: `lora.py`, `dora.py` and `canonical_lora.py` of `megatron/bridge/peft`, and of `nemo/collections/llm/peft`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.export.quantities import Quantities
from planner.export.settings import Settings
from planner.export.spellings import collected, peeked

FIELD = "training.adapter"
LORA, DORA, CANONICAL = "LoRA", "DoRA", "CanonicalLoRA"
FUSED = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
PARTS: Mapping[str, str] = {
    "q_proj": "linear_q", "k_proj": "linear_k", "v_proj": "linear_v", "o_proj": "linear_proj", "gate_proj": "linear_fc1_gate",
    "up_proj": "linear_fc1_up", "down_proj": "linear_fc2",
}  # fmt: skip
"""`CanonicalLoRA`'s names of the parts by Hugging Face's."""
_OF_EXPERTS = frozenset({"linear_fc1", "linear_fc2", "gate_proj", "up_proj", "down_proj"})
_ALPHA = 32


def said_adapter(q: Quantities) -> tuple[str, Mapping[str, Any]] | None:
    """The class and its arguments, or None without an adapter.

    Raises:
        FieldNotExpressibleError: the adapter has modules or a base that these classes have not.
    """
    adapter = q[FIELD]
    if adapter is None:
        return None
    for why, nearest in _refusals(q, adapter):
        raise q.refusal(FIELD, why=why, nearest=nearest)
    targets, dora = adapter["target_modules"], bool(adapter.get("dora"))
    fused = set(targets) <= set(FUSED)
    return (DORA if dora else LORA) if fused else CANONICAL, {
        "target_modules": list(targets) if fused else [PARTS[name] for name in targets], "dim": adapter["rank"], "alpha": _ALPHA,
        "dropout": float(adapter.get("dropout") or 0.0),
    }  # fmt: skip


def _refusals(q: Quantities, adapter: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    targets = set(adapter["target_modules"])
    latent, gated = q.peek("model.mla") is not None, bool(q.peek("model.gated_mlp"))
    fused = None if latent else _with(adapter, target_modules=list(FUSED))
    if adapter.get("quantized_base", "none") != "none":
        yield "its base is not quantised", _with(adapter, quantized_base="none")
    if adapter.get("rank_pattern") or adapter.get("modules_to_save"):
        yield "all its adapters have one rank, and no other module is trained beside them", None
    if not (targets <= set(FUSED) or targets <= set(PARTS)):
        yield f"its modules are {', '.join(FUSED)}, or parts of these", fused
    if adapter.get("dora") and not targets <= set(FUSED):
        yield "DoRA adapts its fused modules alone", fused
    if targets & {"gate_proj", "up_proj"} and not gated:
        yield "linear_fc1 has two parts in gated MLPs alone", fused
    if q.peek("model.moe") is not None and targets & _OF_EXPERTS:
        kept = [name for name in adapter["target_modules"] if name not in _OF_EXPERTS]
        yield (
            "modules of experts share these names, and would be adapted, too",
            _with(adapter, target_modules=kept) if kept else None,
        )


def _with(adapter: Mapping[str, Any], **changed: Any) -> Mapping[str, Any]:
    return {FIELD: {**adapter, **changed}}


def read_adapter(settings: Settings, section: str, kind: str) -> dict[str, Any] | None:
    """The contract's adapter from the arguments of a class; None where its rank is not said.

    Args:
        section: what stands before the arguments' names in their keys.
        kind: name of the class.
    """
    rank = peeked(settings, f"{section}.dim")
    if type(rank) is not int or kind not in (LORA, DORA, CANONICAL):
        return None
    targets = collected(settings, f"{section}.target_modules", FIELD)
    found: dict[str, Any] = {"rank": rank, "dora": kind == DORA}
    if targets:
        named = {part: name for name, part in PARTS.items()} if kind == CANONICAL else {}
        found["target_modules"] = [named.get(str(each), str(each)) for each in targets]
    dropout = settings.value(f"{section}.dropout", FIELD)
    if dropout:
        found["dropout"] = dropout
    for name in ("dim", "alpha"):
        settings.take(f"{section}.{name}", FIELD)
    return found
