"""Every group of a profile and every scalar in it can change an evaluation: nothing is measured that no price asks for.

Groups and scalars come from the document's schema, so that a new one without effect fails here by its name. A group is taken
away; a scalar is changed in all samples that have it; and where samples of a group are of several kinds (a precision, an
operation, more than one product in a kernel), the result of each kind is changed alone. Exempt is what names a sample or a
machine, each with its reason.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cost_models.calibration import CalibrationDocument, fit_collectives
from cost_models.errors import CalibrationError
from cost_models.hardware import document_of, shipped_document
from planner.rows import evaluate_rows

Json = dict[str, Any]
Change = Callable[[Json], None]

EXEMPT = {
    "schema_version": "the format's version",
    "name": "a label",
    "created_at": "a label; a service picks the newest by it",
    "source": "a label",
    "licence": "a label",
    "notes": "for people",
    "fingerprint.gpu_reported": "a label",
    "fingerprint.driver": "a label, which merging compares",
    "fingerprint.torch": "a label, which merging compares",
    "fingerprint.cuda": "a label, which merging compares",
    "fingerprint.nccl": "a label, which merging compares",
    "fingerprint.cpu": "a label, which merging compares",
    "fingerprint.nvls": "a label: the curves hold what it does",
    "fingerprint.environment": "a label: the curves hold what the variables do",
    "fingerprint.gpus_per_node": "by which a service finds the calibration of a node",
    "fingerprint.num_nodes": "by which a service finds the calibration of a node",
    "device.num_sms": "the data sheet of the measured GPU, for the record; waves are counted on the cluster's own",
    "devices": "how the driver described each device while it was measured: `profile show` warns by it",
    "attention.kv_heads": "names the call: sharing key heads does not change the operations [F-2]",
    "math_attention.kv_heads": "names the call: sharing key heads does not change the operations [F-2]",
    "pairs.first": "names the pair",
    "pairs.second": "names the pair",
    "pairs.link": "what the driver calls the link between the pair",
    "overlap.ranks": "names the sample; how interference changes with the group is not known",
    "overlap.size_bytes": "names the sample; how interference changes with the message is not known",
    "overlap.m": "names the product beside the collective, likewise n and k",
    "overlap.n": "names the product beside the collective",
    "overlap.k": "names the product beside the collective",
    "host_adam.ranks": "names the sample: its rate is the whole node's",
    "host_adam.parameters": "names the sample",
    "host_adam.threads": "names the sample",
    "collectives[op broadcast]": "no plan broadcasts: it is measured no more, and older profiles stay readable",
    "collective_fits[op broadcast]": "the same",
}
"""Scalars and groups that no price follows from, and why."""

# --- documents --------------------------------------------------------------------------------------------------------

PROFILE = "h100x4-nvls-off-2026-11-28"
ACROSS_NODES = [
    {"op": op, "size_bytes": 2.0**power, "ranks": 8, "ranks_per_node": 4, "time_s": 1e-3 * 2.0 ** (power - 24),
     "spread_fraction": 0.01}
    for op in ("all_reduce", "all_gather", "reduce_scatter") for power in (20, 24, 28)
]  # fmt: skip
HOST_ADAM = {"ranks": 4, "parameters": 10**8, "threads": 8, "bytes_per_s": 1e11, "spread_fraction": 0.01}


@cache
def _shipped() -> Json:
    """A shipped profile, thinned to every fourth plain product and fourfold size."""
    document = shipped_document(PROFILE)
    assert document is not None
    content = document.model_dump(mode="json", exclude_defaults=True)
    special = {"batch", "layout", "output_dtype", "dtype"}
    content["gemm"] = [s for i, s in enumerate(content["gemm"]) if special & set(s) or i % 4 == 0]
    content["collectives"] = [s for s in content["collectives"] if math.log2(s["size_bytes"]) % 4 == 0]
    return content


def unfitted() -> Json:
    """A profile of nodes of four GPUs with everything that a profile can hold, but the fits that follow from its samples."""
    content = copy.deepcopy(_shipped())
    content["collectives"] += ACROSS_NODES
    content["host_adam"] = [HOST_ADAM]
    content["host"]["layers"] = {"transformers-fsdp2": {"forward_s": 3e-3, "backward_s": 4e-3, "spread": 0.4}}
    content["overlap"] += [{**content["overlap"][0], "op": "send_recv"}]
    content.pop("collective_fits")
    return content


def full() -> Json:
    """The same with its fits, as a profile is stored."""
    content = unfitted()
    fits = fit_collectives(document_of(content).collectives)
    return {**content, "collective_fits": [fit.model_dump(mode="json", exclude_defaults=True) for fit in fits]}


def older() -> Json:
    """The same as an older or shorter run left it: no fits, no curves of sends, no streams, fewer facts of the host."""
    content = unfitted()
    content.pop("gemm_fits")
    content["collectives"] = [s for s in content["collectives"] if s["op"] not in ("send_recv", "all_to_all")]
    content["memory_bandwidth"] = [s for s in content["memory_bandwidth"] if s["kind"] != "elementwise"]
    for name in ("eager_op_s", "sequence_parallel_layer_s"):
        content["host"].pop(name)
    return content


DOCUMENTS = {"full": full, "unfitted": unfitted, "older": older}
DERIVED = ("collective_fits",)
"""Groups that are computed from samples where a document lacks them: taking one away changes nothing."""

# --- jobs -------------------------------------------------------------------------------------------------------------

DENSE = {
    "num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 8192,
    "vocab_size": 32000,
}  # fmt: skip
MOE = {**DENSE, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 2048}}
ON_PCIE = {
    "name": "H100-SXM-80GB of less", "memory_gib": 80, "peak_tflops": {"bf16": 800, "fp8": 1600},
    "memory_bandwidth_gb_per_s": 2400, "nvlink_gb_per_s": 450, "reference": "H100-SXM-80GB", "power_limit_w": 500.0,
}  # fmt: skip


def row(model: Json, strategy: Json, *, gpu: Any = "H100-SXM-80GB", num_nodes: int = 1, **trained: Any) -> Json:
    training = {"seq_length": 2048, "global_batch_size": 32, "precision": "bf16", "framework": "megatron", **trained}
    cluster = {"gpu": gpu, "num_nodes": num_nodes, "gpus_per_node": 4, "calibration": "mine"}
    cluster |= {"network": {"fabric": "infiniband"}} if num_nodes > 1 else {}
    return {"model": model, "cluster": cluster, "training": training, "strategy": {"micro_batch_size": 1, **strategy}}


TITAN: Json = {"framework": "torchtitan"}
JOBS = [
    row(DENSE, {"tp": 2, "zero": 1}),
    row(DENSE, {"tp": 2, "zero": 1}, seq_length=64, transformer_impl="local"),
    row(DENSE, {"pp": 2, "tp": 2}),
    row(DENSE, {"pp": 2, "vpp": 2}, seq_length=4096),
    row(DENSE, {"zero": 1}, num_nodes=2),
    row(DENSE, {"zero": 0}, num_nodes=2),
    row(MOE, {"ep": 4, "moe_dispatcher": "alltoall"}),
    row(MOE, {"ep": 4, "moe_dispatcher": "alltoall"}, seq_length=8192),
    row({**DENSE, "head_dim": 64}, {"tp": 2}, attention="math", software_date="2022-06"),
    row({**DENSE, "head_dim": 80}, {"tp": 2}, attention="math", software_date="2022-06"),
    row(DENSE, {"tp": 4, "sequence_parallel": False}, precision="fp16"),
    row(DENSE, {"tp": 2}, precision="fp8"),
    row(DENSE, {"zero": 3}, **TITAN),
    row(DENSE, {"zero": 3}, seq_length=64, **TITAN),
    row(DENSE, {"zero": 3}, num_nodes=2, **TITAN),
    row(DENSE, {"zero": 3, "zero_shard_size": 4}, num_nodes=2, **TITAN),
    row(DENSE, {"tp": 4, "zero": 0, "dp": 1, "sequence_parallel": True}, seq_length=64, **TITAN),
    row(DENSE, {"tp": 4, "zero": 0, "dp": 1, "sequence_parallel": False}, seq_length=64, **TITAN),
    row(DENSE, {"zero": 3}, seq_length=64, compile=True, **TITAN),
    row(DENSE, {"tp": 4, "zero": 0, "dp": 1, "sequence_parallel": True}, seq_length=64, compile=True, **TITAN),
    row(DENSE, {"zero": 0}, seq_length=64, cuda_graphs=True),
    row(DENSE, {"zero": 3}, attention="math", **TITAN),
    row(DENSE, {"zero": 3}, framework="fsdp", framework_version="2.8"),
    row(DENSE, {"zero": 3}, seq_length=64, framework="fsdp"),
    row(DENSE, {"tp": 2}, attention_kernel="cudnn"),
    row(DENSE, {"zero": 2, "offload": {"optimizer_fraction": 1.0}}, framework="deepspeed"),
    row(DENSE, {"tp": 2, "zero": 1}, gpu=ON_PCIE),
]


def told(document: CalibrationDocument, job: Json) -> str:
    """What a job is told with this document as its calibration."""
    left_out = ("id", "assumed", "provenance", "reasons")
    (answer,) = evaluate_rows([job], extra={"mine": document})
    return json.dumps({name: value for name, value in answer.items() if name not in left_out}, sort_keys=True)


@cache
def told_before(name: str, position: int) -> str:
    """The same with one of the unchanged documents."""
    return told(document_of(DOCUMENTS[name]()), JOBS[position])


# --- groups and scalars -----------------------------------------------------------------------------------------------

RESULTS = ("time_s", "bytes_per_s", "compute_slowdown_fraction", "communication_slowdown_fraction")
"""Fields that hold what was measured."""


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a group's samples, or of a group of facts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := model_in(part)) is not None), None)


def samples_of(content: Json, group: str) -> list[Json]:
    """The samples of a group, or the group itself where it is one object of facts."""
    held = content.get(group, [])
    return [held] if isinstance(held, dict) else held


def doubled(value: Any) -> Any:
    """A number, or every number in an object, made twice as much."""
    return {name: doubled(each) for name, each in value.items()} if isinstance(value, dict) else 2 * value


def others(value: Any, annotation: Any) -> Iterator[Any]:
    """Other values of the same kind."""
    if get_origin(annotation) is Literal:
        yield from (each for each in get_args(annotation) if each != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        yield from ("fp32", "A100-SXM-80GB")
    elif isinstance(value, (int, float)):
        yield from (2 * value, value / 2 if isinstance(value, float) else max(1, value // 2), 0.95, 3)
    elif isinstance(value, dict):
        yield {name: doubled(each) for name, each in value.items()}
    elif isinstance(value, (list, tuple)):
        yield [2 * each for each in value]
        yield [value[0]] * len(value)


def scalar_changes(group: str | None, name: str, field: FieldInfo) -> Iterator[Change]:
    """Changes of one scalar in every sample; what is not given stands at its default, or at a number of seconds or tokens."""

    def change(content: Json, position: int) -> None:
        for sample in [content] if group is None else samples_of(content, group):
            value = sample.get(name, None if field.is_required() else field.default)
            found = [1e-4, 256] if value is None else list(others(value, field.annotation))
            if position < len(found):
                sample[name] = found[position]

    for position in range(6):
        yield lambda content, position=position: change(content, position)


def kinds_of(group: str, sample_type: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Kinds of sample that a group has: values of what is no number, and more than one where one is the default."""
    if not set(RESULTS) & set(sample_type.model_fields):
        return
    for name, field in sample_type.model_fields.items():
        present = {sample.get(name, field.default) for sample in samples_of(full(), group) if _is_plain(sample, name)}
        if get_origin(field.annotation) is Literal or field.annotation is str:
            yield from ((name, value) for value in sorted(present) if value)
        elif field.default == 1:
            yield name, ">1"


