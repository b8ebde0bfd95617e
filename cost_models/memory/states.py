"""Bytes of parameters, main copies, gradients and optimizer states per rank, under ZeRO 0-3 and hybrid sharding.

Dense parameters are shared by dp*cp ranks, routed experts by edp ranks; `zero_shard_size` ranks of the former, and the
corresponding share of the latter, hold one copy of what is sharded. Array suffixes: K slots, N strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.casts import weight_copy_bytes
from cost_models.layers.tower_parameters import rank_tower_elements
from cost_models.layers.trained import adapter_elements, frozen_layer_elements, linear_elements, saved_elements
from cost_models.memory.adapted import base_bytes, stored_base, trains_all
from cost_models.memory.averages import average_bytes
from cost_models.memory.batch import NOTHING, Batch
from cost_models.memory.constants import HOST_BUFFER_RATIO
from cost_models.memory.drives import on_drives, uses_drives
from cost_models.memory.shaped_states import SHAPED, shaped_states
from cost_models.specs.training import BYTES_PER, Training
from cost_models.strategies.strategy import Floats, Strategies

_BLOCKWISE_SCALE_BYTES = 4.0 / 256.0
"""Bytes per element of the scales that bitsandbytes' 8-bit optimizers keep: one fp32 value for 256 elements."""

_FOUR_BIT_SCALE_BYTES = 4.0 / 128.0
"""Bytes per element of the scales of torchao's 4-bit optimizers: one fp32 value for 128 elements (optim/subclass_4bit.py)."""
MOMENTS_HELD: Mapping[str, float] = {"adam": 2.0, "muon": 1.0, "lion": 1.0, "sgd-momentum": 1.0, "adafactor": 0.0}
"""Moments of an element by optimizer, where `shaped_states` adds nothing; sgd's are a trait of the framework."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of a rank before sharding, shape (N,), or bytes of a whole stage, shape (K, N)."""

    parameters: Floats
    main: Floats
    gradients: Floats
    optimizer: Floats
    step: Floats
    """Gradients cast for the optimizer step, and the step's temporaries."""
    host: Floats
    """Host memory needed for state: what is held there, the gradients that the update reads, and buffers."""


@dataclass(frozen=True, eq=False)
class StageStates:
    """State of every slot's stage."""

    elements_KN: Floats
    """A rank's parameters before data-parallel sharding, adapters left out."""
    trained_KN: Floats
    """Those that have gradients: all of them, the adapters, or what is not frozen."""
    bytes_KN: StateBytes
    early_gradients_KN: Floats
    """Bytes of gradients that are held when a later micro-batch's loss and backward run."""
    gradients_exist: Floats
    """1 where gradients are held before the step's last backward, else 0, shape (N,)."""
    drives_KN: Floats = field(default_factory=lambda: NOTHING)
    """Bytes of a rank on its node's drives."""


def optimizer_state_bytes(training: Training, traits: MemoryTraits) -> float:
    """Bytes of optimizer moments per owned parameter. [M-4]"""
    if training.optimizer == "adam-8bit":
        return 2.0 * (1.0 + _BLOCKWISE_SCALE_BYTES)
    if training.optimizer == "adam-4bit":
        return 2.0 * (0.5 + _FOUR_BIT_SCALE_BYTES)
    moments = MOMENTS_HELD.get(training.optimizer, traits.sgd_states)
    return moments * BYTES_PER[training.optimizer_state_dtype]


