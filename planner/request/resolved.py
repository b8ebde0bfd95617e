"""A resolved job, written back in the contract's names and units with presets spelled out and every default filled in.

This is the `request` of a response. It can be posted again, and means the same even where a preset or a default has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from cost_models import presets
from cost_models.inputs.average import average_document
from cost_models.inputs.gpu import resolve_gpu
from cost_models.job import PooledJob
from cost_models.specs.adapter import Adapter
from cost_models.specs.cluster import Cluster, Gpu, Nvme, PooledCluster
from cost_models.specs.collectives import Collectives
from cost_models.specs.method import Islands
from cost_models.specs.model import LayerKind, Model
from cost_models.specs.run import Checkpoint, Reliability
from cost_models.specs.tower import Towers
from cost_models.specs.training import Training
from cost_models.units import BITS_PER_BYTE, GB, GIB, GRAMS_PER_KG, HOUR_S, KWH, MICRO, TERA
from planner.schemas.plan_request import PlanRequest

Document = dict[str, Any]
_SHARED = ("network", "collectives")
"""Fields of a cluster that its pools share."""


def resolved_request(request: PlanRequest, job: PooledJob) -> Document:
    """The request with its three specifications resolved."""
    rest = request.model_dump(mode="json", exclude={"model", "cluster", "training"}, exclude_unset=False)
    if rest["corrections"] in (None, "auto"):  # those of a service's tenant, which it writes in place of the word
        del rest["corrections"]
    cluster, trainings = job.cluster, [training_document(each.training) for each in job.jobs]
    return {
        "model": model_document(job.jobs[0].model) | _tower_document(job),
        "cluster": pools_document(cluster) if cluster.lists_pools else cluster_document(cluster.pools[0].cluster),
        # Defaults that follow from the GPU may differ between pools. They are left out, so that each pool fills in its own again.
        "training": {n: v for n, v in trainings[0].items() if all(other.get(n) == v for other in trainings)},
        **rest,
    }


def _tower_document(job: PooledJob) -> Document:
    """The configuration of the towers beside the model, where the job counts them."""
    one = job.jobs[0]
    return {"multimodal": dict(one.model.multimodal or {})} if one.training.tower_uses else {}


def model_document(model: Model) -> Document:
    """A model specification with every field."""
    windows = [kind.window for kind in model.layer_kinds]
    window = next((w for w in windows if w is not None), None)
    document: Document = {
        name: getattr(model, name)
        for name in (
            "name", "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "vocab_size", "gated_mlp", "tie_word_embeddings", "norm", "norm_bias",
            "norm_weight", "norms_per_layer", "qk_norm", "position_embedding", "max_position_embeddings", "mlp_bias", "head_bias",
            "parallel_block", "embedding_norm", "final_norm", "attention_sinks", "attention_gate",
            "activation_parameters", "mtp_num_layers", "classes",
        )
    }  # fmt: skip
    if model.rotary_interleaved is not None:
        document["rotary_interleaved"] = model.rotary_interleaved
    document["attention_bias"] = _bias(qkv=model.qkv_bias, out=model.attention_out_bias)
    if window is not None or not all(kind.is_plain for kind in model.distinct_kinds):
        document["sliding_window"] = window
        document["layer_types"] = [layer_type(kind) for kind in model.layer_kinds]
    if model.recurrent is not None:
        document["recurrent"] = asdict(model.recurrent)
    if not all(kind.num_blocks == 2 for kind in model.distinct_kinds):
        document["single_block_layers"] = True
    if model.moe is not None:
        document["moe"] = {**asdict(model.moe), "moe_layer_freq": [int(kind.is_moe) for kind in model.layer_kinds]}
    if model.mla is not None:
        document["mla"] = asdict(model.mla)
        if model.mla.indexer is None:
            del document["mla"]["indexer"]
        del document["head_dim"]
    return {name: value for name, value in document.items() if value is not None}


def layer_type(kind: LayerKind) -> str:
    """The name that `layer_types` has for a layer."""
    if kind.mixer == "none":
        return "moe" if kind.is_moe else "mlp"
    if kind.mixer != "attention":
        return {"recurrent": "linear_attention", "both": "hybrid"}[kind.mixer]
    return "full_attention" if kind.window is None else "sliding_attention"


def _bias(*, qkv: bool, out: bool) -> bool | str:
    if qkv == out:
        return qkv
    return "qkv" if qkv else "out"


def cluster_document(cluster: Cluster) -> Document:
    """A cluster specification with every field, in the contract's units."""
    network = cluster.network
    custom = cluster.interconnect == "custom"
    link = {
        "bandwidth_gb_per_s": cluster.intra_bytes_per_s / GB,
        "latency_us": cluster.intra_latency_s / MICRO,
    }
    document: Document = {
        "name": cluster.name,
        "gpu": _gpu_document(cluster.gpu),
        "num_nodes": cluster.num_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "nvlink_domain_gpus": cluster.nvlink_domain_gpus,
        "intra_node": link if custom else cluster.interconnect,
        "pcie": {"gpus_per_switch": cluster.pcie_gpus_per_switch, "gpus_per_socket": cluster.pcie_gpus_per_socket},
        "nics_per_node": network.nics_per_node,
        "nic_gbit_per_s": network.nic_wire_bytes_per_s * BITS_PER_BYTE / GB,
        "network": {
            "fabric": network.fabric,
            "rail_optimized": network.rail_optimized,
            "nodes_per_leaf": network.nodes_per_leaf,
            "oversubscription": network.oversubscription,
            "latency_us": network.latency_s / MICRO,
        },
        "host_memory_gib": None if cluster.host_memory_bytes is None else cluster.host_memory_bytes / GIB,
        "host_link_gb_per_s": cluster.host_link_bytes_per_s / GB or None,
        "host_adam_gb_per_s": cluster.host_adam_bytes_per_s / GB or None,
        "nvme": _nvme_document(cluster.nvme),
        "reserved_memory_gib": cluster.reserved_memory_bytes / GIB,
        "price_per_gpu_hour": cluster.price_per_gpu_hour,
        "reliability": _reliability_document(cluster.reliability),
        "power_w_per_gpu": cluster.power_w_per_gpu,
        "pue": cluster.pue,
        "carbon_g_per_kwh": None if cluster.carbon_kg_per_j is None else cluster.carbon_kg_per_j * KWH * GRAMS_PER_KG,
        "collectives": _collectives_document(cluster.collectives),
        "segment_nodes": cluster.segment_nodes,
        "islands": _islands_document(cluster.islands),
        "calibration": list(cluster.calibration) or None,
    }
    document["network"] = _stated(document["network"])
    return _stated(document)


