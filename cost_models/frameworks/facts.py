"""What a training framework is, as data: what it keeps in memory, fuses, overlaps, defaults to, and can be told.

Each framework has a file of its own here with one `FrameworkFacts`, taken from its source code at a named version. Cost
models and the planner read its fields; none of them branches on a framework's name. Sources that stand beside no value are in
EQUATIONS.md under the tag of the formula that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cost_models.frameworks.choices import Choices, Habit, StrategyDefaults
from cost_models.frameworks.knobs import Flag
from cost_models.frameworks.memory import MemoryTraits, MemoryVariant
from cost_models.frameworks.releases import Former, Releases
from cost_models.frameworks.splits import EVEN, SplitRule
from cost_models.frameworks.training_defaults import USUAL_SDPA, Rows, StateDtypes
from cost_models.specs.training import Framework, ModelImpl
from cost_models.strategies.fields import FIELDS

LatentDown = Literal["whole", "shards", "columns"]
FUSED_ACCUMULATION_BYTES: Final = 3.0
"""What adding into the buffer costs a weight gradient whose own kernel adds it, bytes per parameter. [F-9]"""
TORCH_LAYER_KERNELS: Final = (45.0, 67.5)
"""Launches of a dense layer's forward and backward where each operator is PyTorch's own. [F-4]"""
MOE_EXTRA_KERNELS: Final = (25.0, 40.0)
"""Launches that an MoE layer adds to the two, until one framework is counted apart. [F-4]"""
OPTIMIZER_LAUNCHES: Final = 150.0
"""Launches of an optimizer step, until one framework is counted apart. [F-4]"""
NO_OVERLAPS: Final[Mapping[str, bool]] = {field.part: False for field in FIELDS if field.group == "overlap"}
REPLICA_OVERLAPS: Final[Mapping[str, bool]] = {**NO_OVERLAPS, "grad_reduce": True, "param_gather": True}
"""What runs between replicas is overlapped, nothing else."""


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """How a framework moves the state that the host updates."""

    gradients_in_backward: bool
    """Whether gradients go down while the backward makes them; else they go down when the optimizer's step begins."""
    gradients_return: bool
    """Whether, from the second micro-batch on, gradients come up from the host, are added to, and go down again."""
    host_adds_gradients: bool
    """Whether, from the second micro-batch on, the host adds the gradients that arrive."""
    parameters_go_up: bool
    """Whether updated parameters go up after the step; else a pass fetches them when it gathers."""
    norm_and_clip_passes: float
    """Passes over the gradients that the host makes to compute their norm and to clip them."""
    takes_whole_optimizer: bool = False
    """Whether the host updates every parameter of a rank where parameters are offloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRuntimes:
    """Names of the runtimes around a layer, by what they do for data parallelism. Of several the first that was measured counts."""

    sharded: tuple[str, ...] = ()
    """Parameters are gathered layer by layer."""
    hooked: tuple[str, ...] = ()
    """Hooks on whole parameters reduce gradients."""
    nothing: tuple[str, ...] = ()
    package: str = ""
    """What must be installed for these beside PyTorch."""
    priced: bool = True
    """Whether plans are priced by them: whether the agent's small layer was seen to take its host what layers of real jobs take."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameworkFacts:
    """Everything that is known of one framework at one release; `framework_facts` applies what earlier releases did."""

    name: Framework
    releases: Releases
    """Their months are those of wheels, tags and source packages; a framework's file says which were checked."""
    default_version: str
    fused_elementwise: bool
    """Norm, activation, bias-dropout-add run as one kernel each, compiled or hand-written."""
    etp_defaults_to_tp: bool = False
    default_zero: int
    default_sequence_parallel: bool
    """Where tp > 1."""
    overlaps: Mapping[str, bool]
    """Default of each strategy.overlap flag."""
    overlaps_since: str = ""
    """YYYY-MM from which these overlaps work; nothing overlaps before. Empty: always."""
    overlap_tp_backward: bool = False
    """TP all-reduce of the data gradient hidden behind the weight gradient."""
    tp_gathers_gradients_first: bool = False
    """With sequence parallelism the gradient of a row-parallel output is gathered before any of the backward's products runs."""
    gathers_per_tensor: bool = False
    """ZeRO-3 gathers one tensor a call rather than one layer."""
    gradient_accumulation_bytes: float
    """Bytes moved per held parameter and micro-batch by adding weight gradients into the buffer."""
    scatters_pipeline_messages: bool = False
    """Without sequence parallelism a stage's tp ranks send a slice each and gather it on arrival."""
    zero1_all_reduces: bool = False
    """ZeRO-1 reduces whole gradients on every rank rather than scattering them."""
    kernels_forward: float
    """Kernel launches of one dense layer's forward."""
    kernels_backward: float
    parallelism_is_pytorchs: bool = False
    """It splits a model by nothing but FSDP2, DTensor and torch.distributed.pipelining, so that trials with these stand for it."""
    wraps_layers: bool = False
    """FSDP2 and DTensor, with their host time, stand around every layer that is sharded or tensor parallel."""
    copies_units: bool = False
    """What is gathered of a layer is copied into its tensors, and gradients are copied together before they are reduced (FSDP2)."""
    host_step_ratio: float | None = None
    """Host time of an operator in an eager step over that in a profile's loop, where steps of this framework told it; None means
    HOST_STEP_RATIO. [F-4]"""
    hooked_host_ratio: float = 1.0
    """Host time of a layer whose gradients are reduced by hooks (DistributedDataParallel, ZeRO 1 and 2) over that of a plain
    one. [F-4]"""
    hooks_from_zero: int = 0
    """Lowest ZeRO stage with these hooks."""
    hooks_when_reducing: bool = False
    """These hooks return at once in micro-batches that reduce nothing."""
    zero3_host_ratio: float = 1.0
    """Host time of a layer under stage 3's own hooks, which fetch, release and reduce each parameter, over that of a plain one;
    FSDP2's is measured by profiles."""
    layer_runtimes: LayerRuntimes = LayerRuntimes()
    """Runtimes around a layer of Hugging Face's modules, of which the profiling agent times each. [F-4]"""
    optimizer_launches_per_tensor: float = 0.0
    """Operators that an optimizer step issues for each parameter tensor, beside `optimizer_launches`."""
    zero0_checks_gradients: bool = False
    """Without ZeRO an optimizer step asks the device about one gradient after another whether it is finite, and copies all of them
    into one fp32 tensor."""
    copies_around_gathers: bool = False
    """The sequence is not the outermost dimension, so that a gather or scatter along it copies the whole tensor once more:
    torch/distributed/_functional_collectives.py (all_gather_tensor, reduce_scatter_tensor)."""
    moe_extra_kernels: tuple[float, float] = MOE_EXTRA_KERNELS
    """Forward and backward launches an MoE layer adds."""
    exchange_kernels: tuple[float, float] = (0.0, 0.0)
    """Forward and backward launches that it adds besides where several ranks share its experts."""
    host_reads_routing: bool = False
    """The host waits for how many tokens each expert gets before it goes on, so that it does not run ahead of a layer's forward."""
    splits_experts_at_loading: bool = False
    """Experts are split by transformers while it loads a model: the host reads the sizes of each exchange, and tensor-parallel ranks,
    which hold the same tokens, send a share of them each and gather all results."""
    keeps_gathered_norms: bool = False
    """With sequence parallelism the gathered norm outputs stay saved rather than being gathered again in backward."""
    selective_alternates: bool = False
    """`recompute: selective` keeps the output of every other matrix product and of no grouped one, and repeats the rest."""
    selective_repeats_attention: float = 1.0
    """Share of the attention core that it repeats."""
    selective_repeats_elementwise: float = 0.0
    """Share of the norms, activations and the like that it repeats."""
    optimizer_launches: float = OPTIMIZER_LAUNCHES
    """Kernel launches of one optimizer step, norm and clip included."""
    separate_gate_projection: bool = False
    """A gated MLP's two input projections are two matmuls, query, key and value three."""
    zero2_all_reduces: bool = False
    """ZeRO-2 all-reduces each bucket and keeps its shard rather than scattering it."""
    accumulates_unreduced: frozenset[str] = frozenset()
    """Whose modules (`training.model_impl`) usually run in a loop that leaves gradients of ZeRO 2 and 3 unreduced until the
    last micro-batch."""
    replicas_reduce_once: bool = False
    """Sharding in groups: shards are reduced across the groups once a step, whatever happens inside them."""
    param_shards_serve_forward: bool = False
    """Parameters gathered over all shards are kept in the small groups until the step ends, so that only the first forward
    needs all shards; otherwise every forward does, and the backwards alone gather inside."""
    fp8_gather_recipes: frozenset[str] = frozenset()
    """Fp8 recipes under which layers' weights are cast before they are gathered."""
    fp8_gather_source: str = ""
    """Who switches that on, for `assumed`: a recipe's habit, or a default."""
    overlaps_from_zero: int = 0
    """Lowest ZeRO stage in which `overlaps` are the defaults; below it nothing overlaps unless told."""
    reduces_in_backward_from: int = 0
    """Lowest ZeRO stage that can reduce gradients while the backward runs; DeepSpeed's has its reduction buckets ready then."""
    gathers_in_forward_from: int = 1
    """Lowest ZeRO stage that can gather parameters while the forward runs."""
    loops_experts: bool = False
    """Expert-parallel layers run a rank's experts one after another; otherwise as one grouped kernel."""
    pads_experts: bool = False
    """Every expert's input is filled up to its capacity; elsewhere a capacity only drops what exceeds it."""
    weighs_inside_experts: bool = False
    """A token's weights are applied inside the experts' activation; elsewhere a tensor before or behind stays for them."""
    operators_move_rows: bool = False
    """Unless compiled, PyTorch's operators move experts' rows: through groups filled up with a row of zeros, and weighed in fp32."""
    latent_down: LatentDown = "whole"
    """Latent attention's down-projections under sequence parallelism: of gathered rows on every rank (`whole`), of each
    rank's own tokens (`shards`), or of gathered rows with columns split (`columns`)."""
    builds_mtp: bool = False
    """Multi-token-prediction modules of a model are built and trained; elsewhere they are left out."""
    lists_slices: bool = False
    """Stage 3 hands collectives a list with every rank's slice of one tensor, which PyTorch copies one by one between
    synchronizations of the device."""
    overlaps_in_pipelines: bool = True
    """Gradients can be reduced while a pipeline's backward runs."""
    fuses_qkv: bool = False
    """Query, key and value are one matmul although the gate's are two."""
    keeps_parameters_in_pipelines: bool = False
    """In a pipeline parameters are gathered for the whole step (zero 2) unless told otherwise, once, and gradients are
    reduced behind the last micro-batch alone."""
    wraps_tp_calls: bool = False
    """Tensor-parallel collectives stand in autograd functions with buffers and waits of their own, so that the host takes
    `constants.TP_CALL_OPS` operators for each instead of one."""
    tp_overlap_needs_split: bool = False
    """`overlap_tp_backward` holds with sequence parallelism alone."""
    layerwise_from_zero: int = 3
    """Lowest ZeRO stage in which parameters are gathered, and gradients reduced, layer by layer."""
    overlaps_p2p_without_vpp: bool = True
    """Stage-to-stage messages can run beside computation without virtual stages."""
    casts_weights_after_gather: bool = False
    """Stage 3 gathers weights that products read in fp8 in their stored type; without --fp8-param-gather, which is off by
    default, Transformer Engine can cache fp8 copies of all layers."""
    groups_hold_context: bool = False
    """Ranks that share one copy of sharded state always hold whole context-parallel groups."""
    shard_group_stages: frozenset[int] = frozenset()
    """ZeRO stages whose state can be kept to a part of the replicas."""
    expert_shard_group_stages: frozenset[int] = frozenset()
    """The same for a model with experts."""
    param_shard_group_stages: frozenset[int] = frozenset()
    """ZeRO stages that can keep a second copy of the parameters in smaller groups than those that share the state."""
    turns_halves_with_qk_norm: bool = False
    """Rotary positions of models that norm queries and keys turn halves of a head, and all others neighbouring elements."""
    local_modules_fuse_nothing: bool = False
    """Layers without Transformer Engine are made of modules that fuse nothing unless they are compiled."""
    vocab_multiple_per_tp: int = 0
    """The vocabulary is padded to a multiple of this times tp; 0: not padded."""
    host: HostTraffic
    """What the host updates, where anything is offloaded."""
    memory: MemoryTraits
    memory_variants: tuple[MemoryVariant, ...] = ()
    state_dtypes: StateDtypes
    model_impl: ModelImpl = "native"
    """Whose modules run where the user does not say: most people run Hugging Face models under DeepSpeed and FSDP."""
    training_defaults: Mapping[str, Rows] = field(default_factory=dict)
    """By field of `training`, where they are not the usual ones (`training_defaults.USUAL`)."""
    sdpa_kernels: Rows = USUAL_SDPA
    strategy: StrategyDefaults
    choices: Choices
    splits: SplitRule = EVEN
    habits: Mapping[str, Habit] = field(default_factory=dict)
    """By contract field."""
    knobs: tuple[Flag, ...] = ()
    """Knobs that no formula prices; a range is the search's, within what the framework accepts."""
    former: tuple[Former, ...] = ()
    """What earlier releases did differently: each entry that held replaces what those before it said."""

    def ever(self, fact: str) -> bool:
        """Whether a fact holds, or is not empty, in any release that is known."""
        return any([getattr(self, fact), *(former.facts.get(fact) for former in self.former)])
