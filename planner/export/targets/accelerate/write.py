"""A plan as Accelerate's YAML and a script around `Accelerator`."""

from __future__ import annotations

from typing import Any

from planner.export.formats.documents import render_json, render_yaml
from planner.export.hf import fsdp, scripts, train_file
from planner.export.hf.model_config import said_config as said_model
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.target import Launch, LaunchFile
from planner.export.targets.accelerate import catalogue as keys
from planner.export.targets.deepspeed import catalogue as deepspeed_keys
from planner.export.targets.deepspeed.config import said_config as said_deepspeed
from planner.export.targets.deepspeed.config import said_units

_PRECISIONS = "the script sets up none of Accelerate's recipes for fp8 (fp8_config)"


def write(q: Quantities) -> Launch:
    """`accelerate.yaml`, `ds_config.json` for DeepSpeed's plans, the model, `train.json` and the script that reads them.

    Raises:
        FieldNotExpressibleError: a field of the plan has no word in them.
    """
    model = said_model(q)
    nodes, further = q.plan.nodes, []
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "machine_rank": 0, keys.MACHINES: sum(node.num_nodes for node in nodes),
        keys.PROCESSES: q.plan.world_size, "main_training_function": "main", "use_cpu": False,
    }  # fmt: skip
    train = train_file.said_in_script(q) | {
        keys.BATCH: q["micro_batch_size"],
        keys.ACCUMULATION: q.plan.num_micro_batches,
    }
    q["training.global_batch_size"]  # micro-batch times accumulation times replicas; the script asserts nothing else
    if q.plan.job.training.framework == "deepspeed":
        config = _say_deepspeed(q, document)
        train |= fsdp.said_optimizer(q) | written(q, train_file.TRAINER) | {fsdp.DTYPE: q.peek("training.param_dtype")}
        further.append(LaunchFile(deepspeed_keys.FILE, render_json(config)))
    else:
        train |= _say_fsdp(q, document)
    document |= written(q, (keys.DYNAMO,)) if q["training.compile"] else {}
    train |= train_file.said_kernels(q)
    train.pop("torch_compile", None)  # Accelerate compiles the model as its own file says
    return scripts.launch_of(
        q,
        "accelerate",
        model,
        [LaunchFile(keys.FILE, render_yaml(document)), *further],
        train,
        install=f"Install accelerate {q.version}, torch and transformers.",
        runner="accelerate",
        runner_options=("--config_file", keys.FILE),
    )


def _say_deepspeed(q: Quantities, document: dict[str, Any]) -> dict[str, Any]:
    for field in ("tp", "pp", "cp", "ep"):
        q.only(field, [1], why="Accelerate hands whole models to DeepSpeed's engine; the target deepspeed splits them")
    said_units(q)
    # mixed_precision stays away: Accelerate refuses what both of its files could say (utils/dataclasses.py).
    document[keys.TYPE] = "DEEPSPEED"
    put(document, keys.DEEPSPEED_FILE, deepspeed_keys.FILE)
    if document[keys.MACHINES] > 1:
        # By default Accelerate starts the nodes of DeepSpeed's jobs itself, over ssh from a hostfile (pdsh).
        put(document, keys.LAUNCHER, "standard")
    put(document, keys.ZERO_INIT, q.peek("zero") == 3 and not q.peek("training.adapter"))
    return said_deepspeed(q, release=q.plan.job.training.framework_version)


def _say_fsdp(q: Quantities, document: dict[str, Any]) -> dict[str, Any]:
    fsdp.check_degrees(q, context=True)
    zero, shards = q.peek("zero"), fsdp.said_shards(q)
    document[keys.TYPE] = "FSDP" if zero else "MULTI_GPU" if q.plan.world_size > 1 else "NO"
    mixed, train = fsdp.said_types(q, precisions=("bf16", "fp16"), why=_PRECISIONS)
    document[keys.MIXED] = mixed
    for key, value in shards.items():
        put(document, keys.FSDP + key, value)
    _say_mesh(q, document)
    train |= fsdp.said_optimizer(q)
    # FSDP2 checkpoints the units that it shards; without it the model checkpoints its layers by itself.
    train["gradient_checkpointing"] = zero == 0 and q["recompute"] == "full"
    q.only("recompute", ["none", "full"], why="it recomputes whole layers")
    train[fsdp.EACH] = q["grad_sync"] == "each"
    return train


def _say_mesh(q: Quantities, document: dict[str, Any]) -> None:
    cp, whole = q.peek("cp"), q.peek("dp") * q.peek("cp")
    shard = q["zero_shard_size"] if q.matters("zero_shard_size") else whole
    # Without a mesh Accelerate shards over all ranks, which every release since FSDP2 does.
    if cp == 1 and shard == whole:
        return
    if cp > 1 and q.peek("training.attention_kernel") not in ("sdpa", "cudnn"):
        why = "its context parallelism cuts scaled_dot_product_attention alone"
        raise q.refusal("training.attention_kernel", why=why, nearest={"training.attention_kernel": "sdpa"})
    if shard == 1:
        raise q.refusal(
            "zero_shard_size", why="FSDP2 needs two ranks to shard over", nearest={"zero_shard_size": whole}
        )
    put(document, keys.REPLICATED, whole // shard)
    put(document, keys.SHARDED, shard // cp)
    for part, value in keys.ALONE.items():
        put(document, keys.MESH + part, value)
    put(document, keys.CONTEXT, cp)
    if cp > 1:
        for key, value in written(q, (keys.TRANSPORTS,)).items():
            document[key] |= value
