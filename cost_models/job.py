"""One planning job: the resolved model, cluster and training, with the calibration that prices them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cost_models.corrections import NO_CORRECTIONS, InForce, Scope
from cost_models.frameworks import FrameworkFacts, LatentDown, RecipeFacts, framework_facts, memory_traits
from cost_models.frameworks.optimizers import overlaps_whole_gradients
from cost_models.specs.cluster import Cluster, PooledCluster
from cost_models.specs.method import PLAIN, Method
from cost_models.specs.model import Model
from cost_models.specs.training import Training
from cost_models.strategies.fields import CpComm

if TYPE_CHECKING:
    from cost_models.hardware.calibrated import Calibration


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a cost model is given beside the strategies. Jobs are hashed by identity, so results can be cached
    on them.
    """

    model: Model
    cluster: Cluster
    training: Training
    calibration: Calibration
    states_version: bool = False
    """Whether the answer states the framework's version, as a plan's files do. Where it does not, a version that
    the user did not name is a guess."""
    corrections: InForce = NO_CORRECTIONS
    """What measured runs say of this job's predictions."""
    method: Method = PLAIN
    """How replicas stay together."""

    @cached_property
    def framework(self) -> FrameworkFacts:
        """What is known of the job's framework at its version."""
        return framework_facts(self.training)

    @cached_property
    def scope(self) -> Scope:
        """What corrections of this job's predictions have to be of."""
        training = self.training
        return Scope(
            training.framework, training.model_impl, self.cluster.gpu.name, training.precision, self.calibration.id
        )

    @cached_property
    def uncorrected(self) -> Job:
        """The same job as the models alone price it."""
        return replace(self, corrections=NO_CORRECTIONS) if self.corrections else self

    @cached_property
    def is_plain(self) -> bool:
        """Whether all replicas reduce whole gradients at every step, over a network without slow boundaries."""
        return self.method.is_plain and self.cluster.islands is None

    @property
    def recipe(self) -> RecipeFacts | None:
        """What the vendor's recipe that the training names sets; None where it names none."""
        name = self.training.recipe
        return None if name is None else self.framework.choices.recipes[name]

    @cached_property
    def tower_jobs(self) -> tuple[Job, ...]:
        """For each tower of `training.towers`, the job whose model are the tower's layers and whose sequences are its inputs.

        A frozen tower's job freezes every part, so that nothing of it runs backward.
        """
        if self.training.towers is None:
            return ()
        whole = ("embedding", "attention", "mlp", "norms")
        return tuple(
            replace(
                self,
                model=use.tower.layers,
                training=replace(
                    self.training, seq_length=use.rows_per_input, mean_document_length=None, adapter=None,
                    frozen=() if use.trained else whole, towers=None, document_lengths=None, packing=None,
                    ema=None,
                ),
                corrections=NO_CORRECTIONS,
            )
            for use in self.training.towers.uses
        )  # fmt: skip

    @property
    def default_cp_comm(self) -> CpComm:
        """How context parallelism exchanges where nobody says: as the framework does, or the one way that sparse attention has."""
        # Chosen keys may lie on any rank, so that no rank could pass on a part of them.
        return self.framework.strategy.cp_comm if self.model.indexer is None else CpComm.ALLGATHER

    @cached_property
    def as_only_pool(self) -> PooledJob:
        """This job on a cluster with one pool: one object for each job, since every row of a batch asks for it."""
        return PooledJob.of_one_kind(self)

    @property
    def has_core_modules(self) -> bool:
        """Whether layers are Megatron Core's own ("local") modules, which fuse nothing by default without Apex."""
        training = self.training
        is_local = training.transformer_impl == "local" and not training.compile
        return is_local and self.framework.local_modules_fuse_nothing

    @property
    def has_hf_modules(self) -> bool:
        """Whether Hugging Face's modules run (`training.model_impl`), which Megatron and nanotron do not take."""
        return memory_traits(self.training).huggingface_modules

    @property
    def calls_attention_by_input(self) -> bool:
        """Whether attention is called for each of the packed inputs of an encoder, as PyTorch's operator must be."""
        called = self.training.attention == "flash" and self.training.attention_kernel in ("sdpa", "cudnn")
        return self.model.packed_rows and self.has_hf_modules and called

    @property
    def fuses_routing(self) -> bool:
        """Whether router and permutation of a mixture are fused kernels. A recipe may say so; frameworks' own defaults do not."""
        return self.recipe is not None and self.training.software_date >= self.recipe.fuses_routing_since

    @property
    def latent_down(self) -> LatentDown:
        """How latent attention's down-projections are split; Megatron Core's own modules split them by columns."""
        split = self.framework.latent_down
        return "columns" if split == "shards" and self.training.transformer_impl == "local" else split

    @property
    def routed_copies(self) -> float:
        """Rows per token that the experts compute, 0 without experts: top_k, filled up to the capacity or cut by it.

        Routing is taken as balanced, so that a capacity of at least one drops nothing.
        """
        moe = self.model.moe
        if moe is None:
            return 0.0
        capacity = moe.capacity_factor or 1.0
        return moe.top_k * (capacity if self.framework.pads_experts else min(capacity, 1.0))

    @property
    def mtp_num_layers(self) -> int:
        """Multi-token-prediction modules that this framework builds and trains."""
        return self.model.mtp_num_layers if self.framework.builds_mtp else 0

    def overlaps_by_default(self, flag: str, *, zero: Any) -> Any:
        """Default of a `strategy.overlap` flag in this framework at this software date, for one ZeRO stage or an array of
        them.
        """
        usual = self.framework.overlaps[flag] and self.training.software_date >= self.framework.overlaps_since
        return usual & (zero >= self.framework.overlaps_from_zero) & self.can_overlap(flag, zero=zero)

    def can_overlap(self, flag: str, *, zero: Any) -> Any:
        """Whether the optimizer lets a flag of `strategy.overlap` be set, for one ZeRO stage or an array of them."""
        return flag != "grad_reduce" or (zero > 0) | overlaps_whole_gradients(self.training)


@dataclass(frozen=True, eq=False)
class PooledJob:
    """One job on the pools of a cluster: what it is on each of them alone. A cluster of one kind of node has one pool."""

    cluster: PooledCluster
    jobs: tuple[Job, ...]
    """By pool, in the cluster's order."""
    corrections_left: bool = False
    """Whether corrections were given, of which none is applied because the cluster has several kinds of node."""

    @classmethod
    def of_one_kind(cls, job: Job) -> PooledJob:
        """A job on a cluster of one kind of node."""
        return cls(PooledCluster.of_one_kind(job.cluster), (job,))

    @cached_property
    def uncorrected(self) -> PooledJob:
        """The same job as the models alone price it."""
        if not any(job.corrections for job in self.jobs):
            return self
        return replace(self, jobs=tuple(job.uncorrected for job in self.jobs))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the pools."""
        return tuple(pool.name for pool in self.cluster.pools)

    @cached_property
    def whole(self) -> tuple[Job, ...]:
        """By pool, the job on a cluster of as many GPUs as all pools have, each of that pool's kind: for rules and degrees
        that ask how many GPUs there are.
        """
        if len(self.jobs) == 1:
            return self.jobs  # the same object, which tables are cached by
        gpus = self.cluster.num_gpus
        return tuple(
            replace(job, cluster=replace(job.cluster, num_nodes=-(-gpus // job.cluster.gpus_per_node)))
            for job in self.jobs
        )
