"""Writes a plan as nanotron's YAML."""

from __future__ import annotations

import copy
from typing import Any

from planner.export.formats.documents import render_yaml
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.target import Launch, LaunchFile
from planner.export.targets.allocator import allocator_variables
from planner.export.targets.nanotron import keys

CONFIG, MOCK = "config.yaml", "config_mock.yaml"
PROGRAM = '"$NANOTRON/run_train.py"'
"""At the root of nanotron's repository; its package does not hold it."""
_DATASET = {
    "hf_dataset_or_datasets": "your/dataset", "hf_dataset_splits": "train", "hf_dataset_config_name": None, "text_column_name": "text",
    "dataset_processing_num_proc_per_process": 1, "dataset_overwrite_cache": False,
}  # fmt: skip
_OPTIMIZER = {
    "optimizer_factory": {
        "name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-8, "torch_adam_is_fused": True,
    },
    "weight_decay": 0.1, "clip_grad": 1.0,
    "learning_rate_scheduler": {
        "learning_rate": 3.0e-4, "lr_warmup_steps": 2, "lr_warmup_style": "linear", "lr_decay_style": "cosine", "min_decay_lr": 3.0e-5,
    },
}  # fmt: skip
"""What OptimizerArgs and LRSchedulerArgs require and no plan says."""


def write(quantities: Quantities) -> Launch:
    """The launch of a plan of nanotron.

    Raises:
        FieldNotExpressibleError: nanotron cannot be told a field.
    """
    document = _document(quantities)
    mock = copy.deepcopy(document)
    # nanotron/config/config.py, DataArgs: without a dataset it draws dummy batches without end.
    mock["data_stages"][0]["data"]["dataset"] = None
    mock["tokens"]["train_steps"] = 10
    return Launch(
        files=(LaunchFile(CONFIG, render_yaml(document)), LaunchFile(MOCK, render_yaml(mock))),
        command=(PROGRAM, "--config-file", CONFIG),
        mock_command=(PROGRAM, "--config-file", MOCK),
        variables=allocator_variables(quantities),
        checkout=("NANOTRON", "nanotron"),
        runs_in_checkout=False,
        notes=(
            "NANOTRON is the folder of a checkout of nanotron, from which it must be installed, too: the newest wheel is of 2024.",
        ),
        own_data=("The dataset, the tokenizer, the learning rate and the number of steps are yours to set.",),
    )


