"""The training job as a user writes it, and its resolution.

Every default that follows from the framework, its version or date and the GPU's generation is filled in and listed in
`Training.assumed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from cost_models.documented import Documented
from cost_models.errors import InvalidInputError, Problem
from cost_models.frameworks import (
    FRAMEWORKS,
    Setting,
    default_of,
    frameworks_where,
    release_at,
    release_month,
    version_key,
)
from cost_models.hints import child
from cost_models.inputs.adapter import describe_adapter, refuse_for_framework, resolve_adapter, resolve_frozen
from cost_models.inputs.average import AverageInput, resolve_average
from cost_models.inputs.documents import DocumentLengthsInput, resolve_documents
from cost_models.inputs.fields import Count, Flag, Fraction, Name, Quantity, resolved_once, validated
from cost_models.inputs.filling import Filling, fill_state_dtypes
from cost_models.inputs.reinforcement import refuse_reinforcement
from cost_models.inputs.run import CheckpointInput
from cost_models.inputs.towers import describe_towers, resolve_towers
from cost_models.layers.parameters import count_parameters
from cost_models.specs.cluster import Cluster
from cost_models.specs.model import Model
from cost_models.specs.training import (
    EXAMPLE_TRAINING,
    Attention,
    AttentionKernel,
    CrossEntropy,
    Dtype,
    Framework,
    ModelImpl,
    Optimizer,
    Packing,
    Precision,
    Recipe,
    Training,
)

Month = Annotated[str, Field(strict=True, pattern=r"^(19|20)\d\d-(0[1-9]|1[0-2])$")]


class TrainingInput(Documented):
    """A training job; all but the first five fields have defaults by framework."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        json_schema_extra={"examples": [dict(EXAMPLE_TRAINING)]},
    )

    seq_length: Count | None = None
    """Length of a sequence, in tokens."""
    global_batch_size: Count | None = None
    """Number of sequences of one optimizer step; `global_batch_tokens` may be given instead."""
    global_batch_tokens: Count | None = None
    """Tokens of one optimizer step; a whole number of sequences."""
    precision: Precision | None = None
    """Type that the matrix products compute in."""
    framework: Framework | None = None
    """The framework that will run the plan."""
    framework_version: Name | None = None
    """Its release, such as "0.16". Default: the newest known one of `software_date`."""
    software_date: Month | None = None
    """Month (YYYY-MM) that tells which kernels the stack has, where no version is given."""
    model_impl: ModelImpl | None = None
    """Whose modules run: the framework's own, Hugging Face transformers (the default of `deepspeed` and `fsdp`), or these with Liger's kernels. It decides their kernels, what they save, the loss and the host's time; Megatron and nanotron have modules of their own."""
    transformer_impl: Literal["transformer-engine", "local"] | None = None
    """Whether layers come from Transformer Engine or from the framework itself. Default by framework."""
    attention: Attention | None = None
    """Whether attention runs in one fused kernel (flash) or writes its scores to memory (math). Default by framework."""
    attention_kernel: AttentionKernel | None = None
    """Which fused kernel runs attention. Default by framework, date and GPU."""
    cross_entropy: CrossEntropy | None = None
    """How the loss is computed, which decides how many bytes each logit holds. Default by framework."""
    fp8_recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"] | None = None
    """How fp8 products are scaled. Default by framework and GPU."""
    optimizer: Optimizer | None = None
    """The optimizer. Default adam. sgd keeps momentum in Megatron alone, sgd-momentum everywhere. muon updates the matrices of the layers, and Adam embeddings, head, norms and biases; adam-8bit and adam-4bit hold both moments in blocks of 8 or 4 bits; adafactor holds sums of rows and columns; lion one moment."""
    param_dtype: Dtype | None = None
    """Type of the stored parameters. Default by framework and precision."""
    main_param_dtype: Literal["fp32", "bf16", "fp16", "fp8", "none"] | None = None
    """Type of the optimizer's own copy of the parameters, or "none". Default by framework and precision."""
    grad_dtype: Dtype | None = None
    """Type of the gradient buffer. Default by framework and precision."""
    grad_reduce_dtype: Dtype | None = None
    """Type in which gradients travel between GPUs. Default by framework and precision."""
    optimizer_state_dtype: Dtype | None = None
    """Type of the optimizer's moments. Default by framework and precision."""
    compile: Flag | None = None
    """Whether the model is compiled (torch.compile). Default by framework."""
    cuda_graphs: Flag | None = None
    """Whether steps are replayed from CUDA graphs. Default by framework."""
    expandable_segments: Flag | None = None
    """Whether PyTorch's allocator uses expandable segments. Default by framework."""
    dropout: Fraction | None = None
    """Probability of dropout, from 0 to 1. Default 0."""
    recipe: Recipe | None = None
    """Whose habits stand in for what is not said: NVIDIA's published performance recipes for Megatron. Without one, the framework's own defaults do."""
    mean_document_length: Quantity | None = None
    """Tokens of a document on average, where sequences are packed and attention stays inside a document. Default: whole
    sequences."""
    document_lengths: DocumentLengthsInput | None = None
    """Lengths of packed documents: `{"mean": tokens}`, or a list of `[length, share]`, of which share tells how many of all documents
    have the length, in any unit. Attention stays inside a document; what is longer than a sequence is cut."""
    packing: Packing | None = None
    """How documents lie in sequences: "packed", one after another until a sequence is full (default), or "padded", one in each sequence, which is
    cut off or padded to seq_length. Padding takes time and memory, and counts neither as tokens nor as model operations."""
    total_tokens: Annotated[float, Field(strict=True, gt=0, le=1e18, allow_inf_nan=False)] | None = None
    """Tokens of the whole training, which `targets.deadline_h` needs."""
    tokens_per_parameter: Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)] | None = None
    """Tokens of the whole training for each parameter of the model, as a ratio; it may be given in place of `total_tokens`."""
    checkpoint: CheckpointInput | None = None
    """How the state is saved, for the goodput of a whole run."""
    adapter: Annotated[dict[str, Any], Field(json_schema_extra=describe_adapter)] | None = None
    """Low-rank adapters that are trained beside a frozen base: `rank`, `target_modules` (names, "all-linear" or "attention"), `quantized_base`
    ("none", "nf4", "int8" or "fp8"), `dora`, `dropout`; or the content of a peft adapter_config.json."""
    frozen: Annotated[list[Name], Field(max_length=1000)] | None = None
    """Parts that are not trained: "embedding", "head", "norms", "attention", "mlp", "experts", or patterns of module paths that name whole parts."""
    towers: Annotated[dict[str, Any], Field(json_schema_extra=describe_towers)] | None = None
    """The vision or audio towers in front of a multimodal model's text model, and whether they are trained. Without it the text model alone
    is planned, with a warning."""
    ema: AverageInput | None = None
    """A moving average of the weights that is kept beside them: where it lies (`device`). Default: none is kept."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a training job is checked against."""

    gpu: str
    generation: str
    precisions: tuple[str, ...]
    learned_positions: int | None
    classes: int | None = None
    """Of the model's classification head."""
    num_parameters: int | None = None
    """Of the model, where the tokens of the training are stated for each of them."""


