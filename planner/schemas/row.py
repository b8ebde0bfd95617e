"""One line for `evaluate`: a job and the strategy to price."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.config import JsonDict

from cost_models.specs.training import EXAMPLE_TRAINING
from planner.schemas.base import ContractModel
from planner.schemas.documents import ClusterDocument, CorrectionsDocument, ModelDocument, TrainingDocument
from planner.schemas.strategy import EXAMPLE_STRATEGY, StrategyInput

EXAMPLE_MODEL: JsonDict = {"preset": "llama-3.1-8b"}
EXAMPLE_CLUSTER: JsonDict = {"preset": "dgx-h100", "num_nodes": 16}
EXAMPLE_ROW: JsonDict = {
    "id": "example",
    "model": EXAMPLE_MODEL,
    "cluster": EXAMPLE_CLUSTER,
    "training": dict(EXAMPLE_TRAINING),
    "strategy": EXAMPLE_STRATEGY,
}


class EvaluateRow(ContractModel):
    """A job and one strategy. Other top-level fields, such as measurements or notes, are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [EXAMPLE_ROW]})

    id: str | int | None = None
    """A text or number of your own, returned with the evaluation, so that answers can be matched with rows."""
    model: ModelDocument
    """The model: a preset, a Hugging Face config or its sizes."""
    cluster: ClusterDocument
    """The GPUs: a preset, or nodes, links and network."""
    training: TrainingDocument
    """Batch, sequence length, precision and framework."""
    corrections: str | CorrectionsDocument | None = None
    """What measured runs say of the predictions: `auto` (a service's own of this tenant, its default), `none`, or a document of
    corrections."""
    strategy: StrategyInput
    """The strategy to price. What it leaves out takes the framework's default, listed in `assumed`."""
