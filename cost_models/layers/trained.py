"""How many parameters are trained where not every weight is: adapters, copies of saved modules, and parts that are not frozen.

Counts are exact and equal to `get_nb_trainable_parameters` of peft; the total includes the adapters and the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.layers.linears import Linear, layer_linears, names_for
from cost_models.layers.parameters import count_parameters, layer_parameters, norm_parameters
from cost_models.layers.tower_parameters import towers_elements
from cost_models.specs.adapter import Adapter
from cost_models.specs.model import LayerKind, Model
from cost_models.specs.training import Training


@dataclass(frozen=True, slots=True)
class TrainedParameters:
    """Elements of the whole model."""

    trainable: int
    total: int
    """What is stored: the model, its adapters and the copies of saved modules."""

    @property
    def share(self) -> float:
        """Trained part of the total, 0...1."""
        return self.trainable / self.total


def adapted_linears(model: Model, adapter: Adapter, kind: LayerKind) -> tuple[Linear, ...]:
    """The modules of a layer of this kind that have an adapter."""
    names = names_for(model, adapter.target_modules)
    return tuple(linear for linear in layer_linears(model, kind, names) if linear.name in adapter.target_modules)


def linear_elements(model: Model, kind: LayerKind) -> float:
    """Weights of all linear modules of a layer, which are what a quantised base quantises; biases stay as they are."""
    names = names_for(model, ())
    return float(sum(linear.inputs * linear.outputs for linear in layer_linears(model, kind, names)))


def adapter_elements(model: Model, adapter: Adapter, kind: LayerKind) -> int:
    """Elements of a layer's adapters: A (rank, inputs) and B (outputs, rank), and DoRA's magnitude (outputs,). [M-17]"""
    return sum(
        adapter.rank_of(linear.name) * (linear.inputs + linear.outputs) + adapter.dora * linear.outputs
        for linear in adapted_linears(model, adapter, kind)
    )


def saved_elements(model: Model, adapter: Adapter) -> tuple[int, int]:
    """Elements of the trained copies of embedding and output projection."""
    embedding, head = model.vocab_size * model.hidden_size, model.head_outputs * model.hidden_size
    return embedding * ("embed_tokens" in adapter.modules_to_save), head * ("lm_head" in adapter.modules_to_save)


def trained_parameters(model: Model, training: Training) -> TrainedParameters:
    """What a job trains, and what it stores. [M-17]"""
    total = count_parameters(model).total
    adapter, (towers, of_towers) = training.adapter, towers_elements(training)
    if adapter is None:
        return TrainedParameters(total - frozen_elements(model, training.frozen) + of_towers, total + towers)
    added = sum(adapter_elements(model, adapter, kind) for kind in model.layer_kinds)
    added += sum(saved_elements(model, adapter))
    return TrainedParameters(added + of_towers, total + added + towers)


def frozen_elements(model: Model, frozen: tuple[str, ...]) -> int:
    """Elements of the whole model's frozen parts."""
    if not frozen:  # nearly every job, and models have many layers
        return 0
    counts = count_parameters(model)
    ends = {"embedding": counts.embedding + counts.positions, "head": counts.head, "norms": counts.final_norm}
    layers = sum(frozen_layer_elements(model, kind, frozen) for kind in model.layer_kinds)
    return sum(ends.get(part, 0) for part in frozen) + int(layers)


def frozen_layer_elements(model: Model, kind: LayerKind, frozen: tuple[str, ...]) -> float:
    """Elements of one layer's frozen parts."""
    layer = layer_parameters(model, kind)
    norms = float(model.norms_of(kind) * norm_parameters(model))
    experts = layer.num_experts * layer.per_expert
    wide = 3 if model.gated_mlp else 2
    has_dense = kind.has_mlp and not kind.is_moe
    dense = 0.0 if not has_dense else float(wide * model.hidden_size * model.intermediate_size)
    if has_dense and model.mlp_bias:
        dense += (wide - 1) * model.intermediate_size + model.hidden_size
    mlp = dense + layer.shared_expert
    attention = layer.total - norms - experts - mlp
    if kind.is_moe:  # the router stays trained: it is a part of neither
        assert model.moe is not None
        router = model.moe.num_experts * (model.hidden_size + model.moe.router_bias)
        attention -= router + model.hidden_size * model.moe.shared_expert_gate
    sizes = {"norms": norms, "attention": attention, "mlp": mlp, "experts": experts}
    return sum(sizes.get(part, 0.0) for part in frozen)


def frozen_matmul_elements(model: Model, kind: LayerKind, frozen: tuple[str, ...]) -> float:
    """Frozen weights of one layer that one token is multiplied with."""
    parts = {"attention": "attention", "mlp": "mlp", "shared": "mlp"}
    linears = layer_linears(model, kind, names_for(model, ()))
    found = float(sum(x.inputs * x.outputs for x in linears if parts[x.part] in frozen))
    if kind.is_moe and "experts" in frozen:
        assert model.moe is not None
        wide = 3 if model.gated_mlp else 2
        found += wide * model.hidden_size * model.moe.top_k * model.moe.expert_intermediate_size
    return found


def head_is_trained(model: Model, training: Training) -> bool:
    """Whether the output projection has a weight gradient."""
    if training.adapter is not None:
        return "lm_head" in training.adapter.modules_to_save
    if model.tie_word_embeddings:
        return "embedding" not in training.frozen
    return "head" not in training.frozen


def layers_run_backward(model: Model, training: Training) -> bool:
    """Whether gradients flow through the layers: something in them or in front of them is trained."""
    if training.adapter is not None or (training.towers is not None and training.towers.trains_something):
        return True
    # Routers belong to no part that can be frozen.
    whole = {"embedding", "attention", "mlp", "norms"} <= set(training.frozen)
    return not whole or any(kind.is_moe for kind in model.distinct_kinds)


_MODULES_OF: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention",), "mlp": ("mlp", "shared_experts"), "experts": ("moe",),
}  # fmt: skip
"""Modules of matrix products (`shapes.Gemm.module`) by frozen part."""


def frozen_modules(model: Model, training: Training) -> frozenset[str]:
    """Modules whose matrix products have no weight gradient. [F-13]"""
    head = frozenset() if head_is_trained(model, training) else frozenset({"head"})
    if training.adapter is not None:
        return head | {"attention", "mlp", "shared_experts", "moe", "router", "mtp"}
    return head | {module for part in training.frozen for module in _MODULES_OF.get(part, ())}