def resolve_training(
    document: Mapping[str, Any], *, model: Model, cluster: Cluster, pointer: str = "/training"
) -> Training:
    """The training job that a document describes, with every default filled and reported.

    Raises:
        InvalidInputError: with one Problem per broken rule; NotModelledError for an adapter or frozen parts without a cost model.
    """
    gpu = cluster.gpu
    learned = model.max_position_embeddings if model.position_embedding == "learned" else None
    # Counting takes time, and few jobs ask for it.
    parameters = count_parameters(model).total if _says(document, "tokens_per_parameter") else None
    facts = _Facts(gpu.name, gpu.generation, tuple(gpu.peak_flops_per_s), learned, model.classes, parameters)
    # What is trained is checked against the model, which does not hash; few jobs say so, and the others are kept.
    if _says(document, "adapter", "frozen", "towers"):
        return _with_trained_parts(document, facts, model, pointer)
    return resolved_once(
        lambda key: _from_json(key, facts, pointer), lambda d: _resolved(d, facts, pointer), document, pointer
    )


def _says(document: object, *names: str) -> bool:
    """Whether the document, which is not checked yet, has one of these fields."""
    return isinstance(document, Mapping) and any(name in document for name in names)


@lru_cache(maxsize=4096)
def _from_json(key: str, facts: _Facts, pointer: str) -> Training:
    return _resolved(json.loads(key), facts, pointer)


