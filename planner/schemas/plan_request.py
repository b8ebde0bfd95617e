"""A request for plans: the job, what is fixed or allowed, what counts as best, and how long to search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from cost_models.inputs.fields import ContradictionError, CountOrZero, Quantity, QuantityOrZero
from cost_models.specs.training import EXAMPLE_TRAINING
from cost_models.strategies.fields import GROUPS
from planner.schemas.base import ContractModel, Degree, Flag, Fraction
from planner.schemas.documents import ClusterDocument, CorrectionsDocument, ModelDocument, TrainingDocument
from planner.schemas.row import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.schemas.strategy import AllowedValues, StrategyInput

EXAMPLE_REQUEST: JsonDict = {
    "model": EXAMPLE_MODEL,
    "cluster": EXAMPLE_CLUSTER,
    "training": dict(EXAMPLE_TRAINING),
    "constraints": {"allowed": {"zero": [0, 1]}},
    "top_k": 3,
}
MOST_PLANS = 1000
"""Plans that one request may ask for."""
Objective = Literal["step_time", "cost", "fewest_gpus"]
Extra = Literal["pareto", "what_if", "open_splits"]


class NodeRange(ContractModel):
    """How many whole nodes a plan may use. Default: from 1 to all of the cluster's."""

    min: Degree | None = None
    """Smallest number of nodes."""
    max: Degree | None = None
    """Largest number of nodes."""

    @model_validator(mode="after")
    def _ordered(self) -> NodeRange:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ContradictionError(f"min {self.min} is larger than max {self.max}", "Lower min, or raise max.")
        return self


class Constraints(ContractModel):
    """What a plan must respect."""

    fixed: StrategyInput = StrategyInput.model_construct()
    """Strategy fields that have one value each."""
    allowed: AllowedValues = AllowedValues.model_construct()
    """Strategy fields with the values to search."""
    memory_headroom_fraction: Annotated[Fraction, Field(lt=1.0)] = 0.03
    """Share of the GPU's capacity that must stay free."""
    allow_at_risk: Flag = False
    """Whether plans whose memory range crosses the limit are listed too, behind all plans that fit."""
    num_nodes: NodeRange = NodeRange.model_construct()
    """How many whole nodes a plan may use."""
    allow_idle_gpus: Flag = True
    """Whether a plan may leave whole nodes unused."""

    @model_validator(mode="after")
    def _fixed_or_allowed(self) -> Constraints:
        # One part of a group such as overlap may be fixed while another is listed, so groups as a whole are not compared.
        names = [name for name in AllowedValues.model_fields if name not in GROUPS]
        both = [n for n in names if getattr(self.fixed, n) is not None and getattr(self.allowed, n) is not None]
        if both:
            told = f"{', '.join(both)} {'is' if len(both) == 1 else 'are'} given in both fixed and allowed"
            raise ContradictionError(
                told, "A fixed field has one value and an allowed one is searched: leave it in one of the two."
            )
        return self


class Targets(ContractModel):
    """What a plan must reach."""

    deadline_h: Quantity | None = None
    """Hours within which training.total_tokens must be done."""
    min_tokens_per_s: Quantity | None = None
    """Tokens per second that the whole job must reach."""


class PlanRequest(ContractModel):
    """Which split of the training of this model over this cluster is best."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_REQUEST]})

    model: ModelDocument
    """The model to train: a preset, a Hugging Face config or its sizes."""
    cluster: ClusterDocument
    """The GPUs to train it on: a preset, or nodes, links and network."""
    training: TrainingDocument
    """Batch, sequence length, precision and framework."""
    corrections: str | CorrectionsDocument | None = None
    """What measured runs say of the predictions: `auto` (a service's own of this tenant, its default), `none`, or a document of
    corrections. Those of this framework, model_impl, GPU, precision and calibration are applied."""
    constraints: Constraints = Constraints.model_construct()
    """What every plan must respect. Default: nothing but 3 % free memory."""
    objective: Objective = "step_time"
    """What the best plan has least of: seconds of a step, cost of a token, or GPUs."""
    targets: Targets = Targets.model_construct()
    """What a plan must reach to be listed."""
    top_k: Annotated[Degree, Field(le=MOST_PLANS)] = 10
    """Number of plans that are returned, all of them exact within the searched space."""
    include: Annotated[tuple[Extra, ...], Field(max_length=3)] = ()
    """Extra analyses. `open_splits` searches for the best layers of every stage, which takes seconds more, where even and nearly
    even splits are not the best."""
    time_limit_s: Annotated[Quantity, Field(le=86_400.0)] | None = None
    """Seconds of search after which the best plans so far are returned with the remaining gap. Default: no limit."""
    wait_s: Annotated[QuantityOrZero, Field(le=60.0)] = 10.0
    """Seconds that a POST waits for the answer to be finished."""
    seed: Annotated[CountOrZero, Field(lt=2**31)] = 0
    """Number that starts the random choices of searches that make any."""
