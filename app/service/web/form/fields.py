"""The fields of the form: each with its label, its unit, one sentence and an example, under the name of the contract's field.

The name of a field is its place in the request with dots in place of slashes, so that problems, which carry JSON pointers, find
their field. What the contract has beyond these fields is written into the documents of its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from cost_models import presets
from cost_models.specs.training import EXAMPLE_TRAINING, Framework, Precision
from planner.schemas.plan_request import Extra, Objective

Kind = Literal["whole", "number", "seconds", "hours", "choice", "words", "text", "flag", "document", "way"]
"""Numbers may carry a suffix, as in 128k, and times a unit, as in 30s; `words` is a list with commas; a `document` is JSON; a `way` says which fields count."""
Choices = tuple[tuple[str, str], ...]
"""Values of a choice with what the form calls them; an empty value leaves the field out."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form."""

    name: str
    label: str
    meaning: str
    """One sentence for somebody who sees the field for the first time."""
    kind: Kind
    unit: str = ""
    example: str = ""
    choices: Choices = ()
    suggested: tuple[str, ...] = ()
    """Values that a field of free text offers."""

    @property
    def pointer(self) -> str:
        """Its place in the request as a JSON pointer."""
        return "/" + self.name.replace(".", "/")

    @property
    def id(self) -> str:
        """Its id on the page."""
        return self.name.replace(".", "-")


def _named(kind: presets.Kind) -> Choices:
    return tuple((name, name) for name in presets.names(kind))


# An empty choice is offered only where leaving the field out means something: a model must be named, an optimizer need not be.
def _each(values: tuple[str, ...], *, unsaid: str = "") -> Choices:
    first: Choices = (("", unsaid),) if unsaid else ()
    return first + tuple((value, value) for value in values)


BY_PRESET, BY_GPU, BY_DOCUMENT = "preset", "gpu", "document"
_FLAG: Choices = (("", "as the framework does"), ("true", "yes"), ("false", "no"))