_KEPT: dict[tuple[int, str, _Facts, str], tuple[Model, Training]] = {}
"""Jobs with adapters by the identity of their model, which is kept with them so that no identity is used again."""
_MOST_KEPT = 512


def _with_trained_parts(document: Mapping[str, Any], facts: _Facts, model: Model, pointer: str) -> Training:
    """The training job with the parts of the model that it trains; the same object for the same model and document."""
    key = (id(model), json.dumps(document, sort_keys=True, default=repr), facts, pointer)
    kept = _KEPT.get(key)
    if kept is None:
        training = _resolved(document, facts, pointer, model=model)
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = kept = (model, training)
    return kept[1]


def _resolved(document: Mapping[str, Any], facts: _Facts, pointer: str, *, model: Model | None = None) -> Training:
    refuse_reinforcement(document, pointer=pointer)
    given = validated(TrainingInput, document, pointer=pointer)
    problems = _missing(given, pointer)
    if problems:
        raise InvalidInputError(problems)
    assert given.precision
    assert given.framework
    assert given.seq_length
    # Missing fields were refused first, so from here on rules can compare fields without asking whether they are
    # there.
    batch, problems = _batch(given, pointer)
    problems += _unsupported(given, facts, pointer)
    if problems:
        raise InvalidInputError(problems)
    filled = _with_documents(given, _filled(given, batch, facts), pointer)
    if given.ema is not None:
        average, coarse = resolve_average(given.ema, filled, child(pointer, "ema"))
        filled = replace(filled, ema=average, warnings=(*filled.warnings, *coarse))
    if model is None:
        return filled
    adapter, at = None, child(pointer, "adapter")
    if given.adapter is not None:
        adapter = resolve_adapter(given.adapter, model=model, pointer=at)
        refuse_for_framework(filled, adapter, at)
        if given.frozen:
            message = "adapter and frozen are both given; an adapter freezes all of the base already"
            raise InvalidInputError([Problem(child(pointer, "frozen"), message, "Give one of the two.")])
    towers, assumed = None, filled.assumed
    if given.towers is not None:
        at = child(pointer, "towers")
        towers, read = resolve_towers(given.towers, model=model, training=filled, pointer=at)
        assumed = {**assumed, **{f"towers.{name}": value for name, value in read.items()}}
    trains_towers = towers is not None and towers.trains_something
    at = child(pointer, "frozen")
    frozen = resolve_frozen(given.frozen, model=model, pointer=at, others=trains_towers) if given.frozen else ()
    warnings = filled.warnings
    if adapter is not None and towers is not None and towers.uses:
        warnings = (*warnings, "adapters-not-in-towers")
    return replace(filled, adapter=adapter, frozen=frozen, towers=towers, assumed=assumed, warnings=warnings)