def _is_plain(sample: Json, name: str) -> bool:
    return not isinstance(sample.get(name), (list, dict))


def kind_change(group: str, name: str, default: Any, kind: Any) -> Change:
    """Everything measured of one kind of sample made twice as much."""

    def change(content: Json) -> None:
        for sample in samples_of(content, group):
            value = sample.get(name, default)
            if (value > 1) if kind == ">1" else (value == kind):
                for result in RESULTS:
                    if result in sample:
                        more = sample[result]
                        sample[result] = [2 * each for each in more] if isinstance(more, list) else 2 * more

    return change


def removed(group: str) -> Change:
    return lambda content: content.pop(group, None)


def cases() -> Iterator[tuple[str, list[Change]]]:
    """Labels of everything that must have an effect, each with changes of which one must show it."""
    for name, field in CalibrationDocument.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None:
            yield name, list(scalar_changes(None, name, field))
            continue
        if not field.is_required() and name not in DERIVED:
            yield name, [removed(name)]
        for scalar, its in inner.model_fields.items():
            yield f"{name}.{scalar}", list(scalar_changes(name, scalar, its))
        for scalar, kind in kinds_of(name, inner):
            yield f"{name}[{scalar} {kind}]", [kind_change(name, scalar, inner.model_fields[scalar].default, kind)]


