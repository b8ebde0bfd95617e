"""What pages call a job and a plan: titles, and one line that says what a plan is worth."""

from __future__ import annotations

from collections.abc import Mapping

from app.plan_cells import degrees_above_one, parameter_count, seconds
from app.report.report import Json, PlanView, Report
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters
from cost_models.units import GIB
from planner.answer.step_cost import total_gpus


def page_title(report: Report) -> str:
    """Model and size of the cluster, such as "llama-3.1-70b on 128 GPUs"."""
    request = report.request
    return f"{request['model'].get('name') or 'A model'} on {total_gpus(request['cluster']):,} GPUs"


def job_line(report: Report) -> str:
    """What is trained, on what, how long and how wide, and by which framework."""
    request = report.request
    training = request["training"]
    framework = " ".join(str(training[key]) for key in ("framework", "framework_version") if training.get(key))
    parts = [
        parameters(request["model"]),
        " + ".join(nodes(pool) for pool in request["cluster"].get("pools") or [request["cluster"]]),
        f"sequences of {training['seq_length']:,} tokens",
        f"{training['global_batch_size']:,} a step",
        training.get("precision", ""),
        framework,
    ]
    return ", ".join(part for part in parts if part)


def parameters(model: Json) -> str:
    """The number of parameters with three digits, such as "70.6B parameters"; empty if the model is not described in full."""
    try:
        count = count_parameters(resolve_model(model)).total
    except InvalidInputError:
        return ""
    return f"{parameter_count(count)} parameters"


def nodes(cluster: Json) -> str:
    """The nodes of one kind, such as "16 × 8 H100-SXM-80GB"."""
    gpu = cluster.get("gpu")
    name = gpu.get("name", "GPUs") if isinstance(gpu, Mapping) else gpu or cluster.get("preset", "GPUs")
    return f"{cluster.get('num_nodes', '?')} × {cluster.get('gpus_per_node', '?')} {name}"


def gib(size_bytes: float) -> str:
    """Bytes in GiB with one decimal and no unit."""
    return f"{size_bytes / GIB:,.1f}"


def gist(view: PlanView) -> str:
    """A plan in one line: split, time, memory, GPUs."""
    evaluation = view.evaluation
    low, high = evaluation["step_time_range_s"]
    memory = evaluation["memory"]
    return (
        f"{degrees_above_one(view.plan)} · {seconds(evaluation['step_time_s'])} s a step "
        f"({seconds(low)} to {seconds(high)}) · {gib(memory['peak_device_bytes'])} of {gib(memory['capacity_bytes'])} GiB · "
        f"{evaluation['num_gpus_used']:,} GPUs"
    )
