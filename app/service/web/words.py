"""How lists of plans and calibrations name what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

Entry = TypeVar("Entry")


def asked(request: Mapping[str, Any]) -> str:
    """What a request asks for in one line, from the words in which it was asked."""
    model, cluster = request.get("model") or {}, request.get("cluster") or {}
    training = request.get("training") or {}
    config = model.get("hf_config") or {}
    name = (
        model.get("name") or model.get("preset") or config.get("_name_or_path") or config.get("model_type") or "a model"
    )
    sizes = f"{training.get('seq_length')} tokens, {training.get('framework')}"
    return f"{name} on {_nodes(cluster)}, {sizes}"


def _nodes(cluster: Mapping[str, Any]) -> str:
    if isinstance(cluster.get("pools"), list):
        return " and ".join(_nodes(pool) for pool in cluster["pools"])
    gpu = cluster.get("gpu")
    kind = cluster.get("preset") or (gpu.get("name", "GPUs") if isinstance(gpu, Mapping) else gpu)
    if cluster.get("gpus_per_node") is None:
        return f"{cluster.get('num_nodes', 'the nodes of')} × {kind}"
    return f"{cluster.get('num_nodes')} × {cluster['gpus_per_node']} {kind}"


def when(moment: datetime) -> dict[str, str]:
    """A moment for a reader and for a machine, both in UTC."""
    return {"shown": f"{moment:%Y-%m-%d %H:%M} UTC", "stamp": moment.isoformat()}


def parted(entries: Iterable[Entry], is_example: Callable[[Entry], bool]) -> tuple[list[Entry], list[Entry]]:
    """What the visitor made, and the examples of the documentation, both in their order."""
    own: list[Entry] = []
    examples: list[Entry] = []
    for entry in entries:
        (examples if is_example(entry) else own).append(entry)
    return own, examples