def state_bytes(job: Job, traits: MemoryTraits, strategies: Strategies, *, shard: Floats) -> StateBytes:
    """Bytes per parameter where `shard` ranks share the sharded state. [M-1] [M-2] [M-3] [M-4] [M-11] [M-16]

    Args:
        job: model, cluster, training and prices.
        traits: what the framework keeps in memory.
        strategies: shape (N,).
        shard: ranks that share one copy of the sharded state, shape (N,).
    """
    training, zero = job.training, strategies.zero
    parameter, gradient = BYTES_PER[training.param_dtype], BYTES_PER[training.grad_dtype]
    main, moments = BYTES_PER[training.main_param_dtype], optimizer_state_bytes(training, traits)
    owned = np.where(zero >= 1, 1.0 / shard, 1.0)
    # FSDP shards parameters between steps even where it does not reshard them behind forward, which is what ZeRO-2
    # means there; the gathered copies of that case are counted in `communication` [M-8].
    parameters = parameter * np.where(zero >= (2 if traits.zero2_shards_parameters else 3), owned, 1.0)
    gradients = gradient * np.where(zero >= 2, owned, 1.0)

    # FSDP's offload takes parameters, gradients and optimizer together; DeepSpeed's optimizer takes sharded gradients.
    away = strategies.offload_parameters.astype(np.float64)
    moved = strategies.offload_optimizer_fraction
    # DeepSpeed's offload takes sharded gradients along; whole ones stay on the GPU.
    gradients_moved = np.where(zero >= 2, moved, 0.0) if traits.offload_takes_gradients else 0.0 * moved
    host_gradients = main * owned * moved
    if traits.zero2_shards_parameters:
        moved, gradients_moved = np.maximum(moved, away), away
        host_gradients = gradients * away

    # Owned gradients narrower than the main parameters are copied to the wider type for the step; see M-11 for who
    # does so.
    cast = main if gradient < main and _casts_gradients(training, traits) else 0.0
    temporary = cast + traits.optimizer_copies * BYTES_PER[training.optimizer_state_dtype]
    return StateBytes(
        parameters=parameters * (1.0 - away) + _secondary_partition(training, strategies),
        main=main * owned * (1.0 - moved),
        gradients=gradients * (1.0 - gradients_moved),
        optimizer=moments * owned * (1.0 - moved),
        step=temporary * owned * (1.0 - moved),
        host=HOST_BUFFER_RATIO.value * ((main + moments) * owned * moved + parameters * away + host_gradients),
    )


def _casts_gradients(training: Training, traits: MemoryTraits) -> bool:
    """Whether narrow gradients are copied to the main parameters' type for the step. [M-11]"""
    if traits.casts_gradients_for_step == "unless-states-narrow":
        return BYTES_PER[training.optimizer_state_dtype] >= BYTES_PER[training.main_param_dtype]
    return traits.casts_gradients_for_step == "always"


def _secondary_partition(training: Training, strategies: Strategies) -> Floats:
    """Bytes per parameter of hpZ's copy in the compute type, shared by fewer ranks than the state, shape (N,). [M-1]"""
    fewer = (strategies.zero >= 3) & (strategies.zero_param_shard_size < strategies.zero_shard_size)
    return np.where(fewer, training.compute_bytes / strategies.zero_param_shard_size, 0.0)


def stage_states(batch: Batch) -> StageStates:
    """State bytes of every slot's stage. [M-1] [M-2] [M-3] [M-4]"""
    job, traits, strategies = batch.job, batch.traits, batch.strategies
    dense_KN, expert_KN = _elements(batch)
    if not trains_all(job):
        return _partly_trained(batch, dense_KN, expert_KN)
    dense = state_bytes(job, traits, strategies, shard=strategies.zero_shard_size)
    parts = {part.name: dense_KN * getattr(dense, part.name) for part in fields(StateBytes)}
    elements_KN = dense_KN
    if job.model.moe is not None:
        expert = state_bytes(job, traits, strategies, shard=strategies.expert_shard_size)
        parts = {name: value + expert_KN * getattr(expert, name) for name, value in parts.items()}
        elements_KN = dense_KN + expert_KN
    if not BYTES_PER[job.training.main_param_dtype]:
        parts["main"] = NOTHING
    parts["parameters"] = parts["parameters"] + _quantised_copies(batch, elements_KN)
    parts["gradients"] = parts["gradients"] + _gradient_extras(batch, elements_KN)
    if job.training.optimizer in SHAPED:
        parts |= shaped_states(batch, parts, dense_KN=dense_KN, expert_KN=elements_KN - dense_KN)
    if job.training.ema is not None:
        _add_average(batch, parts, dense_KN, elements_KN - dense_KN)
    # Frameworks that free gradients between steps have none at a step's first loss; with several micro-batches the
    # later ones find those of the earlier. Deferred reductions hold them unsharded instead, which `communication`
    # counts [M-9].
    states = _with_early_gradients(batch, parts, elements_KN, elements_KN)
    if not uses_drives(strategies):
        return states
    owned_KN = dense_KN / strategies.zero_shard_size + (elements_KN - dense_KN) / strategies.expert_shard_size
    held = BYTES_PER[job.training.main_param_dtype] + optimizer_state_bytes(job.training, traits)
    drives_KN, less_KN = on_drives(job, strategies, owned_KN=owned_KN, state_bytes=held)
    return replace(states, bytes_KN=replace(states.bytes_KN, host=states.bytes_KN.host - less_KN), drives_KN=drives_KN)


