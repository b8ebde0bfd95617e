"""The adapter of a training job and the parts that it freezes, as a user writes them, checked against the model.

`target_modules` holds names of the model's own linear modules or one of the presets "all-linear" and "attention". The keys of a
peft `adapter_config.json` are read under their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.frameworks import FRAMEWORKS, framework_facts, frameworks_where
from cost_models.hints import child, choice_hint, shown
from cost_models.inputs.fields import STRICT, Count, CountOrZero, Flag, Fraction, Name, validated
from cost_models.inputs.peft_config import ENDS, OWN_KEYS, contract_fields, is_peft, refuse_patterns
from cost_models.layers.linears import PRESETS, Linear, layer_linears, names_for, own_names, preset_modules
from cost_models.specs.adapter import ADAPTER_FEATURES, FROZEN_PARTS, Adapter, QuantizedBase, SavedModule
from cost_models.specs.model import Model
from cost_models.specs.training import Training

Modules = Annotated[
    list[Name], BeforeValidator(lambda given: [given] if isinstance(given, str) else given), Field(max_length=200)
]
"""Names, of which a single one may stand without a list."""


class AdapterInput(Documented):
    """Low-rank adapters beside a frozen base."""

    model_config = STRICT

    rank: CountOrZero
    """Inner width of each adapter."""
    target_modules: Modules = Field(default=["all-linear"])
    """Names of linear modules, or "all-linear" or "attention"."""
    quantized_base: QuantizedBase = "none"
    """How the base's linear weights are stored: nf4 is QLoRA's, with block scales that are quantised again."""
    dora: Flag = False
    """Whether a magnitude is trained for every output, as DoRA does."""
    dropout: Fraction = 0.0
    """Probability with which an adapter's inputs are dropped."""
    rank_pattern: dict[Name, Count] = Field(default_factory=dict)
    """Ranks of modules that have one of their own."""
    modules_to_save: list[SavedModule] = Field(default_factory=list)
    """Modules of which a whole copy is trained beside the frozen one."""


def describe_adapter(schema: dict[str, Any]) -> None:
    """Completes the JSON schema of an adapter, which is checked against the model and so only kept here; peft has more keys."""
    schema.update(AdapterInput.model_json_schema(), additionalProperties=True)


_CONTAINERS: Final = frozenset({
    "model", "transformer", "gpt_neox", "decoder", "layers", "layer", "h", "blocks", "block", "language_model", "self_attn",
    "self_attention", "attn", "attention", "mlp", "ffn", "shared_expert", "shared_experts",
})  # fmt: skip
"""What families call the modules that hold linear ones (transformers/models/*/modeling_*.py)."""


def resolve_adapter(document: object, *, model: Model, pointer: str) -> Adapter:
    """The adapter that a document describes, its modules checked against the model.

    Raises:
        InvalidInputError: a field is wrong, or the model has no module of a name.
        NotModelledError: a peft config asks for something without a cost model here.
    """
    peft = isinstance(document, Mapping) and is_peft(document)
    if peft:
        assert isinstance(document, Mapping)
        read = contract_fields(document, model=model, pointer=pointer)
        try:
            return _resolved(read, model, pointer)
        except InvalidInputError as error:
            raise type(error)([_under_own_key(problem, document, pointer) for problem in error.problems]) from None
    return _resolved(document, model, pointer)


def _under_own_key(problem: Problem, config: Mapping[str, Any], pointer: str) -> Problem:
    """The problem at the key that the user wrote, where peft's name differs from the contract's."""
    for key, name in OWN_KEYS.items():
        if problem.pointer == child(pointer, name) and key in config:
            message = re.sub(rf"\b{name}\b", key, problem.message, count=1)
            return replace(problem, pointer=child(pointer, key), message=message)
    return problem


def _resolved(document: object, model: Model, pointer: str) -> Adapter:
    alone = isinstance(document, Mapping) and isinstance(document.get("target_modules"), str)
    if isinstance(document, Mapping):
        _refuse_base_alone(document, pointer)
    given = validated(AdapterInput, document, pointer=pointer)
    problems = []
    if given.rank == 0:
        message = "rank is 0, so that the adapter would train nothing"
        problems.append(Problem(child(pointer, "rank"), message, "Use a rank such as 8 or 16, or leave 'adapter' out."))
    targets, wrong = _targets(given.target_modules, model, child(pointer, "target_modules"), alone=alone)
    problems += wrong
    refuse_patterns({child(pointer, "rank_pattern", name): name for name in given.rank_pattern})
    ranks = {name.rpartition(".")[2]: rank for name, rank in given.rank_pattern.items()}
    for name in ranks:
        if name not in targets and not wrong:
            message = f"rank_pattern names {name!r}, which is not among the target_modules"
            problems.append(Problem(child(pointer, "rank_pattern"), message, choice_hint(name, targets)))
    if model.tie_word_embeddings and given.modules_to_save:
        message = (
            f"modules_to_save names {given.modules_to_save[0]!r}, but the model's output projection is its embedding "
            "(tie_word_embeddings), and a trained copy of one would leave the other frozen"
        )
        hint = "Leave modules_to_save out, or untie the two (tie_word_embeddings false)."
        problems.append(Problem(child(pointer, "modules_to_save"), message, hint))
    if not problems:
        problems += _too_wide(given, targets, model, pointer)
    if problems:
        raise InvalidInputError(problems)
    return Adapter(
        given.rank,
        targets,
        given.quantized_base,
        given.dora,
        given.dropout,
        tuple(sorted(ranks.items())),
        tuple(sorted(set(given.modules_to_save))),
    )


