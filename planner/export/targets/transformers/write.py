"""A plan as the arguments of transformers' Trainer and a script around it."""

from __future__ import annotations

from typing import Any

from planner.export.formats.documents import render_json
from planner.export.hf import distributed_config, fsdp, scripts, train_file
from planner.export.hf.model_config import said_config as said_model
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.target import Launch, LaunchFile
from planner.export.targets.deepspeed import catalogue as deepspeed_keys
from planner.export.targets.deepspeed.config import said_config as said_deepspeed
from planner.export.targets.deepspeed.config import said_units
from planner.export.targets.transformers import catalogue as keys


def write(q: Quantities) -> Launch:
    """`training_args.json`, `ds_config.json` for DeepSpeed's plans, the model, `train.json` and the script that reads them.

    Raises:
        FieldNotExpressibleError: a field of the plan has no word in them.
    """
    model = said_model(q)
    further = []
    document: dict[str, Any] = {**keys.FIXED, **written(q, keys.BATCH), keys.ACCUMULATION: q.plan.num_micro_batches}
    q["training.global_batch_size"]  # micro-batch times accumulation times replicas
    train = train_file.said_in_script(q)
    if q.plan.job.training.framework == "deepspeed":
        config = _say_deepspeed(q, document)
        train[fsdp.DTYPE] = q.peek("training.param_dtype")
        document |= written(q, train_file.TRAINER)
        further.append(LaunchFile(deepspeed_keys.FILE, render_json(config)))
    else:
        train |= _say_fsdp(q, document)
    document |= fsdp.said_optimizer(q) | train_file.said_kernels(q)
    configurations = [LaunchFile(keys.FILE, render_json(document)), *further]
    install = f"Install transformers {q.version}, torch and accelerate."
    return scripts.launch_of(q, "transformers", model, configurations, train, install=install)


def _say_deepspeed(q: Quantities, document: dict[str, Any]) -> dict[str, Any]:
    for field in ("tp", "pp", "cp", "ep"):
        q.only(
            field,
            [1],
            why="the Trainer hands whole models to DeepSpeed's engine here; the target deepspeed splits them",
        )
    said_units(q)
    # integrations/deepspeed.py compares the file with the arguments and refuses what differs.
    for precision in ("bf16", "fp16"):
        if q.peek("training.precision") == precision:
            document[precision] = True
    document[keys.DEEPSPEED] = deepspeed_keys.FILE
    return said_deepspeed(q, release=q.plan.job.training.framework_version)


def _say_fsdp(q: Quantities, document: dict[str, Any]) -> dict[str, Any]:
    if distributed_config.is_needed(q):
        # Such a model is sharded while it is loaded, and the Trainer is told nothing of FSDP.
        document |= written(q, train_file.TRAINER)
        put(document, keys.EACH, q["grad_sync"] == "each")
        return distributed_config.said(q)
    fsdp.check_degrees(q, context=False)
    whole = q.peek("dp") * q.peek("cp")
    q.only("zero_shard_size", [whole], why="its JSON holds no mesh; accelerate's YAML does")
    q.only(
        "offload.activation_layers",
        [0],
        why="its fsdp_config does not hand this on to Accelerate; accelerate's YAML does",
    )
    mixed, train = fsdp.said_types(q, precisions=("bf16", "fp16"), why="TrainingArguments has no such precision")
    if mixed != "no":
        document[mixed] = True
    shards = fsdp.said_shards(q)
    document |= written(q, train_file.TRAINER)
    if shards:
        shards[keys.OFFLOAD] = shards.pop(fsdp.OFFLOAD)
        document[keys.FSDP] = True
        # FSDP's own checkpoints gather a layer once where the Trainer's would gather it twice (training_args.py says so).
        document["gradient_checkpointing"] = False
        for key, value in shards.items():
            put(document, keys.FSDP_CONFIG + key, value)
    put(document, keys.EACH, q["grad_sync"] == "each")
    return train
