"""A peft `adapter_config.json` as the contract's adapter: its keys under their own names, and what of it has no cost model.

Keys that change neither sizes nor products (scalings, initial values, names of files) are read over. A key that is in no release of
peft's LoraConfig up to 0.21 is an error, since it may be misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import child, choice_hint, shown
from cost_models.specs.adapter import SavedModule
from cost_models.specs.model import Model

OWN_KEYS: Final[Mapping[str, str]] = {"r": "rank", "use_dora": "dora", "lora_dropout": "dropout"}
"""peft's keys and the contract's fields that they stand for; fields of the same name are not listed."""
_SAME: Final = ("rank", "target_modules", "quantized_base", "dora", "dropout", "rank_pattern", "modules_to_save")
_WITHOUT_COST: Final = frozenset({
    "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "lora_alpha",
    "use_rslora", "init_lora_weights", "alpha_pattern", "fan_in_fan_out", "loftq_config", "eva_config", "corda_config",
    "lora_ga_config", "runtime_config", "megatron_core", "qalora_group_size", "bias",
})  # fmt: skip
_REFUSED: Final[Mapping[str, str]] = {
    "layers_to_transform": "adapters on some layers only",
    "layers_pattern": "adapters on some layers only",
    "layer_replication": "layers that are repeated with adapters of their own",
    "target_parameters": "adapters on bare parameters, such as those of routed experts,",
    "exclude_modules": "modules that are left out of a pattern",
    "trainable_token_indices": "trained rows of the embedding",
    "megatron_config": "peft's own tensor-parallel layers",
    "lora_bias": "biases of adapters",
    "use_qalora": "adapters that read pooled inputs",
    "use_bdlora": "block-diagonal adapters",
    "alora_invocation_tokens": "adapters that start at a token",
    "arrow_config": "adapters that are routed",
    "kasa_config": "adapters with trained singular values",
    "velora_config": "adapters that keep compressed inputs",
    "monteclora_config": "adapters that are sampled",
    "ensure_weight_tying": "adapters that are tied to each other",
}
_REMEDIES: Final[Mapping[str, str]] = {
    "layers_to_transform": "Leave it out to plan adapters on all layers, which need at least as much memory and time.",
    "layers_pattern": "Leave it out to plan adapters on all layers, which need at least as much memory and time.",
    "target_parameters": "Leave it out and name linear modules in target_modules, such as those of attention.",
    "exclude_modules": "Leave it out and list in target_modules only the modules that are adapted.",
    "trainable_token_indices": "Leave it out, or train a copy of the whole embedding (modules_to_save ['embed_tokens']).",
}
_PEFT_KEYS: Final = frozenset({*OWN_KEYS, *_WITHOUT_COST, *_REFUSED})
_SAVED: Final[Mapping[str, SavedModule]] = {
    "embed_tokens": "embed_tokens", "wte": "embed_tokens", "embed_in": "embed_tokens", "word_embeddings": "embed_tokens",
    "lm_head": "lm_head", "embed_out": "lm_head",
}  # fmt: skip
ENDS: Final = _SAVED
"""What families call the embedding and the output projection."""
_ONE_LAYER = re.compile(r"(^|\.)\d+\.")
_EXPRESSION = re.compile(r"[*+?()\[\]|\\^$]")


def is_peft(document: Mapping[str, Any]) -> bool:
    """Whether a document holds a key that only peft's files have."""
    return bool(_PEFT_KEYS & document.keys())


def contract_fields(config: Mapping[str, Any], *, model: Model, pointer: str) -> dict[str, Any]:
    """The contract's fields of a peft `adapter_config.json`, not yet checked.

    Raises:
        InvalidInputError: a key is unknown, or two keys say the same thing.
        NotModelledError: another kind of adapter, or something without a cost model here.
    """
    kind = config.get("peft_type") or "LORA"
    if kind != "LORA":
        message = f"peft_type is {shown(kind)}; only LORA is modelled"
        raise NotModelledError([Problem(child(pointer, "peft_type"), message, "Plan LoRA instead.", "not-modelled")])
    problems = _unknown(config, pointer)
    if problems:
        raise InvalidInputError(problems)
    problems = _not_modelled(config, model, pointer)
    if problems:
        raise NotModelledError(problems)
    found = {name: config[name] for name in _SAME if config.get(name) is not None}
    found |= {name: config[key] for key, name in OWN_KEYS.items() if config.get(key) is not None}
    if isinstance(saved := found.get("modules_to_save"), list):
        found["modules_to_save"] = [_SAVED.get(name, name) if isinstance(name, str) else name for name in saved]
    return found


def _unknown(config: Mapping[str, Any], pointer: str) -> list[Problem]:
    known = [*_SAME, *sorted(_PEFT_KEYS)]
    problems = [
        Problem(child(pointer, key), f"{key[:100]!r} is not a known field", choice_hint(key, known), "unknown-field")
        for key in config
        if key not in known
    ]
    for key, name in OWN_KEYS.items():
        if config.get(key) is not None and config.get(name) is not None:
            message = f"{key} and {name} are both given; they say the same thing"
            problems.append(Problem(child(pointer, key), message, "Give one of the two."))
    if "target_modules" in config and config["target_modules"] is None:
        message = "target_modules is null, for which peft has a list of its own for each family"
        problems.append(Problem(child(pointer, "target_modules"), message, "Name the modules, or use 'all-linear'."))
    return problems


def _not_modelled(config: Mapping[str, Any], model: Model, pointer: str) -> list[Problem]:
    found = [
        Problem(
            child(pointer, key),
            f"{key} is {_written(config[key])}: {what} are not modelled",
            _REMEDIES.get(key, "Leave it out."),
            "not-modelled",
        )
        for key, what in _REFUSED.items()
        # A layer's number may be 0, which asks for that layer alone; everything else is off where it is empty.
        if config.get(key) or (key == "layers_to_transform" and config.get(key) == 0)
    ]
    biased = model.qkv_bias or model.attention_out_bias or model.mlp_bias
    if (config.get("bias") or "none") != "none" and biased:
        message = f"bias is {shown(config['bias'])}: trained biases of a frozen base are not modelled"
        found.append(Problem(child(pointer, "bias"), message, "Use bias 'none'.", "not-modelled"))
    return found


def _written(value: object) -> str:
    """The value as the user wrote it, where it is short."""
    text = repr(value)
    return text if isinstance(value, list) and len(text) <= 60 else shown(value)


def refuse_patterns(names: Mapping[str, str]) -> None:
    """Refuses names of modules, by their pointers, that are regular expressions or modules of a single layer.

    Raises:
        NotModelledError: for the first such name.
    """
    for pointer, name in names.items():
        if _ONE_LAYER.search(name):
            message = f"{name!r} names a module of one layer; adapters on some layers only are not modelled"
            hint = f"Name it for all layers: {name.rpartition('.')[2]!r}."
        elif _EXPRESSION.search(name):
            message = f"{name!r} is a regular expression, which is not evaluated here"
            hint = "List the names of the modules, or use 'all-linear' or 'attention'."
        else:
            continue
        raise NotModelledError([Problem(pointer, message, hint, "not-modelled")])
