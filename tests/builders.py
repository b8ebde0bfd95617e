"""What most tests begin with: documents of small models, requests, jobs, and strategies of a job.

The sizes are round and small, so that a test can write out the arithmetic that leads to its numbers. A test states every
value that its numbers rest on; the defaults here stand for what it does not depend on.
"""

from __future__ import annotations

from typing import Any

from cost_models.job import Job
from cost_models.strategies.strategy import Strategies
from planner.request.job import resolve_job
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies

Document = dict[str, Any]

H100 = "H100-SXM-80GB"
UNIT_GPU: Document = {
    "name": "unit", "memory_gib": 80, "peak_tflops": {"bf16": 100}, "memory_bandwidth_gb_per_s": 1000, "nvlink_gb_per_s": 100,
}  # fmt: skip
"""A GPU of round figures that borrows no measured curves: its prices follow from these numbers and the named constants."""


def dense_model(num_layers: int = 4, **fields: Any) -> Document:
    """A dense decoder whose eight heads are 128 wide."""
    return {
        "num_layers": num_layers, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 4096,
        "vocab_size": 32000, **fields,
    }  # fmt: skip


def tiny_model(num_layers: int = 4, **fields: Any) -> Document:
    """A dense decoder so small that its memory and time hardly matter: for what follows from its shape alone."""
    return {
        "num_layers": num_layers, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512,
        "vocab_size": 1000, **fields,
    }  # fmt: skip


def llama_model(num_layers: int = 32, **fields: Any) -> Document:
    """Llama 3.1 8B's sizes, spelled out."""
    return {
        "num_layers": num_layers, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, **fields,
    }  # fmt: skip


def with_experts(model: Document, **fields: Any) -> Document:
    """The model with its MLPs replaced by eight experts, of which each token takes two."""
    return {**model, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 512, **fields}}


def cluster_of(gpu: str | Document = H100, *, num_nodes: int = 1, **fields: Any) -> Document:
    """Nodes of eight GPUs."""
    return {"gpu": gpu, "num_nodes": num_nodes, "gpus_per_node": 8, **fields}


def training_of(framework: str = "megatron", **fields: Any) -> Document:
    """Training in bf16 with 64 sequences of 2,048 tokens a step."""
    return {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": framework, **fields}


def request_of(
    model: Document,
    framework: str = "megatron",
    *,
    gpu: str | Document = H100,
    num_nodes: int = 1,
    cluster: Document | None = None,
    **training: Any,
) -> Document:
    """Model, cluster and training of a request; `cluster` replaces or adds fields of the nodes, `training` of the training."""
    nodes = cluster_of(gpu, num_nodes=num_nodes) | (cluster or {})
    return {"model": model, "cluster": nodes, "training": training_of(framework, **training)}


def job_of(model: Document, framework: str = "megatron", **given: Any) -> Job:
    """The job of `request_of` with the same arguments."""
    return resolve_job(request_of(model, framework, **given))


def rows_of(job: Job, *inputs: Document, all_stages: bool = False) -> Strategies:
    """A batch of these strategies, in this order; micro-batches are of one sequence unless an input says otherwise."""
    given = [StrategyInput.model_validate({"micro_batch_size": 1, **each}) for each in inputs]
    found = resolve_strategies(job, given, all_stages=all_stages)
    assert found.strategies is not None, found.problems
    assert len(found.strategies) == len(inputs), found.problems
    return found.strategies


def row_of(job: Job, *, all_stages: bool = False, **strategy: Any) -> Strategies:
    """A batch of one strategy."""
    return rows_of(job, strategy, all_stages=all_stages)