def _with_early_gradients(
    batch: Batch, parts: dict[str, Floats], elements_KN: Floats, trained_KN: Floats
) -> StageStates:
    exist = batch.traits.gradients_persist | ((batch.strategies.num_micro_batches > 1) & (batch.deferred == 0))
    exist = exist | (batch.traits.zero3_gradients_persist & (batch.strategies.zero >= 3))
    early_KN = parts["gradients"] if bool(exist.all()) else np.where(exist, parts["gradients"], 0.0)
    return StageStates(elements_KN, trained_KN, StateBytes(**parts), early_KN, exist.astype(np.float64))


def _partly_trained(batch: Batch, dense_KN: Floats, expert_KN: Floats) -> StageStates:
    """State of stages of which a part is trained: that part's as usual, and of the rest the stored weights alone. [M-17]"""
    job, traits, strategies = batch.job, batch.traits, batch.strategies
    trained_KN, trained_expert_KN, linear_KN = _trained_elements(batch, dense_KN, expert_KN)
    dense = state_bytes(job, traits, strategies, shard=strategies.zero_shard_size)
    parts = {part.name: trained_KN * getattr(dense, part.name) for part in fields(StateBytes)}
    expert = state_bytes(job, traits, strategies, shard=strategies.expert_shard_size)
    parts = {name: value + trained_expert_KN * getattr(expert, name) for name, value in parts.items()}
    adapts = job.training.adapter is not None
    base_KN = dense_KN if adapts else dense_KN - trained_KN
    if adapts and job.training.tower_uses:  # a trained tower or projector is stored like the adapters
        base_KN = base_KN - np.where(batch.stages.first_KN, rank_tower_elements(job, strategies)[1], 0.0)
    base_expert_KN = expert_KN if adapts else expert_KN - trained_expert_KN
    stored, plain = stored_base(job), base_bytes(job)
    sharded = strategies.zero >= (2 if traits.zero2_shards_parameters else 3)
    frozen_KN = ((base_KN - linear_KN) * plain + linear_KN * stored.weight) / np.where(
        sharded, strategies.zero_shard_size, 1.0
    )
    frozen_KN = frozen_KN + base_expert_KN * plain / np.where(sharded, strategies.expert_shard_size, 1.0)
    away = strategies.offload_parameters.astype(np.float64)
    parts["parameters"] = parts["parameters"] + frozen_KN * (1.0 - away) + linear_KN * stored.scales
    parts["host"] = parts["host"] + HOST_BUFFER_RATIO.value * frozen_KN * away
    if not BYTES_PER[job.training.main_param_dtype]:
        parts["main"] = NOTHING
    if job.training.optimizer in SHAPED:
        parts |= shaped_states(batch, parts, dense_KN=trained_KN, expert_KN=trained_expert_KN)
    if job.training.ema is not None:
        _add_average(batch, parts, trained_KN, trained_expert_KN)
    return _with_early_gradients(batch, parts, dense_KN + expert_KN, trained_KN + trained_expert_KN)


def _add_average(batch: Batch, parts: dict[str, Floats], dense_KN: Floats, expert_KN: Floats) -> None:
    """Adds the moving average of these trained parameters to the optimizer's states and to host memory. [M-56]"""
    held_KN, host_KN = average_bytes(batch.job, batch.strategies, dense_KN=dense_KN, expert_KN=expert_KN)
    parts["optimizer"] = parts["optimizer"] + held_KN
    parts["host"] = parts["host"] + host_KN


def _trained_elements(batch: Batch, dense_KN: Floats, expert_KN: Floats) -> tuple[Floats, Floats, Floats]:
    """Trained dense and routed-expert elements, and weights of the base's linear layers, on a rank, shape (K, N) each."""
    job, stages, tp = batch.job, batch.stages, batch.strategies.tp
    model, adapter, frozen = job.model, job.training.adapter, job.training.frozen
    kinds = list(zip(stages.layers_JKN, model.distinct_kinds, strict=True))
    if adapter is not None:
        embedding, head = saved_elements(model, adapter)
        trained_KN = sum(
            (held_KN * adapter_elements(model, adapter, kind) / tp for held_KN, kind in kinds), 0.0 * dense_KN
        )
        trained_KN = trained_KN + (stages.first_KN * embedding + stages.head_KN * head) / tp
        if job.training.tower_uses:
            trained_KN = trained_KN + np.where(stages.first_KN, rank_tower_elements(job, batch.strategies)[1], 0.0)
        linear_KN = sum((held_KN * linear_elements(model, kind) / tp for held_KN, kind in kinds), 0.0 * dense_KN)
        return trained_KN, 0.0 * expert_KN, linear_KN
    without = tuple(part for part in frozen if part != "experts")
    frozen_KN = sum(
        (held_KN * frozen_layer_elements(model, kind, without) / tp for held_KN, kind in kinds), 0.0 * dense_KN
    )
    embedding_KN, head_KN = batch.end_words
    if "embedding" in frozen:
        frozen_KN = frozen_KN + embedding_KN + stages.first_KN * batch.table.positions
    if "head" in frozen or ("embedding" in frozen and model.tie_word_embeddings):
        single = model.tie_word_embeddings & (batch.strategies.pp == 1)
        frozen_KN = frozen_KN + np.where(single, 0.0, head_KN)
    if "norms" in frozen:
        frozen_KN = frozen_KN + stages.head_KN * batch.table.final_norm
    if job.training.tower_uses:
        total, trained = rank_tower_elements(job, batch.strategies)
        frozen_KN = frozen_KN + np.where(stages.first_KN, total - trained, 0.0)
    return np.maximum(dense_KN - frozen_KN, 0.0), expert_KN * ("experts" not in frozen), 0.0 * dense_KN


