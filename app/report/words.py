"""What pages call a job and a plan: titles, and one line that says what a plan is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.plan_cells import degrees_above_one, parameter_count, seconds
from app.report.report import Json, PlanView, Report
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters
from cost_models.units import GIB
from planner.answer.comparison import listed_ranks
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


def ranks(numbers: Sequence[int]) -> str:
    """Plans by their ranks: "plan 4", "plans 2 and 5", "plans 1 to 10"."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"plans {numbers[0]} to {numbers[-1]}"
    return f"{'plan' if len(numbers) == 1 else 'plans'} {listed_ranks(numbers)}"


_SHARDED = {
    1: "which shard the optimizer state (ZeRO 1)",
    2: "which shard optimizer state and gradients (ZeRO 2)",
    3: "which shard optimizer state, gradients and parameters (ZeRO 3)",
}


def strategy_in_words(view: PlanView) -> str:
    """The strategy as one sentence, for readers who do not know the names of its fields."""
    strategy = view.strategy
    parts = [*_layer_splits(strategy), *_pipeline(strategy), *_replicas(strategy)]
    rounds, size = view.evaluation["num_micro_batches"], strategy["micro_batch_size"]
    parts.append(f"{counted(rounds, 'micro-batch')} of {counted(size, 'sequence')} for each replica in a step")
    parts.append(recomputed_in_words(strategy))
    parts += _offloaded(strategy.get("offload") or {})
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}."


def counted(number: int, name: str) -> str:
    """A number with its noun: "1 stage", "32 micro-batches"."""
    plural = name if number == 1 else f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{number:,} {plural}"


def _layer_splits(strategy: Json) -> Iterator[str]:
    if (tp := strategy["tp"]) > 1:
        sequence = ", with sequence parallelism" if strategy.get("sequence_parallel") else ""
        yield f"every layer over {tp} tensor-parallel GPUs{sequence}"
    if (cp := strategy["cp"]) > 1:
        yield f"every sequence over {cp} context-parallel ranks"
    if (ep := strategy["ep"]) > 1:
        inside = f", each expert over {strategy['etp']} of them" if (strategy.get("etp") or 1) > 1 else ""
        yield f"the experts over {ep} ranks{inside}"


def _pipeline(strategy: Json) -> Iterator[str]:
    if (pp := strategy["pp"]) > 1:
        chunks = strategy.get("vpp") or 1
        held = f" of {chunks} virtual stages each" if chunks > 1 else ""
        yield f"the layers over {pp} pipeline stages{held} ({strategy.get('schedule') or '1f1b'})"


def _replicas(strategy: Json) -> Iterator[str]:
    dp, zero = strategy["dp"], strategy["zero"]
    told = counted(dp, "data-parallel replica")
    # A group of one rank shards nothing, whatever the stage says.
    shard = strategy.get("zero_shard_size") or dp * strategy["cp"]
    if zero and shard > 1:
        told += f", {_SHARDED[zero]}"
        told += f" in groups of {shard}" if shard < dp * strategy["cp"] else ""
    rounded = [
        words
        for name, words in (("weights", "parameters in 8 bits"), ("gradients", "gradients in 4 bits"))
        if strategy.get(f"zero_quantized_{name}")
    ]
    if rounded:
        told += f", sent rounded: {' and '.join(rounded)}"
    yield told


def recomputed_in_words(strategy: Json) -> str:
    """What is computed again in the backward pass, as part of a sentence."""
    kind = strategy.get("recompute") or "none"
    if kind == "none":
        return "nothing is recomputed"
    if kind == "selective":
        modules = strategy.get("recompute_modules") or ["core_attn"]
        return f"{', '.join(modules)} {'is' if len(modules) == 1 else 'are'} recomputed in every layer"
    if strategy.get("recompute_per_stage"):
        return f"layers are recomputed stage by stage ({', '.join(map(str, strategy['recompute_per_stage']))})"
    # With "uniform" the count is the size of a recomputed unit, and every layer is in one.
    count = strategy.get("recompute_num_layers")
    if count and strategy.get("recompute_method") != "uniform":
        chunk = "virtual stage" if (strategy.get("vpp") or 1) > 1 else "stage"
        return f"{counted(count, 'layer')} of each {chunk} recomputed"
    return "every layer is recomputed"


PLACES = {"cpu": "in the hosts' memory", "nvme": "on the nodes' drives"}
BESIDE = {
    "none": "",
    "pipelined": ", with copies beside the update",
    "zenflow": ", most of it updated beside later steps (ZenFlow, which changes what is computed)",
}


def _offloaded(offload: Json) -> Iterator[str]:
    if fraction := offload.get("optimizer_fraction"):
        place = PLACES[offload.get("optimizer_device", "cpu")]
        yield f"{fraction:.0%} of the optimizer state {place}{BESIDE[offload.get('optimizer_overlap', 'none')]}"
    if offload.get("parameters"):
        yield f"the parameters {PLACES[offload.get('parameter_device', 'cpu')]} between their uses"
    if layers := offload.get("activation_layers"):
        yield f"the saved activations of {counted(layers, 'layer')} of each stage in the hosts' memory"
    if modules := offload.get("activation_modules"):
        yield f"{offload.get('activation_fraction', 1.0):.0%} of what {', '.join(modules)} save in the hosts' memory"