def _with_documents(given: TrainingInput, filled: Training, pointer: str) -> Training:
    """The job with what it says of documents: their lengths, and how they lie in sequences."""
    documents, mean = resolve_documents(
        given.document_lengths, given.mean_document_length, seq_length=filled.seq_length, pointer=pointer
    )
    if filled.is_padded:
        filled = replace(filled, warnings=(*filled.warnings, *_of_padding(filled, mean, pointer)))
    if given.document_lengths is None:
        return filled
    # Rows that attention computes whole take as long as each other.
    evenly = filled.is_padded and not filled.skips_padding
    several = len({length for length, _ in documents or ()}) > 1
    varies = ("document-lengths-vary",) if several and not evenly else ()
    return replace(filled, document_lengths=documents, mean_document_length=mean, warnings=(*filled.warnings, *varies))


def _of_padding(training: Training, length: float | None, pointer: str) -> tuple[str, ...]:
    """Warnings about sequences that are padded; `length` is that of documents, in tokens."""
    if length is None:
        message = "packing is 'padded', but nothing says how long documents are"
        raise InvalidInputError([Problem(child(pointer, "packing"), message, "Add document_lengths.", "missing-field")])
    if FRAMEWORKS[training.framework].model_impl != "transformers":
        return ()
    masked = training.attention == "flash" and not training.skips_padding
    return ("padded-to-seq-length", *(("padding-masks-attention",) if masked else ()))


def _missing(given: TrainingInput, pointer: str) -> list[Problem]:
    problems = [
        Problem(child(pointer, name), f"{name} is required", f"Add {name!r}.", "missing-field")
        for name in ("seq_length", "precision", "framework")
        if getattr(given, name) is None
    ]
    if given.global_batch_size is None and given.global_batch_tokens is None:
        message = "global_batch_size is required"
        hint = "Add 'global_batch_size' (sequences) or 'global_batch_tokens'."
        problems.append(Problem(child(pointer, "global_batch_size"), message, hint, "missing-field"))
    return problems


def _batch(given: TrainingInput, pointer: str) -> tuple[int, list[Problem]]:
    """Sequences per step, and what is wrong with them."""
    assert given.seq_length
    tokens, sequences = given.global_batch_tokens, given.global_batch_size
    if tokens is None:
        return sequences or 0, []
    at = child(pointer, "global_batch_tokens")
    if tokens % given.seq_length:
        near = max(1, round(tokens / given.seq_length)) * given.seq_length
        message = f"global_batch_tokens {tokens} is not a whole number of sequences of {given.seq_length} tokens"
        return 0, [Problem(at, message, f"Use {near}.")]
    whole = tokens // given.seq_length
    if sequences not in (None, whole):
        message = f"global_batch_tokens {tokens} is {whole} sequences, but global_batch_size is {sequences}"
        return 0, [Problem(at, message, "Give one of the two.")]
    return whole, []


def _unsupported(given: TrainingInput, facts: _Facts, pointer: str) -> list[Problem]:
    assert given.precision
    assert given.framework
    assert given.seq_length
    problems = []
    if given.precision not in facts.precisions:
        message = f"precision is {given.precision!r}, which {facts.gpu} does not have"
        hint = "It has " + ", ".join(facts.precisions) + "; a custom GPU states peaks in gpu.peak_tflops."
        problems.append(Problem(child(pointer, "precision"), message, hint, "precision-not-supported"))
    if facts.learned_positions is not None and given.seq_length > facts.learned_positions:
        message = f"seq_length {given.seq_length} is more than the model's {facts.learned_positions} learned positions"
        problems.append(Problem(child(pointer, "seq_length"), message, "Shorten it, or raise max_position_embeddings."))
    if given.recipe is not None and given.recipe not in FRAMEWORKS[given.framework].choices.recipes:
        recipe = given.recipe
        meant = " or ".join(sorted(frameworks_where(lambda facts: recipe in facts.choices.recipes)))
        message = f"recipe is {recipe!r}, which is written for {meant}, not for {given.framework}"
        problems.append(Problem(child(pointer, "recipe"), message, f"Leave 'recipe' out, or plan for {meant}."))
    if given.framework_version is not None and not version_key(given.framework_version):
        message = f"framework_version is {given.framework_version!r}; it must contain a number"
        problems.append(Problem(child(pointer, "framework_version"), message, "Write it like '0.16'."))
    if facts.classes is not None and FRAMEWORKS[given.framework].model_impl != "transformers":
        able = " or ".join(sorted(frameworks_where(lambda each: each.model_impl == "transformers")))
        message = f"model.classes is {facts.classes}, but {given.framework} trains language models, without a classification head"
        problems.append(Problem(child(pointer, "framework"), message, f"Use {able}, or leave model.classes out."))
    if given.total_tokens is not None and given.tokens_per_parameter is not None:
        message = f"total_tokens {given.total_tokens:g} and tokens_per_parameter {given.tokens_per_parameter:g} are both given"
        problems.append(Problem(child(pointer, "tokens_per_parameter"), message, "Give one of the two."))
    return problems