def _refuse_base_alone(document: Mapping[str, Any], pointer: str) -> None:
    """Refuses a quantised base beside which nothing is trained."""
    base, rank = document.get("quantized_base", "none"), document.get("rank")
    if base in ("none", None) or rank not in (None, 0) or isinstance(rank, bool):
        return
    message = (
        f"quantized_base is {shown(base)}, but no adapter is given; quantised weights cannot be trained themselves"
    )
    hint = "Add a 'rank' such as 16, or leave 'quantized_base' out."
    raise InvalidInputError([Problem(child(pointer, "rank"), message, hint)])


def _too_wide(given: AdapterInput, targets: tuple[str, ...], model: Model, pointer: str) -> list[Problem]:
    """The problem of a rank that no adapted module is as wide as: the adapter would be larger than the weight beside it."""
    names = names_for(model, targets)
    linears = [linear for kind in model.distinct_kinds for linear in layer_linears(model, kind, names)]
    widest = max(min(linear.inputs, linear.outputs) for linear in linears if linear.name in targets)
    given_at = {child(pointer, "rank"): given.rank}
    given_at |= {child(pointer, "rank_pattern", name): rank for name, rank in given.rank_pattern.items()}
    hint = "Use a rank such as 16, or train the weights themselves."
    return [
        Problem(at, f"rank is {rank}, more than the {widest} inputs or outputs of the widest adapted module", hint)
        for at, rank in given_at.items()
        if rank > widest
    ]


def _targets(wanted: list[str], model: Model, at: str, *, alone: bool) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of the modules, or what is wrong with them; `alone` where a single name stands without a list."""
    if not wanted:
        return (), [Problem(at, "target_modules is empty", f"Name modules, or use one of {', '.join(PRESETS)}.")]
    if len(wanted) == 1 and wanted[0] in PRESETS:
        found = preset_modules(model, wanted[0])
        message = f"the model has no linear modules that {wanted[0]!r} could stand for"
        return found, [] if found else [Problem(at, message, "Name the modules.")]
    places = [at] if alone else [child(at, position) for position in range(len(wanted))]
    refuse_patterns(dict(zip(places, wanted, strict=True)))
    bare = tuple(dict.fromkeys(name.rpartition(".")[2] for name in wanted))
    names = names_for(model, bare)
    linears = [linear for kind in model.distinct_kinds for linear in layer_linears(model, kind, names)]
    problems = []
    for place, name in zip(places, wanted, strict=True):
        problem = _no_target(name, linears, model)
        if problem is not None:
            problems.append(replace(problem, pointer=place))
    return bare, problems


def _no_target(name: str, linears: list[Linear], model: Model) -> Problem | None:
    """What is wrong with one name of a module; None where it is the model's."""
    holder, _, last = name.rpartition(".")
    known = sorted({linear.name for linear in linears})
    if last in known:
        strange = next((step for step in holder.split(".") if holder and step not in _CONTAINERS), None)
        if strange is not None:
            hint = choice_hint(strange, sorted(_CONTAINERS))
            return Problem("", f"the model has no linear module {name!r}; no module is called {strange!r}", hint)
        if holder and len({linear.part for linear in linears if linear.name == last}) > 1:
            message = f"{name!r} names only one of the modules called {last!r}, which are adapted together here"
            return Problem("", message, f"Name {last!r}.", "not-modelled")
        return None
    if last not in ENDS:
        return Problem("", f"the model has no linear module {name!r}", choice_hint(last, [*known, *PRESETS]))
    if model.tie_word_embeddings:
        message = f"{last} is the embedding and the output projection at once (tie_word_embeddings) and frozen, so it cannot have an adapter"
        return Problem("", message, "Leave it out.")
    message = f"an adapter on {last} is not modelled"
    return Problem("", message, "Leave it out, or train a copy of it (modules_to_save).", "not-modelled")


