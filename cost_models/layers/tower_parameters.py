"""How many parameters the towers of a job have, and how strategies look to a tower.

A tower's layers are those of a small model whose sequences are images or windows of audio, so that a job of its own (`Job.tower_jobs`)
prices them with the formulas of every other layer. What is frozen and in front of everything trained has no backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.job import Job
from cost_models.layers.parameters import count_parameters
from cost_models.specs.tower import Towers, TowerUse
from cost_models.specs.training import Training
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Bools, Floats, Strategies


@dataclass(frozen=True, slots=True)
class TowerElements:
    """Parameters of one tower."""

    encoder: int
    projector: int
    trained: int
    """Those of the two that have gradients."""

    @property
    def total(self) -> int:
        """Encoder and projector together."""
        return self.encoder + self.projector


def tower_elements(use: TowerUse, *, projector_trained: bool) -> TowerElements:
    """Parameters of a tower, equal to those of its modules in transformers. [M-27]"""
    tower = use.tower
    # The vocabulary and the last norm of this model stand for nothing, so that its layers alone are counted.
    encoder = sum(count_parameters(tower.layers).per_layer) + tower.stem_parameters
    trained = encoder * use.trained + tower.projector_parameters * projector_trained
    return TowerElements(encoder, tower.projector_parameters, trained)


def towers_elements(training: Training) -> tuple[int, int]:
    """Parameters of all towers of a job, and how many of them are trained; 0 where no towers are counted. [M-27]"""
    towers = training.towers
    if towers is None:
        return 0, 0
    found = [tower_elements(use, projector_trained=towers.projector_trained) for use in towers.uses]
    return sum(each.total for each in found), sum(each.trained for each in found)


def split_by_tensor(job: Job, use: TowerUse) -> bool:
    """Whether tensor-parallel ranks share this tower; elsewhere each of them runs all of it. [M-27]"""
    return use.tower.tensor_parallel and job.framework.choices.splits_towers


def recomputes(job: Job, strategies: Strategies) -> Bools:
    """Whether the layers of trained towers are recomputed in full, shape (N,)."""
    towers = job.training.towers
    assert towers is not None
    # gradient_checkpointing_enable() of transformers is one switch for all of a model, so a tower follows the text model by itself.
    if towers.recompute is not None:
        return np.full(len(strategies), towers.recompute == "full")
    return np.asarray(strategies.recompute == Recompute.FULL)


def tower_rows(job: Job, use: TowerUse, strategies: Strategies) -> Strategies:
    """The strategies as they look to a tower: images of a micro-batch as its sequences, not split by context parallelism.

    Every rank of a context-parallel group encodes all images of its sequences (Megatron-Bridge 0.6, qwen_vl/modelling_qwen3_vl/model.py, does so
    unless `vision_dp_when_cp` is set; modeling_gemma3_vl.py slices behind the tower).
    """
    one = np.ones(len(strategies))
    split = split_by_tensor(job, use)
    repeated = recomputes(job, strategies) & use.trained
    # Ranks that repeat a tower's work are more replicas of it: they share its state, and reduce its gradients together.
    others = strategies.cp if split else strategies.cp * strategies.tp
    return replace(
        strategies,
        tp=strategies.tp if split else one,
        cp=one,
        ep=one,
        etp=one,
        dp=strategies.dp * others,
        micro_batch_size=strategies.micro_batch_size * use.num_inputs,
        sequence_parallel=strategies.sequence_parallel & split,
        overlap_tp_comm=strategies.overlap_tp_comm & split,
        overlap_moe_all_to_all=np.zeros(len(strategies), np.bool_),
        recompute=np.where(repeated, np.int8(Recompute.FULL), np.int8(Recompute.NONE)),
        recompute_modules=np.zeros_like(strategies.recompute_modules),
    )


def rank_tower_elements(job: Job, strategies: Strategies) -> tuple[Floats, Floats]:
    """Parameters of all towers on one rank of the first stage, and the trained ones, shape (N,) each. [M-27]"""
    towers = job.training.towers
    total = trained = np.zeros(len(strategies))
    if towers is None:
        return total, trained
    for use in towers.uses:
        found = tower_elements(use, projector_trained=towers.projector_trained)
        share = 1.0 / strategies.tp if split_by_tensor(job, use) else np.ones(len(strategies))
        total, trained = total + found.total * share, trained + found.trained * share
    return total, trained


def passes_of_ends(towers: Towers, use: TowerUse) -> tuple[list[tuple[bool, bool]], list[tuple[bool, bool]]]:
    """For each product in front of the layers and of the projector, whether it has a data gradient and a weight gradient. [F-17]

    Nothing in front of the first product needs a gradient. A frozen product behind a trained one passes gradients on.
    """
    stem = [(use.trained and number > 0, use.trained) for number in range(len(use.tower.stem))]
    projector = []
    for number in range(len(use.tower.projector)):
        behind_trained = use.trained or (towers.projector_trained and number > 0)
        projector.append((behind_trained, towers.projector_trained))
    return stem, projector