def pools_document(cluster: PooledCluster) -> Document:
    """A cluster of several kinds of node, with every field of every pool; the pools share the network."""
    documents = [cluster_document(pool.cluster) for pool in cluster.pools]
    pools = [
        {name: value for name, value in document.items() if name not in _SHARED} | {"name": pool.name}
        for document, pool in zip(documents, cluster.pools, strict=True)
    ]
    shared = {name: documents[0][name] for name in _SHARED if name in documents[0]}
    return {"name": cluster.name, **shared, "pools": pools}


def _gpu_document(gpu: Gpu) -> Document | str:
    """The name of the preset if the GPU equals it in every figure, or else all of its figures."""
    # A user's own GPU may bear the name of a preset, so the name alone does not prove that it is one.
    if gpu.name in presets.names("gpus") and resolve_gpu(gpu.name, {}, "")[0] == gpu:
        return gpu.name
    return _stated({
        "name": gpu.name,
        "memory_gib": gpu.memory_bytes / GIB,
        "peak_tflops": {name: peak / TERA for name, peak in gpu.peak_flops_per_s.items()},
        "memory_bandwidth_gb_per_s": gpu.memory_bytes_per_s / GB,
        "nvlink_gb_per_s": gpu.link_bytes_per_s / GB,
        "pcie_gb_per_s": gpu.pcie_bytes_per_s / GB,
        "generation": gpu.generation,
        "num_sms": gpu.num_sms,
        "power_limit_w": gpu.power_limit_w,
        "reference": gpu.reference,
    })  # fmt: skip