def resolve_frozen(patterns: list[str], *, model: Model, pointer: str, others: bool = False) -> tuple[str, ...]:
    """The parts of the model that these patterns freeze, in the order of `FROZEN_PARTS`.

    A pattern is a part's name, the path of a module or of what contains it, or either with wildcards. What it names must be a whole
    part of every layer. All of it may be frozen where something else is trained (`others`), such as a projector.

    Raises:
        InvalidInputError: a pattern names nothing; NotModelledError: it names a piece of a part.
    """
    paths = _module_paths(model)
    frozen: set[str] = set()
    for position, pattern in enumerate(patterns):
        at = child(pointer, position)
        if pattern in FROZEN_PARTS and any(part == pattern for part, _ in paths):
            hit = {path for part, path in paths if part == pattern}
        else:
            hit = {path for _, path in paths if _names(pattern, path)}
        if not hit:
            message = f"the model has no module {pattern!r}"
            hint = choice_hint(pattern, sorted({part for part, _ in paths}))
            raise InvalidInputError([Problem(at, message, hint)])
        frozen |= hit
    parts = {part for part, path in paths if path in frozen}
    for part in parts:
        missing = [path for other, path in paths if other == part and path not in frozen]
        if missing:
            message = f"frozen names a piece of the part {part!r} only; {missing[0]!r} would stay trained"
            hint = f"Freeze all of it ({part!r}) or none of it."
            raise NotModelledError([Problem(pointer, message, hint, "not-modelled")])
    if parts >= {part for part, _ in paths} and not others:
        raise InvalidInputError([Problem(pointer, "frozen names every part of the model", "Leave a part out.")])
    return tuple(part for part in FROZEN_PARTS if part in parts)


def _names(pattern: str, path: str) -> bool:
    """Whether a pattern names a module or what contains it."""
    steps = path.split(".")
    heads = [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
    return any(fnmatchcase(head, pattern) or fnmatchcase(head, "*." + pattern) for head in heads)


def _module_paths(model: Model) -> list[tuple[str, str]]:
    """Parts with the paths of their modules, layers numbered, under the names of transformers."""
    found = [("embedding", "model.embed_tokens")]
    if not model.tie_word_embeddings:
        found.append(("head", "lm_head"))
    if model.final_norm and (model.norm_weight or model.norm_bias):
        found.append(("norms", "model.norm"))
    names = own_names(model)
    blocks = {"attention": ("attention", "self_attn"), "mlp": ("mlp", "mlp"), "shared": ("mlp", "mlp.shared_experts")}
    for number, kind in enumerate(model.layer_kinds):
        layer = f"model.layers.{number}"
        found += [("norms", f"{layer}.{name}") for name in ("input_layernorm", "post_attention_layernorm")]
        for linear in layer_linears(model, kind, names):
            part, block = blocks[linear.part]
            found.append((part, f"{layer}.{block}.{linear.name}"))
        if kind.is_moe:
            found.append(("experts", f"{layer}.mlp.experts"))
    return found


def refuse_for_framework(training: Training, adapter: Adapter, pointer: str) -> None:
    """Refuses what the framework of the training cannot do with adapters under any strategy.

    Raises:
        InvalidInputError: it has no adapters, or none with this base or feature.
    """
    name, choices, base = training.framework, framework_facts(training).choices, adapter.quantized_base
    if not choices.adapters:
        able = _either(frameworks_where(lambda facts: facts.choices.adapters))
        which = f"{name} {training.framework_version}" if FRAMEWORKS[name].choices.adapters else name
        message = f"{which} has no adapters"
        raise InvalidInputError([Problem(pointer, message, f"Use {able}, or leave 'adapter' out.")])
    if base != "none" and base not in choices.quantized_bases:
        able = _either(frameworks_where(lambda facts: base in facts.choices.quantized_bases))
        message = f"{name} cannot train adapters beside a base quantised to {base!r}"
        bases = _either(repr(each) for each in choices.quantized_bases)
        hint = f"Use {able}, or quantized_base 'none'." if able else f"Use quantized_base {bases or repr('none')}."
        raise InvalidInputError([Problem(child(pointer, "quantized_base"), message, hint)])
    for feature in ADAPTER_FEATURES:
        if getattr(adapter, feature) and feature not in choices.adapter_features:
            able = _either(n for n, f in FRAMEWORKS.items() if feature in f.choices.adapter_features)
            message = f"{name}'s adapters have no {feature}"
            raise InvalidInputError([Problem(child(pointer, feature), message, f"Leave it out, or use {able}.")])


def _either(names: Iterable[str]) -> str:
    """Names as alternatives, such as "a, b or c"; empty where there are none."""
    *most, last = sorted(names) or [""]
    return f"{', '.join(most)} or {last}" if most else last
