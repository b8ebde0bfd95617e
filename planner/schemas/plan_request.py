"""What a plan is asked for: the job, what is fixed or allowed, what counts as best, and how long to search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from cost_models.specs.fields import CountOrZero, Quantity, QuantityOrZero
from planner.schemas.base import ContractModel, Count, Degree, Flag, Fraction
from planner.schemas.documents import ClusterDocument, ModelDocument, TrainingDocument
from planner.schemas.row import EXAMPLE_CLUSTER, EXAMPLE_MODEL, EXAMPLE_TRAINING
from planner.schemas.strategy import (
    Counts,
    CpComm,
    FlexBackend,
    GradSync,
    MoeDispatcher,
    Recompute,
    RecomputeMethod,
    RecomputeModule,
    Schedule,
    StrategyInput,
    ZeroStage,
)

EXAMPLE_REQUEST: JsonDict = {
    "model": EXAMPLE_MODEL,
    "cluster": EXAMPLE_CLUSTER,
    "training": EXAMPLE_TRAINING,
    "constraints": {"allowed": {"zero": [0, 1]}},
    "top_k": 5,
}
_Choices = Field(min_length=1, max_length=1000)
Degrees = Annotated[tuple[Degree, ...], _Choices]
Flags = Annotated[tuple[Flag, ...], _Choices]
Objective = Literal["step_time", "cost", "fewest_gpus"]
Extra = Literal["pareto", "what_if", "open_splits"]


class AllowedOverlap(ContractModel):
    """Values the search may take for each overlap flag."""

    grad_reduce: Flags | None = None
    param_gather: Flags | None = None
    tp_comm: Flags | None = None
    p2p: Flags | None = None
    moe_all_to_all: Flags | None = None


class AllowedOffload(ContractModel):
    """Values the search may take for each offload."""

    optimizer_fraction: Annotated[tuple[Fraction, ...], _Choices] | None = None
    parameters: Flags | None = None
    activation_layers: Annotated[tuple[Count, ...], _Choices] | None = None


class AllowedValues(ContractModel):
    """Lists of values, by strategy field; the search takes no other. What is not listed is searched or defaulted."""

    tp: Degrees | None = None
    pp: Degrees | None = None
    dp: Degrees | None = None
    cp: Degrees | None = None
    ep: Degrees | None = None
    etp: Degrees | None = None
    vpp: Degrees | None = None
    zero: Annotated[tuple[ZeroStage, ...], _Choices] | None = None
    zero_shard_size: Degrees | None = None
    zero_param_shard_size: Degrees | None = None
    grad_sync: Annotated[tuple[GradSync, ...], _Choices] | None = None
    sequence_parallel: Flags | None = None
    micro_batch_size: Degrees | None = None
    recompute: Annotated[tuple[Recompute, ...], _Choices] | None = None
    recompute_method: Annotated[tuple[RecomputeMethod, ...], _Choices] | None = None
    recompute_num_layers: Degrees | None = None
    recompute_modules: Annotated[tuple[tuple[RecomputeModule, ...], ...], _Choices] | None = None
    schedule: Annotated[tuple[Schedule, ...], _Choices] | None = None
    layers_per_stage: Annotated[tuple[Counts, ...], _Choices] | None = None
    cp_comm: Annotated[tuple[CpComm, ...], _Choices] | None = None
    moe_dispatcher: Annotated[tuple[MoeDispatcher, ...], _Choices] | None = None
    flex_backend: Annotated[tuple[FlexBackend, ...], _Choices] | None = None
    overlap: AllowedOverlap | None = None
    offload: AllowedOffload | None = None


class NodeRange(ContractModel):
    """How many whole nodes a plan may use. Default: from 1 to all of the cluster's."""

    min: Degree | None = None
    max: Degree | None = None

    @model_validator(mode="after")
    def _ordered(self) -> NodeRange:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class Constraints(ContractModel):
    """What a plan must respect."""

    fixed: StrategyInput = StrategyInput()
    """Strategy fields with one value each."""
    allowed: AllowedValues = AllowedValues()
    """Strategy fields with the values to search."""
    memory_headroom_fraction: Annotated[Fraction, Field(lt=1.0)] = 0.03
    """Share of capacity that must stay free."""
    allow_at_risk: Flag = False
    """Whether plans whose memory range crosses the limit are listed too, after all that fit."""
    num_nodes: NodeRange = NodeRange()
    allow_idle_gpus: Flag = True
    """Whether a plan may leave whole nodes unused."""

    @model_validator(mode="after")
    def _fixed_or_allowed(self) -> Constraints:
        nested = ("overlap", "offload")  # their parts can be told apart one by one
        names = [name for name in AllowedValues.model_fields if name not in nested]
        both = [n for n in names if getattr(self.fixed, n) is not None and getattr(self.allowed, n) is not None]
        if both:
            raise ValueError(f"{', '.join(both)} given in both fixed and allowed")
        return self


class Targets(ContractModel):
    """What a plan must reach."""

    deadline_h: Quantity | None = None
    """Hours within which training.total_tokens must be done."""
    min_tokens_per_s: Quantity | None = None
    """Tokens per second of the whole job."""


class PlanRequest(ContractModel):
    """The main job: which split of this model over this cluster is best."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_REQUEST]})

    model: ModelDocument
    cluster: ClusterDocument
    training: TrainingDocument
    constraints: Constraints = Constraints()
    objective: Objective = "step_time"
    targets: Targets = Targets()
    top_k: Annotated[Degree, Field(le=1000)] = 10
    """Plans returned; all of them exact within the searched space."""
    include: Annotated[tuple[Extra, ...], Field(max_length=3)] = ()
    """Extra analyses to return, and `open_splits`: seconds more of search for the best layers of every stage, where the
    listed even and nearly even splits are not the best."""
    time_limit_s: Annotated[Quantity, Field(le=86_400.0)] | None = None
    """Search time after which the best so far is returned, with the gap that is left. Default: no limit."""
    wait_s: Annotated[QuantityOrZero, Field(le=60.0)] = 10.0
    """How long a POST waits for the finished answer."""
    seed: Annotated[CountOrZero, Field(lt=2**31)] = 0