_TRAINING_FIELDS = tuple(field.name for field in fields(Training) if field.name not in ("assumed", "warnings"))


def training_document(training: Training) -> Document:
    """A training specification with every field."""
    # Every value is a number or a text, so nothing needs the deep copies that `asdict` makes.
    document = {name: getattr(training, name) for name in _TRAINING_FIELDS}
    document["adapter"] = None if training.adapter is None else _adapter_document(training.adapter)
    document["frozen"] = list(training.frozen) or None
    document["towers"] = _towers_document(training.towers) if training.towers and training.towers.uses else None
    document["ema"] = None if training.ema is None else average_document(training.ema)
    document["checkpoint"] = None if training.checkpoint is None else _checkpoint_document(training.checkpoint)
    return _stated(document)


def _towers_document(towers: Towers) -> Document:
    """Towers with every field, as they were written."""
    states = {use.tower.sense: "trained" if use.trained else "frozen" for use in towers.uses}
    document: Document = {sense: states.get(sense, "none") for sense in ("vision", "audio")}
    document["projector"] = "trained" if towers.projector_trained else "frozen"
    return _stated(document | dict(towers.given) | {"recompute": towers.recompute})


def _adapter_document(adapter: Adapter) -> Document:
    """An adapter with every field; lists that are empty are left out."""
    document = {field.name: getattr(adapter, field.name) for field in fields(adapter)}
    document["target_modules"] = list(adapter.target_modules)
    document["rank_pattern"] = dict(adapter.rank_pattern) or None
    document["modules_to_save"] = list(adapter.modules_to_save) or None
    return _stated(document)


def _nvme_document(its: Nvme | None) -> Document | None:
    """A node's drives, in GB/s and GiB."""
    if its is None:
        return None
    return _stated(
        {
            "read_gb_per_s": its.read_bytes_per_s / GB,
            "write_gb_per_s": its.write_bytes_per_s / GB,
            "capacity_gib": None if its.capacity_bytes is None else its.capacity_bytes / GIB,
        }
    )


def _reliability_document(its: Reliability | None) -> Document | None:
    """How reliable the GPUs are, in hours and seconds."""
    if its is None:
        return None
    return _stated({
        "gpu_mtbf_h": its.gpu_mtbf_s / HOUR_S,
        "restart_s": its.restart_s,
        "detect_s": its.detect_s,
        "spares": its.spares,
        "repair_h": None if its.repair_s is None else its.repair_s / HOUR_S,
    })  # fmt: skip


def _islands_document(its: Islands | None) -> Document | None:
    """Parts of the cluster, in Gbit/s and milliseconds."""
    if its is None:
        return None
    return {
        "count": its.count,
        "link_gbit_per_s": its.link_bytes_per_s * BITS_PER_BYTE / GB,
        "latency_ms": its.latency_s * 1000.0,
    }


def _collectives_document(its: Collectives | None) -> Document | None:
    """The library of collectives with what it is forced to take."""
    if its is None:
        return None
    return _stated({"library": its.library, "algorithm": dict(its.forced) or None, "protocol": its.protocol})


def _checkpoint_document(its: Checkpoint) -> Document:
    """How training is saved."""
    rate = None if its.storage_bytes_per_s is None else its.storage_bytes_per_s / GB
    return _stated({"save_s": its.save_s, "storage_gb_per_s": rate, "asynchronous": its.asynchronous})


def _stated(document: Mapping[str, Any]) -> Document:
    return {name: value for name, value in document.items() if value is not None}