MODEL = (
    Field("model.by", "Model", "Where the description of the model comes from.", "way",
          choices=((BY_PRESET, "A preset"), (BY_DOCUMENT, "Its config.json, or a specification"))),
    Field("model.preset", "Preset", "A published model by name.", "choice", example="llama-3.1-70b", choices=_named("models")),
    Field("model.document", "config.json or specification",
          "Drop the model's Hugging Face config.json here, choose the file, or paste it; or write the sizes of a model of your own.",
          "document",
          example='{"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}'),
)  # fmt: skip
CLUSTER = (
    Field("cluster.by", "Cluster", "Where the description of the machines comes from.", "way",
          choices=((BY_PRESET, "A preset"), (BY_GPU, "A GPU and nodes"), (BY_DOCUMENT, "A specification"))),
    Field("cluster.preset", "Preset", "A kind of node by name, with its links and its network.", "choice",
          example="dgx-h100", choices=_named("clusters")),
    Field("cluster.gpu", "GPU", "The card; links and network are those of its vendor's reference server.", "choice",
          example="H100-SXM-80GB", choices=_named("gpus")),
    Field("cluster.num_nodes", "Nodes", "How many nodes you have.", "whole", example="16"),
    Field("cluster.gpus_per_node", "GPUs per node", "How many cards each node holds.", "whole", example="8"),
    Field("cluster.nic_gbit_per_s", "Network card",
          "Rate of one network card in one direction; left empty, that of the reference server.", "number",
          unit="Gbit/s", example="400"),
    Field("cluster.calibration", "Calibration",
          "Measurements that price the plan: auto takes your newest ones of this GPU and node shape, if there are any.", "choice",
          example="auto"),
    Field("cluster.document", "Specification",
          "A cluster in the words of the API, such as pools of different nodes or a GPU with its own figures.", "document",
          example='{"pools": [{"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8}, '
          '{"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 8, "gpus_per_node": 8}]}'),
)  # fmt: skip
TRAINING = (
    Field("training.seq_length", "Sequence length", "Tokens of one sequence; 128k stands for 131,072.", "whole",
          unit="tokens", example="8192"),
    Field("training.global_batch_size", "Global batch", "Sequences of one optimizer step on all GPUs together.", "whole",
          unit="sequences", example="512"),
    Field("training.precision", "Precision", "The number format of the matrix products.", "choice", example="bf16",
          choices=_each(get_args(Precision))),
    Field("training.framework", "Framework", "The program that trains; its defaults, limits and kernels are taken into account.",
          "choice", example=str(EXAMPLE_TRAINING["framework"]), choices=_each(get_args(Framework))),
    Field("training.framework_version", "Version", "Its release; left empty, the newest one that is known.", "text",
          example="0.16"),
    Field("training.optimizer", "Optimizer", "It decides the bytes of state that each parameter needs.", "choice", example="adam",
          choices=_each(("adam", "sgd", "adam-8bit"), unsaid="adam, unless said otherwise")),
)  # fmt: skip
MORE_TRAINING = (
    Field("training.compile", "Compiled model", "Whether torch.compile fuses the model's operations.", "choice", choices=_FLAG),
    Field("training.attention", "Attention", "Fused kernels, or ones that write their scores to memory.", "choice",
          choices=_each(("flash", "math"), unsaid="as the framework does")),
    Field("training.mean_document_length", "Document length",
          "Mean length of the documents packed into a sequence, where attention stops at their ends.", "number", unit="tokens",
          example="2048"),
    Field("training.document", "Other fields of the training", "Whatever else the API's training accepts, as JSON.",
          "document", example='{"cross_entropy": "te", "cuda_graphs": true}'),
)  # fmt: skip
ADAPTER = (
    Field("training.adapter.rank", "Rank of the adapters",
          "Trains low-rank adapters beside a frozen base; left empty, every parameter is trained.", "whole", example="16"),
    Field("training.adapter.target_modules", "Adapted modules",
          "Which projections get an adapter: all-linear, attention, or names with commas.", "words",
          example="q_proj, v_proj", suggested=("all-linear", "attention")),
    Field("training.adapter.quantized_base", "Base", "How the frozen base is stored.", "choice",
          choices=_each(("none", "nf4", "int8", "fp8"), unsaid="in the training's precision")),
)  # fmt: skip
TARGETS = (
    Field("objective", "Objective", "What counts as best.", "choice", choices=_each(get_args(Objective))),
    Field("targets.min_tokens_per_s", "Least throughput", "Plans that are slower are left out.", "number", unit="tokens/s",
          example="500000"),
    Field("training.total_tokens", "Tokens in all", "How much the whole training reads; 15T stands for 15e12.", "whole",
          unit="tokens", example="15T"),
    Field("targets.deadline_h", "Deadline", "Time within which all these tokens must be read; 30d is 720 hours.", "hours", unit="h", example="30d"),
    Field("constraints.num_nodes.min", "Fewest nodes", "Plans on fewer nodes are left out.", "whole", unit="nodes", example="4"),
    Field("constraints.num_nodes.max", "Most nodes", "Plans on more nodes are left out.", "whole", unit="nodes", example="16"),
    Field("constraints.memory_headroom_fraction", "Memory kept free", "Share of the card that must stay free; 0.03 by default.",
          "number", unit="of 1", example="0.05"),
    Field("constraints.allow_at_risk", "Plans at risk", "Lists plans whose memory may exceed the card, behind those that fit.", "flag"),
    Field("constraints.document", "Other constraints", "Strategy fields that are fixed or listed, as JSON.", "document",
          example='{"fixed": {"tp": 8}, "allowed": {"zero": [1, 2]}}'),
)  # fmt: skip
_EXTRAS: Mapping[Extra, tuple[str, str]] = {
    "pareto": ("Pareto front", "Which plans no other beats in time, memory, GPUs and cost at once."),
    "what_if": ("What if", "How the best plan's time changes with the network, the memory and the batch."),
    "open_splits": ("Open splits", "Searches the layers of every stage too, which may take seconds more."),
}
SEARCH = (
    *(Field(f"include.{name}", label, meaning, "flag") for name, (label, meaning) in _EXTRAS.items()),
    Field("top_k", "Plans", "How many plans are returned; 10 by default.", "whole", example="10"),
    Field("time_limit_s", "Time limit", "Search time after which the best plans so far are returned with the gap that is left.",
          "seconds", unit="s", example="30"),
    Field("seed", "Seed", "Start of the sampler of run-time knobs; 0 by default.", "whole", example="0"),
)  # fmt: skip
FIELDS: Mapping[str, Field] = {
    field.name: field for part in (MODEL, CLUSTER, TRAINING, MORE_TRAINING, ADAPTER, TARGETS, SEARCH) for field in part
}
"""All fields by their names."""
Values = Mapping[str, str]
"""What is filled in, by the names of the fields; a flag that is set has the value "true"."""


@cache
def first_values() -> Values:
    """What the form shows to somebody who opens it: a request that can be sent as it stands."""
    # Small enough to be answered while one looks, large enough that splitting matters. The analyses that cost no time are on, so
    # that the first report shows what a report can show.
    return {
        "model.by": BY_PRESET, "model.preset": "llama-3.1-8b",
        "cluster.by": BY_PRESET, "cluster.preset": "dgx-h100", "cluster.gpu": "H100-SXM-80GB", "cluster.num_nodes": "2",
        "cluster.gpus_per_node": "8", "cluster.calibration": "auto",
        "training.seq_length": "8192", "training.global_batch_size": "512", "training.precision": "bf16",
        "training.framework": str(EXAMPLE_TRAINING["framework"]), "objective": "step_time",
        "include.pareto": "true", "include.what_if": "true",
    }  # fmt: skip