def _elements(batch: Batch) -> tuple[Floats, Floats]:
    """Dense and routed-expert elements of every slot's stage on a rank, shape (K, N) each."""
    strategies, stages, table = batch.strategies, batch.stages, batch.table
    dense_KN = stages.layers_JKN[0] * table.dense_J[0]
    expert_KN = stages.layers_JKN[0] * table.expert_J[0]
    for layers_KN, dense, expert in zip(stages.layers_JKN[1:], table.dense_J[1:], table.expert_J[1:], strict=True):
        dense_KN = dense_KN + layers_KN * dense
        expert_KN = expert_KN + layers_KN * expert
    copy = table.head_word
    if batch.job.model.tie_word_embeddings:  # one table where a rank holds both ends, else a copy on the last stage
        copy = np.where(strategies.pp > 1, table.word, 0.0)
        if stages.folded is not None:
            copy = np.where(stages.folded, 0.0, copy)
    modules = batch.job.mtp_num_layers
    beside = _embedding_beside_modules(batch)
    head = copy + table.final_norm + modules * table.mtp + beside
    dense_KN = dense_KN + np.where(stages.first_KN, table.word + table.positions, 0.0)
    dense_KN += np.where(stages.head_KN, head, 0.0)
    if strategies.layouts.moves_mtp:
        dense_KN += (stages.mtp_KN * 1.0 - stages.head_KN) * (modules * table.mtp + beside)
    if batch.job.training.tower_uses:
        dense_KN += np.where(stages.first_KN, rank_tower_elements(batch.job, strategies)[0], 0.0)
    return dense_KN, expert_KN


def _embedding_beside_modules(batch: Batch) -> Floats:
    """Elements of the embedding's copy that multi-token prediction needs on the last stage, shape (N,) or (). [M-1]

    Source: Megatron Core's models/gpt/gpt_model.py (`pre_process or mtp_process`).
    """
    if not batch.job.mtp_num_layers or batch.job.model.tie_word_embeddings:
        return NOTHING
    return np.where(batch.strategies.pp > 1, batch.table.word, 0.0)


def _gradient_extras(batch: Batch, elements_KN: Floats) -> Floats:
    """Bytes of second gradient copies that are never freed, and of embedding gradients that tp leaves whole. [M-3]"""
    traits, training = batch.traits, batch.job.training
    held, w = BYTES_PER[training.grad_dtype], training.compute_bytes
    # Nanotron accumulates in fp32 beside the bf16 gradients that autograd fills, and keeps both.
    extra = w * elements_KN if traits.compute_gradients == "always" and held > w else NOTHING
    if traits.embedding_gradient_whole:
        # TorchTitan's tensor parallelism without FSDP keeps the embedding's gradient whole on every rank, t times its
        # share (own readings at tp 2 and 4 agree to the byte).
        missing = np.where(batch.strategies.zero == 0, held * (batch.strategies.tp - 1.0), 0.0)
        extra = extra + missing * batch.end_words[0]
    return extra


def _quantised_copies(batch: Batch, elements_KN: Floats) -> Floats:
    """Bytes of the layers' quantised weight copies, kept over the micro-batches of a step. [M-1]

    Where parameters are sharded, copies live only as long as the gathered weights they are made of (see `communication`).
    """
    copies = weight_copy_bytes(batch.job) if batch.traits.transformer_engine else 0.0
    if not copies:
        return NOTHING
    embedding_KN, head_KN = batch.end_words
    head_KN = head_KN + np.where(batch.stages.mtp_KN, _embedding_beside_modules(batch), 0.0)
    kept = np.where(batch.strategies.zero >= 3, 0.0, copies)
    return kept * np.maximum(elements_KN - embedding_KN - head_KN, 0.0)
