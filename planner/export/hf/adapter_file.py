"""peft's `adapter_config.json` from a plan's adapter, and the base beside which it trains.

peft loads this file as it is (`LoraConfig.from_json_file`); the quantised base is the script's, since peft says nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.inputs.adapter import resolve_adapter
from cost_models.inputs.model import resolve_model
from planner.export.quantities import Quantities
from planner.export.settings import Settings
from planner.export.spellings import collected

FILE: Final = "adapter_config.json"
QUANTIZED: Final = "quantized_base"
_KEYS: Final[Mapping[str, str]] = {
    "r": "rank", "target_modules": "target_modules", "lora_dropout": "dropout", "use_dora": "dora",
    "rank_pattern": "rank_pattern", "modules_to_save": "modules_to_save",
}  # fmt: skip
"""peft/tuners/lora/config.py (LoraConfig) and the contract's fields."""
_FIELD: Final = "training.adapter"


def said_adapter(q: Quantities, config: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Peft's file, None without an adapter, and the type in which the base is stored.

    Args:
        config: the model's `config.json`, whose modules the adapter must name.

    Raises:
        FieldNotExpressibleError: the family of the config has no modules of these names, or its base is one that the script lacks.
    """
    adapter = q[_FIELD]
    if adapter is None:
        return None, "none"
    base = adapter.get(QUANTIZED, "none")
    if base not in ("none", "nf4", "int8"):
        why = "bitsandbytes stores weights as nf4 or int8"
        raise q.refusal(_FIELD, why=why, nearest={f"{_FIELD}.{QUANTIZED}": "nf4"})
    # A specification without a family may name modules in any family's way, but the config has one family.
    try:
        found = resolve_adapter(dict(adapter), model=resolve_model({"hf_config": dict(config)}), pointer="")
    except ValueError:
        found = None
    if found != q.plan.job.training.adapter:
        why = f"the modules of {config['model_type']} have other names"
        raise q.refusal(_FIELD, why=why, nearest={f"{_FIELD}.target_modules": "all-linear"})
    document = {key: adapter[field] for key, field in _KEYS.items() if adapter.get(field) is not None}
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "lora_alpha": 16, **document}, base


def read_adapter(settings: Settings) -> dict[str, Any] | None:
    """The contract's adapter; None where the files say nothing of one."""
    if settings.value("peft_type", _FIELD) is None:
        return None
    adapter: dict[str, Any] = {}
    for key, field in _KEYS.items():
        value = collected(settings, key, _FIELD)
        if value is not None:
            adapter[field] = value
    for key in ("task_type", "bias", "lora_alpha", "base_model_name_or_path", "inference_mode", "peft_version"):
        settings.take(key)
    base = settings.value(QUANTIZED, _FIELD)
    return adapter if base is None else {**adapter, QUANTIZED: base}