_NOT_FILLED = {
    "global_batch_tokens", "tokens_per_parameter", "adapter", "frozen", "checkpoint", "towers", "document_lengths", "ema",
}  # fmt: skip
"""Fields of the document that are no fields of a training, or are resolved by themselves."""


def _filled(given: TrainingInput, batch: int, facts: _Facts) -> Training:
    assert given.precision
    assert given.framework
    values = given.model_dump(exclude_none=True, exclude=_NOT_FILLED)
    job = Filling({**values, "global_batch_size": batch}, {})
    version, date, warnings = _release(given)
    job.fill("framework_version", version)
    job.fill("software_date", date)
    job.fill("model_impl", FRAMEWORKS[given.framework].model_impl)
    if given.precision == "fp32" and given.attention == "flash":
        job.values["attention"] = job.assumed["attention"] = "math"
        warnings = (*warnings, "attention-math-for-fp32")
    setting = Setting(given.framework, date, facts.generation, given.precision, version=version, recipe=given.recipe)
    _fill_kernels(job, setting)
    job.fill("optimizer", "adam")
    fill_state_dtypes(job, given.precision, given.framework)
    if given.tokens_per_parameter is not None and facts.num_parameters is not None:
        job.fill("total_tokens", given.tokens_per_parameter * facts.num_parameters)
    for name in ("recipe", "mean_document_length", "total_tokens", "packing"):
        job.fill(name, None, told=False)
    checkpoint = None if given.checkpoint is None else given.checkpoint.resolved()
    return Training(**job.values, checkpoint=checkpoint, assumed=job.assumed, warnings=warnings)


def _fill_kernels(job: Filling, setting: Setting) -> None:
    """Which kernels run: the fields whose default is one look-up."""
    impl = job.fill("transformer_impl", default_of("transformer_impl", setting))
    compiled = job.fill("compile", default_of("compile", setting))
    setting = replace(setting, impl=impl, compiled=compiled)
    flash = job.fill("attention", default_of("attention", setting)) == "flash"
    job.fill("attention_kernel", default_of("attention_kernel", setting), told=flash)
    job.fill("fp8_recipe", default_of("fp8_recipe", setting), told=setting.precision == "fp8")
    if job.values["model_impl"] == "liger":  # its patches take the fused linear cross entropy unless told otherwise
        job.fill("cross_entropy", "linear")
    for name in ("cross_entropy", "cuda_graphs", "expandable_segments", "dropout"):
        job.fill(name, default_of(name, setting))


def _release(given: TrainingInput) -> tuple[str, str, tuple[str, ...]]:
    """Framework version, software date, warnings: each follows from the other where only one is given."""
    assert given.framework
    if given.framework_version is not None:
        date, known = release_month(given.framework, given.framework_version)
        return given.framework_version, given.software_date or date, () if known else ("framework-version-unknown",)
    if given.software_date is not None:
        return release_at(given.framework, given.software_date), given.software_date, ()
    version = FRAMEWORKS[given.framework].default_version
    return version, release_month(given.framework, version)[0], ()
