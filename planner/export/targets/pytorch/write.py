"""Writes a plan as a PyTorch script that trains by it: train_plan.json, the script, and the model's config.json where transformers runs."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from cost_models.frameworks.releases import precedes
from cost_models.replicas.groups import num_groups
from planner.export.copies import replicas_and_shards, say_no_expert_parallelism, say_overlaps
from planner.export.hf.model_config import said_config
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.target import Launch, LaunchFile
from planner.export.targets.allocator import allocator_variables
from planner.export.targets.pytorch import keys

SCRIPT = "train.py"
PLAN = "train_plan.json"
ALLOC_CONF_SINCE = "2.9"
"""The release of PyTorch that gave the allocator's variable its name."""
ROPE_THETA = 500000.0
"""The plan does not say the base of the rotary embedding, which costs nothing; this is Llama 3's."""


def write(quantities: Quantities) -> Launch:
    """The launch of a plan of fsdp.

    Raises:
        FieldNotExpressibleError: the script cannot be told a field.
    """
    document = _document(quantities)
    steps = ("--steps", "10")
    notes = ["The script needs PyTorch 2.6 or later."]
    written_files = [
        LaunchFile(SCRIPT, (files(__package__) / "script" / "train.py.txt").read_text()),
        LaunchFile(PLAN, json.dumps(document, indent=2) + "\n"),
    ]
    implementation = quantities.peek("training.model_impl")
    if implementation != keys.NATIVE:
        config = said_config(quantities)
        written_files.append(LaunchFile("config.json", json.dumps(config, indent=2) + "\n"))
        notes.append(
            "transformers must be installed."
            if implementation == "transformers"
            else "transformers and liger-kernel must be installed."
        )
    if document["precision"]["float8"] or document["optimizer"] in ("adamw-8bit", "adamw-4bit"):
        notes.append("torchao must be installed.")
    return Launch(
        files=tuple(written_files),
        command=(SCRIPT, "--tokens", "tokens.bin", "--steps", "1000"),
        mock_command=(SCRIPT, "--mock-data", *steps),
        variables=allocator_variables(quantities, old_name=precedes(quantities.version, ALLOC_CONF_SINCE)),
        notes=tuple(notes),
        own_data=("tokens.bin is yours: token ids of four bytes each.",),
    )


