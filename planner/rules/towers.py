"""Rules on what cannot be split where vision or audio towers run in front of the text model."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.layers.tower_parameters import split_by_tensor
from cost_models.specs.model import Model
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, indivisible

_HF_MODULES = frameworks_where(lambda facts: facts.choices.towers and facts.model_impl == "transformers")
"""Frameworks around Hugging Face's multimodal modules."""


def _pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.pp > 1)


def _context(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.cp > 1)


# Towers that are whole on every rank ask nothing of tp.
def _split_towers(job: Job) -> list[Model]:
    """Layers of the towers that tensor-parallel ranks share."""
    return [use.tower.layers for use in job.training.tower_uses if split_by_tensor(job, use)]


def _tower_indivisible(job: Job, s: Strategies) -> Bools:
    found = np.zeros(len(s), np.bool_)
    for layers in _split_towers(job):
        found |= indivisible(layers.num_attention_heads, s.tp) | indivisible(layers.intermediate_size, s.tp)
    return found


def _any_tower(job: Job) -> bool:
    return bool(job.training.tower_uses)


def _any_split(job: Job) -> bool:
    return bool(_split_towers(job))


TOWER_RULES: tuple[Rule, ...] = (
    Rule(
        "pipeline-unsupported", _pipelined, "{framework} cannot put a model with a vision or audio tower into a pipeline (pp {pp})",
        "Set pp to 1 and shard with zero 3{or_another}.",
        "deepspeed/runtime/pipe/module.py takes a list of layers, each of which hands one tensor to the next",
        frameworks=_HF_MODULES, when=_any_tower, smallest_change="pp {pp} -> 1",
    ),
    # Each rank has a part of a sequence's placeholders for images, but the features of all images.
    Rule(
        "context-parallel-unsupported", _context,
        "{framework} cannot split the sequences of a model with a vision or audio tower (cp {cp})",
        "Set cp to 1{or_another}.",
        "transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py (get_placeholder_mask wants as many features as placeholders)",
        frameworks=_HF_MODULES, when=_any_tower, smallest_change="cp {cp} -> 1",
    ),
    Rule(
        "heads-not-divisible", _tower_indivisible, "tp {tp} does not divide the heads and the MLP of the vision tower, which it splits as well",
        "Use a tp that divides both, or a smaller one.", "megatron/core/tensor_parallel/layers.py (ColumnParallelLinear divides its outputs)",
        when=_any_split,
    ),
)  # fmt: skip
