"""How large a checkpoint is, for how long saving it stops training, and how long it takes until storage holds it.   [M-22]"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.frameworks import memory_traits
from cost_models.job import Job
from cost_models.layers.parameters import count_parameters
from cost_models.layers.trained import trained_parameters
from cost_models.memory.states import optimizer_state_bytes
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Strategies


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint."""

    size_bytes: float
    """Bytes of all its files."""
    blocking_s: float
    """Seconds for which training stands still."""
    unsafe_s: float
    """Seconds from there until storage holds it; 0 where training waits for that."""

    @property
    def shortest_interval_s(self) -> float:
        """Seconds of training that must lie between two saves, so that one is written before the next begins."""
        return self.unsafe_s


def checkpoint_bytes(job: Job) -> float:
    """Bytes of one checkpoint: every parameter, main parameter and optimizer state once, however many ranks hold it. [M-22]

    Of adapters the base is not saved; frozen parameters are saved without main copies and states.
    """
    training = job.training
    # Gradients, activations and gathered copies are made anew, and the parameters' copies in the compute type follow from the
    # main ones; frameworks save both all the same, so that a checkpoint can be read without the optimizer.
    trained = trained_parameters(job.model, training)
    modules = count_parameters(job.model).mtp if job.mtp_num_layers else 0
    stored = trained.trainable if training.adapter is not None else trained.total + modules
    states = BYTES_PER[training.main_param_dtype] + optimizer_state_bytes(training, memory_traits(training))
    if training.ema is not None:
        states += BYTES_PER[training.param_dtype]
    return stored * BYTES_PER[training.param_dtype] + (trained.trainable + modules) * states


def save_of(job: Job, strategies: Strategies, index: int) -> Save | None:
    """What saving a checkpoint takes under strategy `index`; None where the training does not say how it is saved. [M-22]

        bytes / storage rate, or the seconds that are stated; in the background all but  bytes / ranks / host link

    ranks are those that hold different parts: with ZeRO those that share one copy of the state, else one replica's.
    """
    checkpoint = job.training.checkpoint
    if checkpoint is None:
        return None
    size_bytes = checkpoint_bytes(job)
    if checkpoint.save_s is not None:
        write_s = checkpoint.save_s
    else:
        assert checkpoint.storage_bytes_per_s is not None
        write_s = size_bytes / checkpoint.storage_bytes_per_s
    if not checkpoint.asynchronous:
        return Save(size_bytes, write_s, 0.0)
    # Replicas hold the same state, and one of them writes it; within it, ZeRO has spread the optimizer's share over its ranks.
    shard = float(strategies.zero_shard_size[index]) if strategies.zero[index] >= 1 else 1.0
    ranks = float((strategies.tp * strategies.pp)[index]) * shard
    copy_s = size_bytes / ranks / job.cluster.host_link_bytes_per_s
    return Save(size_bytes, copy_s, write_s)