def _document(q: Quantities) -> dict[str, Any]:
    document: dict[str, Any] = {"general": {"project": "plan", "run": "plan", "seed": 42, "ignore_sanity_checks": True}}
    document["parallelism"], document["model"] = {}, {"model_config": _model(q)}
    for section, values in written(q, keys.SPELLINGS).items():
        document.setdefault(section, {}).update(values)
    put(document, keys.DP, q["dp"])
    why = "its releases disagree whether expert-parallel ranks multiply the world or are taken from it (parallel/context.py)"
    q.only("ep", [1], why=why)
    # One source derives the world from dp * tp * cp * pp, slurm_launcher.py multiplies by this key as well.
    put(document, keys.EXPERTS, 1)
    if q.matters("etp"):
        q.implied("etp", q.peek("tp"), why="experts are split like every other layer")
    put(document, keys.ACCUMULATION, q["training.global_batch_size"] // (q.peek("dp") * q.peek("micro_batch_size")))
    _say_states(q)
    _say_fixed(q)
    put(document, keys.KERNEL, _kernel(q))
    document["model"] |= {"init_method": {"std": 0.02}, "make_vocab_size_divisible_by": 1, "ddp_bucket_cap_mb": 25}
    document["tokens"]["train_steps"] = 1000
    document["optimizer"] = {**document["optimizer"], **copy.deepcopy(_OPTIMIZER)}
    document["tokenizer"] = {"tokenizer_name_or_path": "your/tokenizer"}
    document["logging"] = {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"}
    document["checkpoints"] = {"checkpoints_path": "checkpoints", "checkpoint_interval": 1000}
    data = {"dataset": dict(_DATASET), "num_loading_workers": 1, "seed": 42}
    document["data_stages"] = [{"name": "training", "start_training_step": 1, "data": data}]
    return document


def _say_states(q: Quantities) -> None:
    # The row's precision, its stored type and its products are one key here.
    stored, summed = q.peek("training.param_dtype"), q.peek("training.grad_dtype")
    q.implied("training.precision", stored, why="model.dtype is the type of parameters and products")
    # nanotron/optim/gradient_accumulator.py (FP32GradientAccumulator) keeps fp32 parameters beside fp32 gradients.
    copies = "fp32" if summed == "fp32" and stored != "fp32" else "none"
    q.implied(
        "training.main_param_dtype", copies, why="accumulate_grad_in_fp32 brings a copy of the parameters in fp32"
    )
    q.implied("training.grad_reduce_dtype", summed, why="gradients are reduced as they are summed")
    q.implied(
        "training.optimizer_state_dtype",
        "fp32" if copies == "fp32" else stored,
        why="Adam's state has the type of what it updates",
    )
    q.only("training.optimizer", ["adam"], why="the launch sets up its AdamW")
    q.implied(
        "zero_shard_size",
        q.peek("dp") * q.peek("cp") if q.peek("zero") else 1,
        why="ZeRO-1 shards over all data-parallel ranks",
    )
    q.implied("grad_sync", "last", why="it reduces once a step (trainer.py)")


def _say_fixed(q: Quantities) -> None:
    q["layers_per_stage"]  # the rules admit its own split alone, which follows from the blocks' costs (models/base.py)
    q.only("vpp", [1], why="it has no virtual stages")
    for field in ("recompute_method", "recompute_num_layers"):
        q.only(field, [None], why="recompute_layer is a switch for every layer", nearest={field: None})
    q.implied("cp_comm", "p2p", why="context parallelism is ring attention (nn/ring_attention.py)")
    q.implied("moe_dispatcher", "alltoall", why="moe_config.token_dispatcher_type, here all-to-all")
    for name in ("grad_reduce", "param_gather", "p2p", "moe_all_to_all"):
        q.implied(f"overlap.{name}", False, why="it has no setting that overlaps it")
    for field, value in {
        "offload.optimizer_fraction": 0.0, "offload.parameters": False, "offload.activation_layers": 0, "training.dropout": 0.0,
        "training.compile": False, "training.cuda_graphs": False, "training.cross_entropy": "unfused",
        "training.transformer_impl": "local", "training.model_impl": "native", "training.attention": "flash",
    }.items():  # fmt: skip
        q.implied(field, value, why="it has no setting for another")


def _kernel(q: Quantities) -> str:
    # The trainer does not choose it by the degree: the model's configuration names the implementation.
    if q.peek("cp") > 1:
        q.only("training.attention_kernel", ["fa2"], why="ring attention is a FlashAttention of its own")
        return keys.RING
    return keys.KERNELS[
        q.only("training.attention_kernel", keys.KERNELS, why="it has no such kernel (nn/attention.py)")
    ]


_PLAIN = {
    "gated_mlp": True, "norm": "rmsnorm", "norm_bias": False, "norm_weight": True, "norms_per_layer": 2, "position_embedding": "rope",
    "mlp_bias": False, "head_bias": False, "parallel_block": False, "embedding_norm": False, "final_norm": True,
    "attention_sinks": False, "attention_gate": False, "activation_parameters": 0, "qk_norm": "none",
    "sliding_window": None, "layer_types": None, "mtp_num_layers": 0, "mla": None,
}  # fmt: skip
"""What LlamaConfig and Qwen2Config are."""


def _model(q: Quantities) -> dict[str, Any]:
    for field, only in _PLAIN.items():
        q.only(f"model.{field}", [only], why="its models Llama and Qwen2 have no such layers")
    shape = {key: q[f"model.{field}"] for key, field in keys.SHAPE.items()}
    # The rotary tables have this length.
    shape["max_position_embeddings"] = max(shape["max_position_embeddings"] or 0, q.peek("training.seq_length"))
    q.implied(
        "model.head_dim",
        shape["hidden_size"] // shape["num_attention_heads"],
        why="a head is hidden_size / num_attention_heads wide",
    )
    bias = q.only(
        "model.attention_bias", [False, "qkv"], why="Qwen2's layers have biases of queries, keys and values, or none"
    )
    moe = q["model.moe"]
    if moe is None and not bias:
        return {"is_llama_config": True, "hidden_act": "silu", **shape}
    qwen = {keys.QWEN: True, "hidden_act": "silu", keys.BIAS: bool(bias), **shape}
    if moe is None:
        return qwen
    plain = (
        not moe["num_shared_experts"] and not moe["router_bias"] and moe["capacity_factor"] is None and moe["num_groups"] == 1
        and all(moe["moe_layer_freq"])
    )  # fmt: skip
    if not plain:
        raise q.refusal(
            "model.moe", why="moe_config has routed experts alone, without groups or capacity, in every layer"
        )
    # An expert is as wide as Qwen2Config's intermediate_size.
    qwen["intermediate_size"] = moe["expert_intermediate_size"]
    experts = {
        "num_experts": moe["num_experts"],
        "top_k": moe["top_k"],
        "token_dispatcher_type": "alltoall",
        "layers": [-1],
    }
    return {**qwen, "moe_config": experts}
