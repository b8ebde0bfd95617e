"""The Hugging Face `config.json` of a model: whichever family says exactly this specification.

Every candidate is read back with `cost_models.inputs` and compared with the whole model, so that a wrong formula makes a refusal
and never a wrong file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from cost_models.errors import InvalidInputError
from cost_models.inputs.hf.families import FAMILIES
from cost_models.inputs.model import resolve_model
from cost_models.specs.model import Model
from planner.export.hf.model_keys import DROPOUT, KEYS, OWN
from planner.export.quantities import Quantities
from planner.request.resolved import layer_type

NOT_IN_TRANSFORMERS: Final = frozenset({"mimo", "bailing_moe", "bailing_moe_v2", "glm4v_text", "glm4v_moe_text"})
"""Families without a causal language model of their own in transformers 5 (models/auto/modeling_auto.py)."""
_WITHOUT_EFFECT: Final = frozenset({"name", "family", "assumed", "warnings", "distinct_kinds", "multimodal"})
_COMPARED: Final = tuple(field.name for field in fields(Model) if field.name not in _WITHOUT_EFFECT)
_CONTRACT: Final[Mapping[str, str]] = {
    "qkv_bias": "attention_bias", "attention_out_bias": "attention_bias", "layer_kinds": "layer_types",
}  # fmt: skip
"""Fields of `Model` that the contract calls otherwise."""


def said_config(q: Quantities) -> dict[str, Any]:
    """The config of a plan's model, which says every field of it, and its dropout.

    Raises:
        FieldNotExpressibleError: for the field in which the nearest family differs.
    """
    model, seq_length = q.plan.job.model, int(q.peek("training.seq_length"))
    for name in q:
        if name.startswith("model."):
            q[name]
    # transformers leaves these modules out (modeling_deepseek_v3.py, _keys_to_ignore_on_load_unexpected).
    q.only("model.mtp_num_layers", [0], why="transformers trains no multi-token prediction")
    config, differing = nearest_config(model, seq_length=seq_length)
    if differing:
        field, found = next(iter(differing.items()))
        why = f"no family of transformers has such layers; {config['model_type']} is nearest"
        raise q.refusal(f"model.{field}", why=why, nearest={f"model.{field}": found})
    keys = DROPOUT.get(config["model_type"], ())
    if not keys:
        q.only("training.dropout", [0.0], why=f"{config['model_type']} drops nothing but attention's weights")
        return {**config, "attention_dropout": 0.0}
    return {**config, **dict.fromkeys(keys, q["training.dropout"])}


def nearest_config(model: Model, *, seq_length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config that comes nearest to a model, and the contract's fields in which it differs, with its values there.

    Args:
        seq_length: positions that the config must admit where the model does not say.
    """
    best: tuple[dict[str, Any], dict[str, Any]] | None = None
    for config in _candidates(model, seq_length):
        try:
            found = resolve_model({"hf_config": config})
        except InvalidInputError:
            continue
        differing = _differences(model, found)
        if best is None or len(differing) < len(best[1]):
            best = config, differing
        if not differing:
            break
    assert best is not None
    return best


def _candidates(model: Model, seq_length: int) -> Iterator[dict[str, Any]]:
    names = [name for name in FAMILIES if name not in NOT_IN_TRANSFORMERS]
    # The family that the model was read from, or that its name begins with, goes first: of several that say the same sizes it is
    # the one whose modules are meant.
    plain = model.name.replace("-", "").replace(".", "").replace("_", "").lower()
    first = [name for name in names if name == model.family or plain.startswith(name.replace("_", ""))]
    for name in [*sorted(first, key=len, reverse=True), *(each for each in names if each not in first)]:
        yield _config(name, model, seq_length)


def _config(family: str, model: Model, seq_length: int) -> dict[str, Any]:
    formulas = {**KEYS, **OWN.get(family, {})}
    config: dict[str, Any] = {"model_type": family}
    for key in (*FAMILIES[family].defaults, *OWN.get(family, {})):
        if key in formulas:
            config[key] = formulas[key](model)
    # Rotary models need not say how many positions they have; transformers warns beyond the number of its config.
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if config.get(key, 0) is None:
            config[key] = seq_length
    return config


def _differences(model: Model, found: Model) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    for name in _COMPARED:
        wanted, got = getattr(model, name), getattr(found, name)
        if wanted == got or (name == "max_position_embeddings" and model.position_embedding != "learned"):
            continue
        # Parts are compared one by one, so that a refusal names the one that differs.
        if name in ("moe", "mla", "recurrent") and wanted is not None and got is not None:
            parts = [each.name for each in fields(wanted) if getattr(wanted, each.name) != getattr(got, each.name)]
            differing |= {f"{name}.{part}": getattr(got, part) for part in parts}
        elif name == "layer_kinds":
            differing["layer_types"] = [layer_type(kind) for kind in got]
        else:
            differing[_CONTRACT.get(name, name)] = got
    return differing
