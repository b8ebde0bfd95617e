"""What a framework does where a strategy says nothing, what a user of it can ask for, and what its recipes do instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cost_models.specs.adapter import AdapterFeature, QuantizedBase
from cost_models.specs.method import CompressionKind, SyncMethod
from cost_models.specs.recurrent import RecurrentKind
from cost_models.specs.training import Framework, Precision, Recipe
from cost_models.strategies.fields import (
    CpComm,
    MoeDispatcher,
    OffloadDevice,
    OptimizerOverlap,
    Recompute,
    Schedule,
)

TpOverlapNeed = Literal["sequence-parallel", "transformer-engine", "compile"]
"""What a framework needs before it overlaps tensor-parallel collectives."""


@dataclass(frozen=True, slots=True)
class StrategyDefaults:
    """What a framework does where a strategy says nothing, and what a search tries. These are choices of a strategy; each is
    reported in `assumed` when it is applied.
    """

    recompute: Recompute
    cp_comm: CpComm
    moe_dispatcher: MoeDispatcher = MoeDispatcher.ALLTOALL
    """Every framework's recipes use all-to-all, also Megatron's, whose parser defaults to allgather."""
    recompute_modes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    """Modes a search tries."""
    recompute_counts: bool = False
    """`full` can be limited to some layers of each chunk (block)."""
    selective_modules: tuple[str, ...] = ()
    """What selective recomputation repeats unless told otherwise, where it goes by modules."""
    searches_expert_overlap: bool = False
    """A search tries overlapping the experts' all-to-all where the rules allow it."""
    fallback_offload: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What a search may move to the host where nothing fits otherwise: values by column of a strategy, the least first. For
    `offload_activation_layers`, any number stands for as many layers as can be moved."""
    tp_overlap_needs: frozenset[TpOverlapNeed] | None = None
    """A search overlaps tensor-parallel collectives wherever these hold; None: it never does unless asked."""


@dataclass(frozen=True, slots=True)
class RecipeFacts:
    """What a vendor's published recipes set where a request says nothing, in place of the framework's own defaults."""

    training: Mapping[str, str]
    """Fields of `training`, at every precision."""
    at_precision: Mapping[Precision, Mapping[str, str]]
    """Further fields at one precision."""
    overlaps_tp: bool
    """Tensor-parallel collectives run beside their products wherever the framework can do that."""
    source: str
    fuses_routing_since: str = "9999-99"
    """Month (YYYY-MM) from which its mixtures run router and permutation as fused kernels. [F-3]"""

    def fields(self, precision: Precision) -> Mapping[str, str]:
        """All fields of `training` that it sets at a precision."""
        return {**self.training, **self.at_precision.get(precision, {})}


@dataclass(frozen=True, slots=True)
class Choices:
    """What a user of the framework can ask for at all. What a release or a combination excludes is a row of the rules."""

    zero: tuple[int, ...]
    schedules: tuple[Schedule, ...]
    cp_comms: tuple[CpComm, ...]
    """Transports of context parallelism; PyTorch's "alltoall" rotation is a ring exchange, p2p here."""
    dispatchers: tuple[MoeDispatcher, ...]
    """How tokens can get to the experts' ranks; none where there is no expert parallelism."""
    context_needs_flash: bool = True
    """No other attention can be split over context-parallel ranks."""
    tp_divides_kv_heads: bool = True
    """In every release; a framework that copies or drops heads has rows of its own."""
    torch_schedules: bool = False
    """Pipelines run the schedules of torch.distributed.pipelining."""
    vpp: bool = False
    """Virtual pipeline stages."""
    pipelines: bool = True
    without_precisions: frozenset[Precision] = frozenset()
    """Types of `training.precision` that no release has."""
    chunked_loss: bool = False
    """The loss can be cut into pieces of the sequence."""
    eight_bit_adam: bool = False
    selective_recompute: bool = True
    """In some release."""
    recompute_counts: bool = True
    """Full recomputation of some layers alone, in some release."""
    recompute_modules: bool = False
    """Selective recomputation goes by named modules."""
    tp_overlap: bool = True
    """Tensor-parallel collectives can be split and overlapped with the products beside them."""
    expert_overlap: bool = False
    """Experts' all-to-all can be overlapped."""
    offload: bool = True
    """Anything can be kept in host memory."""
    offload_places: frozenset[OffloadDevice] = frozenset({OffloadDevice.CPU})
    """Where offloaded state can lie."""
    offload_overlaps: frozenset[OptimizerOverlap] = frozenset({OptimizerOverlap.NONE})
    """What can run beside the host's update of it."""
    offload_modules: bool = False
    """Activations of single modules can be sent to the host."""
    adapters: bool = False
    """Low-rank adapters can be trained beside a frozen base: by peft, or by modules of the framework's own."""
    adapter_features: frozenset[AdapterFeature] = frozenset()
    """What such an adapter can have beyond a rank and modules."""
    quantized_bases: frozenset[QuantizedBase] = frozenset()
    """How that base can be quantised."""
    sharded_bases: frozenset[QuantizedBase] = frozenset()
    """Quantised bases whose weights ZeRO-3 or FSDP can shard."""
    recurrent: frozenset[RecurrentKind] = frozenset()
    """Kinds of recurrent layers that there are modules for."""
    recurrent_beside_attention: bool = False
    """Such a layer can stand beside attention and read the same input."""
    splits_recurrent: bool = False
    """Recurrent layers can be split over tensor- and context-parallel ranks."""
    sparse_attention: bool = False
    """Attention over keys that an indexer chooses can be trained, with kernels that hold the chosen ones alone."""
    towers: bool = False
    """Encoders of images and sounds can be trained in front of a text model."""
    splits_towers: bool = False
    """Some of them are split over tensor-parallel ranks; elsewhere each rank runs all of an encoder."""
    nearest: tuple[Framework, ...] = ()
    """Frameworks that hints may name for what this one has not, the most alike first."""
    recipes: Mapping[Recipe, RecipeFacts] = field(default_factory=dict)
    """What `training.recipe` can ask for."""
    syncs: frozenset[SyncMethod] = frozenset()
    """Ways of bringing replicas together beside reducing gradients at every step."""
    compressions: frozenset[CompressionKind] = frozenset()
    """Forms in which gradients can be exchanged beside whole."""
    replica_groups: bool = False
    """Groups of replicas that train by themselves are launches of their own, each with a copy of its last synchronised parameters in host
    memory (torchft). Otherwise they are the nodes of one launch, or its islands."""


@dataclass(frozen=True, slots=True)
class Habit:
    """A default that a framework's recipes make, where its own parser has another: most people run the recipe."""

    value: Any
    """The default for which this is said."""
    sentence: str
    """What recipes say, and what the parser would have done."""
    until: str = ""
    """The first release whose parser has the default too."""