def _document(quantities: Quantities) -> dict[str, Any]:
    q = quantities
    # Every key is written, also those that make no difference, so that the script needs no defaults of its own.
    document = written(q, keys.SPELLINGS)
    replicas, shards = replicas_and_shards(q)
    put(document, keys.REPLICAS, replicas)
    put(document, keys.SHARDS, shards)
    q.implied(
        "vpp", len(q.peek("layers_per_stage")) // q.peek("pp"), why="the number of stages in layers_per_stage says it"
    )
    for field in ("recompute_method", "recompute_num_layers"):
        q.only(
            field,
            [None],
            why="the script recomputes every layer or none, each on its own",
            nearest={field: None},
        )
    say_overlaps(q, "grad_reduce", "param_gather", "p2p", "tp_comm")
    say_no_expert_parallelism(q, why="the script keeps all experts of a layer together")
    put(document, keys.OFFLOAD, _offload(q))
    for name, value in (q["training.ema"] or {}).items():
        put(document, f"{keys.AVERAGE}.{name}", value)
    method = q.only(
        "sync.method", ["local-sgd", None], why="PyTorch has hooks for local SGD alone (post_localSGD_hook.py)"
    )
    if method is not None:
        # Ranks of an island, or of a node as PyTorch does it by itself, are neighbours.
        put(document, keys.LOCAL_RANKS, q.plan.world_size // int(num_groups(q.plan.job, q.plan.row)[0]))
    _say_types(q, document)
    put(document, keys.ATTENTION, _attention(q))
    q.only("training.cuda_graphs", [False], why="the script captures no graphs")
    if q.peek("training.model_impl") == keys.NATIVE:
        q.only(
            "training.dropout",
            [0.0],
            why="the script's own decoder has none",
            nearest={"training.model_impl": "transformers"},
        )
    put(document, keys.DROPOUT, q["training.dropout"])
    losses = ["linear"] if q.peek("training.model_impl") == "liger" else ["unfused", "compiled"]
    q.only(
        "training.cross_entropy",
        losses,
        why=f"the script computes this loss only with other values of training.model_impl than {q.peek('training.model_impl')}",
    )
    model = _own_model(q) if q.peek("training.model_impl") == keys.NATIVE else _named_as_llama(q)
    put(document, keys.MODEL, {"vocab_size": q["model.vocab_size"], **model})
    return document


def _offload(q: Quantities) -> bool:
    """CPUOffloadPolicy moves parameters, gradients and optimizer together (torch/distributed/fsdp/_fully_shard/_fsdp_api.py)."""
    parameters = bool(q["offload.parameters"])
    q.only(
        "offload.optimizer_fraction", [float(parameters)], why="CPUOffloadPolicy moves parameters and optimizer state together",
        nearest={"offload.optimizer_fraction": 1.0, "offload.parameters": True},
    )  # fmt: skip
    if parameters and q.peek("zero") == 0:
        raise q.refusal(
            "offload.parameters", why="it is a policy of FSDP, which zero 0 does not use", nearest={"zero": 3}
        )
    return parameters


def _say_types(q: Quantities, document: dict[str, Any]) -> None:
    precision = q.only("training.precision", keys.PRECISIONS, why="the script has no such products")
    put(document, keys.COMPUTE, keys.PRECISIONS[precision])
    # fp8 products read bf16 activations; the recipe says how both sides are scaled.
    recipe = None
    if precision == "fp8":
        recipe = q.only(
            "training.fp8_recipe", keys.FLOAT8_RECIPES, why="torchao's Float8LinearConfig has no such recipe"
        )
        q.only(
            "tp",
            [1],
            why="tensor parallelism of torchao's layers has classes of its own, which the script does not use",
        )
    put(document, keys.FLOAT8, recipe)
    stored = q.peek("training.param_dtype")
    q.implied("training.main_param_dtype", "none", why="the stored parameter is what the optimizer updates")
    q.implied("training.grad_dtype", stored, why="autograd's gradients have the parameter's type")
    if q.peek("training.optimizer") in ("adam", "muon", "sgd-momentum"):
        q.implied("training.optimizer_state_dtype", stored, why="torch.optim keeps its state in the parameter's type")
    else:
        q[
            "training.optimizer_state_dtype"
        ]  # SGD without momentum has none, and the 8-bit state's type is in the optimizer's name
    q.implied("training.transformer_impl", "local", why="the script's modules are PyTorch's")
    if q.peek("zero") == 0 and q.peek("training.grad_reduce_dtype") != stored:
        # DistributedDataParallel reduces gradients as they are, unless a hook casts them.
        q.only("training.grad_reduce_dtype", [stored, "bf16", "fp16"], why="hooks cast gradients to bf16 or fp16 alone")


def _attention(q: Quantities) -> str:
    q["training.attention_kernel"]  # unfused attention has none
    if q["training.attention"] == "math":
        return "math"
    # The script admits one backend of scaled_dot_product_attention alone, so that a kernel is asked for and not left to PyTorch.
    own = q.peek("training.model_impl") == keys.NATIVE
    if own or q.peek("cp") > 1:
        q.only("training.attention_kernel", keys.NATIVE_KERNELS,
               why="only the kernels of scaled_dot_product_attention run here" if own else
               "only scaled_dot_product_attention can be cut over context-parallel ranks (torch context_parallel)")  # fmt: skip
    return keys.KERNELS[
        q.only("training.attention_kernel", keys.KERNELS, why="neither PyTorch nor transformers calls such a kernel")
    ]


def _own_model(q: Quantities) -> dict[str, Any]:
    """The shape of the script's own decoder."""
    why = "the script's own decoder has no such layers"
    nearest = {"training.model_impl": "transformers"}
    for field, only in {
        "moe": None, "mla": None, "sliding_window": None, "layer_types": None, "norm_weight": True, "norms_per_layer": 2,
        "parallel_block": False, "embedding_norm": False, "final_norm": True, "attention_sinks": False, "attention_gate": False,
        "activation_parameters": 0, "mtp_num_layers": 0, "head_bias": False,
    }.items():  # fmt: skip
        q.only(f"model.{field}", [only], why=why, nearest=nearest)
    positions = q.only("model.position_embedding", ["rope", "learned", "none"], why=why, nearest=nearest)
    norm = q.only("model.qk_norm", ["none", "per_head"], why=why, nearest=nearest)
    bias = q["model.attention_bias"]
    q.implied("model.num_layers", sum(q.peek("layers_per_stage")), why="the layers of all stages")
    shape = {name: q[f"model.{name}"] for name in keys.SHAPE}
    if q.peek("tp") > 1 and positions == "learned" and q["sequence_parallel"]:
        raise q.refusal("sequence_parallel", why="the script's learned positions are not split along the sequence")
    return {
        **shape, "qk_norm": norm == "per_head", "rope_theta": ROPE_THETA,
        "qkv_bias": bias in (True, "qkv"), "attention_out_bias": bias in (True, "out"),
    }  # fmt: skip


def _named_as_llama(q: Quantities) -> dict[str, Any]:
    """Checks what the script asks of transformers' modules; config.json says the rest."""
    q.only("pp", [1], why="transformers' modules are not cut into stages", nearest={"pp": 1})
    # These are what the names of Llama's modules mean: two norms, a gated MLP and rotary positions in every layer.
    plain = (
        q.peek("model.moe") is None and q.peek("model.mla") is None and q.peek("model.position_embedding") == "rope"
        and q.peek("model.norm") == "rmsnorm" and q.peek("model.norms_per_layer") == 2 and not q.peek("model.parallel_block")
    )  # fmt: skip
    if q.peek("tp") > 1 and not plain:
        q.only("tp", [1], why="the script's tensor-parallel plan is for modules that are called as Llama's")
    if q.peek("sequence_parallel") or q.peek("cp") > 1:
        field = "cp" if q.peek("cp") > 1 else "sequence_parallel"
        if q.peek("model.sliding_window") is not None:
            raise q.refusal(
                field,
                why="a sliding window needs a mask of the whole sequence",
                nearest={field: 1 if field == "cp" else False},
            )
    return {}