def is_exempt(label: str) -> bool:
    group = label.split("[", maxsplit=1)[0]
    return (
        label in EXEMPT
        or any(group == name or group.startswith(f"{name}.") for name in EXEMPT)
        or ("[" in label and f"{group}.{label.split('[')[1].split(maxsplit=1)[0]}" in EXEMPT)
    )


CASES = {label: changes for label, changes in cases() if not is_exempt(label)}


SHOWN_BY = {
    "attention[kernel sdpa]": ("full", 22), "collectives": ("unfitted", 0), "collectives[op all_to_all]": ("unfitted", 6),
    "collectives[op send_recv]": ("unfitted", 2), "device.power_limit_w": ("full", 26), "gemm": ("full", 0),
    "host.eager_layer_s": ("older", 0), "host.graph_op_s": ("full", 20), "host.layers": ("full", 22),
    "host_adam": ("full", 25), "math_attention": ("full", 21), "memory_bandwidth[kind device_to_host]": ("full", 25),
    "memory_bandwidth[kind host_to_device]": ("full", 25), "pairs": ("older", 2),
}  # fmt: skip
"""The document and the job in which a label or a group shows first. They are tried before all others, which saves their time and decides
nothing: where they show nothing any more, the others are asked."""


def has_effect(label: str) -> bool:
    """Whether some change of some document changes some answer; a document that is refused says nothing."""
    group = re.split(r"[.\[]", label, maxsplit=1)[0]
    first, job = SHOWN_BY.get(label) or SHOWN_BY.get(group) or ("full", 0)
    return shows(label, first, [job]) or any(shows(label, name, range(len(JOBS))) for name in DOCUMENTS)


def shows(label: str, name: str, jobs: Iterable[int]) -> bool:
    """Whether a change of this document changes what one of these jobs is told."""
    content = DOCUMENTS[name]()
    for change in CASES[label]:
        after = copy.deepcopy(content)
        change(after)
        if after == content:
            continue
        try:
            document = document_of(after)
        except CalibrationError:
            continue
        if any(told(document, JOBS[job]) != told_before(name, job) for job in jobs):
            return True
    return False


@pytest.mark.parametrize("label", sorted(CASES))
def test_a_measured_group_or_scalar_changes_an_evaluation(label):
    assert has_effect(label), f"{label} of a profile changes no evaluation"


def test_every_job_is_priced_and_what_is_exempt_exists():
    """An invalid job would hide what it was made to show."""
    found = [json.loads(told_before("full", position)) for position in range(len(JOBS))]
    assert [answer["verdict"] for answer in found] == ["fits"] * len(JOBS)
    labels = {label for label, _ in cases()}
    assert set(EXEMPT) <= labels
    assert set(SHOWN_BY) <= labels | set(CalibrationDocument.model_fields)
