"""What is trained where not every weight is: low-rank adapters beside a frozen base, and parts that are frozen.

Both are resolved by `inputs.adapter`, which checks the names against the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

QuantizedBase = Literal["none", "nf4", "int8", "fp8"]
SavedModule = Literal["embed_tokens", "lm_head"]
AdapterFeature = Literal["dora", "dropout", "rank_pattern", "modules_to_save"]
ADAPTER_FEATURES: Final = get_args(AdapterFeature)
FrozenPart = Literal["embedding", "head", "norms", "attention", "mlp", "experts"]
FROZEN_PARTS: Final = get_args(FrozenPart)


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA or DoRA on some linear modules of every layer. Sizes in elements."""

    rank: int
    target_modules: tuple[str, ...]
    """Names of the modules as the model's own code has them, presets already resolved."""
    quantized_base: QuantizedBase = "none"
    dora: bool = False
    dropout: float = 0.0
    rank_pattern: tuple[tuple[str, int], ...] = ()
    """Ranks of modules that have one of their own."""
    modules_to_save: tuple[SavedModule, ...] = ()
    """Modules of which peft trains a whole copy."""

    def rank_of(self, module: str) -> int:
        """Rank of the adapter on the module of this name."""
        return dict(self.rank_pattern).get(module, self.rank)
