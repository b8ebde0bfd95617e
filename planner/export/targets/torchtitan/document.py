"""What a plan says in the sections of torchtitan's configuration, whatever the syntax of the release."""

from __future__ import annotations

from typing import Any

from cost_models.frameworks.training_defaults import Setting, chosen
from planner.export.copies import replicas_and_shards, say_overlaps
from planner.export.quantities import Quantities
from planner.export.spellings import put, written
from planner.export.targets.torchtitan import keys

_ONE_LAYER_EACH = "torchtitan recomputes every layer on its own (FullAC)"


def sections(q: Quantities) -> dict[str, Any]:
    """All keys by section.

    Raises:
        FieldNotExpressibleError: the release has no key for a field.
    """
    document = written(q, keys.spellings(q.version))
    python = keys.is_python(q.version)
    _say_copies(q, document)
    _say_batch(q, document)
    _say_stages(q, document)
    _say_experts(q, document)
    _say_recompute(q, document)
    _say_types(q, document)
    _say_attention(q, document)
    _say_compilation(q, document)
    if not python:
        q.implied(
            "sequence_parallel",
            True,
            why="tensor parallelism always splits along the sequence (models/llama3/infra/parallelize.py)",
        )
        q.only("training.cuda_graphs", [False], why="it captures no graphs before 0.3")
    else:
        q.only("overlap.moe_all_to_all", [False], why="the key went with 0.3 (distributed/dual_pipe_v.py)")
    if python and q.matters("cp_comm"):
        q.implied("cp_comm", "allgather", why="FlexAttention gathers keys and values (distributed/context_parallel)")
    q.only("training.optimizer", ["adam"], why="its optimizers are Adam and AdamW")
    put(document, "optimizer.name", "AdamW")
    q.only("training.dropout", [0.0], why="its models have none")
    q.only("training.model_impl", ["native"], why="its launch here runs torchtitan's own models")
    _say_groups(q, document)
    q["pool_per_stage"]  # pp is the outermost dimension of its mesh, so the order of the nodes says it
    return document


def _say_copies(q: Quantities, document: dict[str, Any]) -> None:
    # Neither degree is left to be derived (-1 means the ranks that are left), so that a launch on the wrong number of GPUs fails.
    replicas, shards = replicas_and_shards(q)
    put(document, keys.REPLICATE, replicas)
    put(document, keys.SHARD, shards)
    alone = replicas * shards * q.peek("cp") == 1
    python = keys.is_python(q.version)
    if q.peek("zero") == 0 and q.peek("cp") > 1:
        q.only(
            "zero",
            [2, 3],
            why="its context-parallel ranks always shard the parameters (fsdp = dp_shard x cp)",
            nearest={"zero": 3},
        )
    if not python and not alone and q.peek("zero") == 0 and q.peek("tp") * q.peek("pp") > 1:
        q.only(
            "zero",
            [2, 3],
            why="DDP has not supported > 1D parallelism (models/llama3/infra/parallelize.py)",
            nearest={"zero": 3},
        )
    if not python and alone and q.peek("tp") * q.peek("pp") > 1 and q.peek("training.param_dtype") == "fp32":
        q.only("training.precision", ["fp32"], why="without FSDP it casts nothing beside tp or pp (distributed/utils.py, maybe_enable_amp)",
               nearest={"training.param_dtype": "bf16"})  # fmt: skip
    # Its loop has no no_sync: DDP reduces in every backward (train.py, forward_backward_step), and so does FSDP2 but in pipelines
    # (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).
    waits = q.peek("pp") > 1 and (python or q.peek("zero") >= 2)
    q.implied("grad_sync", "last" if waits else "each", why="its loop cannot be told when to reduce gradients")
    say_overlaps(q, "grad_reduce", "param_gather", "p2p")
    parameters = bool(q["offload.parameters"])
    q.only("offload.optimizer_fraction", [float(parameters)], why="enable_cpu_offload moves parameters and optimizer state together",
           nearest={"offload.optimizer_fraction": 1.0, "offload.parameters": True})  # fmt: skip
    put(document, keys.CPU_OFFLOAD, parameters)


def _say_groups(q: Quantities, document: dict[str, Any]) -> None:
    """Groups of replicas that train by themselves: each is a launch of its own, told its number on its command line.

    training.global_batch_size stays that of all groups (docs of torchtitan's torchft).
    """
    method = q["sync.method"]
    if method is None:
        return
    if keys.is_python(q.version):
        why = "its FaultTolerantTrainer takes model specifications of its own, which the launch does not write; 0.2 has keys for it"
        raise q.refusal("sync.method", why=why)
    one = "our module registers the model without a fragment_fn, so that it is one fragment"
    q.only("sync.fragments", [1, None], why=one, nearest={"sync.fragments": 1})
    said = {
        "enable": True, "group_size": q.plan.groups, "replica_id": 0, "min_replica_size": q.plan.groups,
        "semi_sync_method": keys.SEMI_SYNC[method], "sync_steps": q["sync.sync_every"],
        "should_quantize": q["sync.quantize"] == "fp8", "fragment_sync_delay": q["sync.delay_steps"] or 0,
    }  # fmt: skip
    for name, value in said.items():
        put(document, f"{keys.FAULT_TOLERANCE}.{name}", value)
    # Only this module adds sync_steps and those after it to the section; without it torchtitan refuses them.
    put(document, keys.CUSTOM_CONFIG, "torchtitan.components.ft.config.job_config")


def _say_batch(q: Quantities, document: dict[str, Any]) -> None:
    # Without a pipeline the local batch is one forward pass, and the trainer accumulates to the global batch; in a pipeline it holds
    # all micro-batches of a step, which the schedule cuts apart (trainer.py; distributed/pipeline_parallel.py).
    micro, pp = q["micro_batch_size"], q.peek("pp")
    put(document, keys.LOCAL_BATCH, micro if pp == 1 else micro * q.plan.num_micro_batches)
    if pp > 1:
        put(document, keys.PIPELINE_MICRO_BATCH, micro)


def _say_stages(q: Quantities, document: dict[str, Any]) -> None:
    layers, stages = q["layers_per_stage"], q["vpp"] * q.peek("pp")
    if stages == 1:
        return
    # Both `less_layers` keys are 1 unless told, which makes an even split of layers uneven.
    if len(set(layers)) == 1 and layers[0] > 0:
        put(document, keys.LAYERS_PER_STAGE, layers[0])
        put(document, keys.FIRST_LESS, 0)
        put(document, keys.LAST_LESS, 0)
        return
    put(document, keys.MODULES, modules_of_stages(layers, head=keys.HEAD[keys.is_python(q.version)]))


def modules_of_stages(layers: tuple[int, ...], *, head: str) -> list[list[str]]:
    """The modules of every virtual stage, in model order."""
    found, first = [], 0
    for count in layers:
        found.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", head]
    return found


def _say_experts(q: Quantities, document: dict[str, Any]) -> None:
    if q.peek("model.moe") is None:
        if not keys.is_python(q.version):
            put(document, keys.EXPERT_TENSOR, 1)
        return
    etp, tp = q["etp"], q.peek("tp")
    if q.peek("ep") == 1:
        q.implied(
            "etp",
            tp,
            why="without expert parallelism the experts are split like every other layer (parallelize.py, apply_moe_ep_tp)",
        )
    if not keys.is_python(q.version):
        put(document, keys.EXPERT_TENSOR, etp if q.peek("ep") > 1 else 1)
    elif q.peek("ep") > 1:
        q.only("etp", [1], why="the key went with 0.3")
    if not keys.is_python(q.version):
        q.only("flex_backend", ["deepep", None], why="expert_parallel_comm_backend knows standard and deepep")
    if q.peek("ep") == 1:
        for field in ("moe_dispatcher", "flex_backend"):
            q[field]


def _say_recompute(q: Quantities, document: dict[str, Any]) -> None:
    mode, method, count = q["recompute"], q["recompute_method"], q["recompute_num_layers"]
    put(document, keys.CHECKPOINT_MODE, mode)
    # Up to 0.2 "selective" alone would recompute every second layer whole (selective_ac_option "2").
    if mode == "selective" and not keys.is_python(q.version):
        put(document, keys.CHECKPOINT_OPTION, "op")
    if mode != "full" or method is None:
        return
    layers = set(q.peek("layers_per_stage"))
    if keys.is_python(q.version) or method != "block":
        raise q.refusal(
            "recompute_method", why=_ONE_LAYER_EACH, nearest={"recompute_method": None, "recompute_num_layers": None}
        )
    (largest, *others) = sorted(layers, reverse=True)
    if others or largest % count:
        why = "it recomputes every n-th layer (selective_ac_option), which gives this count only on equal stages that n divides"
        raise q.refusal(
            "recompute_num_layers", why=why, nearest={"recompute_num_layers": None, "recompute_method": None}
        )
    put(document, keys.CHECKPOINT_MODE, "selective")
    put(document, keys.CHECKPOINT_OPTION, str(largest // count))


def _say_types(q: Quantities, document: dict[str, Any]) -> None:
    precision = q.only(
        "training.precision", ["bf16", "fp32", "fp8", "nvfp4"], why="it has no loss scaling, which fp16 needs"
    )
    # TrainingConfig.dtype is the type in which parameters, gradients and optimizer state are stored.
    stored = q.peek("training.param_dtype")
    put(document, keys.COMPUTE, "float32" if precision == "fp32" else "bfloat16")
    put(document, keys.REDUCE, "float32")
    sharded = q.peek("zero") >= 2 or keys.is_python(q.version)
    q.implied(
        "training.grad_reduce_dtype", "fp32" if sharded else stored, why="mixed_precision_reduce is always float32"
    )
    q.implied("training.main_param_dtype", "none", why="the stored parameter is what the optimizer updates")
    q.implied("training.grad_dtype", stored, why="autograd's gradients have the parameter's type")
    q.implied("training.optimizer_state_dtype", stored, why="torch.optim.AdamW keeps its state in the parameter's type")
    q.implied("training.transformer_impl", "local", why="its modules are PyTorch's")
    if precision not in ("fp8", "nvfp4"):
        return
    if q.peek("model.moe") is not None:
        q.only(
            "training.precision",
            ["bf16"],
            why="its quantised experts are a prototype, which the launch does not set up",
        )
    if precision == "nvfp4" and not keys.is_python(q.version):
        q.only("training.precision", ["bf16", "fp8"], why="NVFP4LinearConverter came with 0.3")
    recipes = _RECIPES[keys.is_python(q.version)] if precision == "fp8" else ()
    if precision == "fp8":
        recipe = q.only("training.fp8_recipe", recipes, why=f"its converters know {' and '.join(recipes)}")
        if not keys.is_python(q.version):
            _say_float8(document, recipe, gathers=q.peek("dp") * q.peek("cp") > 1)
    else:
        q["training.fp8_recipe"]


_RECIPES = {False: ("tensorwise", "rowwise", "mxfp8"), True: ("rowwise", "mxfp8")}


def _say_float8(document: dict[str, Any], recipe: str, *, gathers: bool) -> None:
    put(document, keys.CONVERTERS, [keys.MX_CONVERTER if recipe == "mxfp8" else keys.FLOAT8_CONVERTER])
    # The plan counts on a head in bf16. MXLinearConverter leaves it out by default, Float8LinearConverter does not.
    put(document, keys.MX_FILTER if recipe == "mxfp8" else keys.FLOAT8_FILTER, [keys.HEAD[False]])
    if recipe == "mxfp8":
        put(document, keys.MX_RECIPE, "mxfp8_cublas")
    elif recipe == "rowwise":
        put(document, keys.FLOAT8_RECIPE, "rowwise")
    else:
        # The plan counts on float8 gathers, as torchtitan's benchmarks run it (cost_models/frameworks, fp8_gather_source).
        put(document, keys.FLOAT8_GATHER, gathers)
        put(document, keys.FLOAT8_SCALES, gathers)


def _say_attention(q: Quantities, document: dict[str, Any]) -> None:
    q.only("training.attention", ["flash"], why="its attention is a fused kernel")
    kernel = q["training.attention_kernel"]
    length = q["training.mean_document_length"]
    if keys.is_python(q.version):
        q.only(
            "training.attention_kernel",
            ["flex"],
            why="its language models take FlexAttention (models/common/config_utils.py)",
        )
        if q.peek("cp") > 1:
            put(document, keys.LOAD_BALANCER, "ptrr")
        return
    plan = q.plan
    own = chosen(plan.job.framework.sdpa_kernels, Setting(
        framework="torchtitan", date=plan.training["software_date"], generation=plan.generation,
        precision=plan.training["precision"], version=plan.training["framework_version"],
    ))  # fmt: skip
    q.only("training.attention_kernel", [own, "flex"],
           why=f"scaled_dot_product_attention runs {own} here (models/attention.py, ScaledDotProductAttentionWrapper)")  # fmt: skip
    if length is not None and length < q.peek("training.seq_length") and kernel != "flex":
        raise q.refusal("training.mean_document_length", why="only FlexAttention masks documents",
                        nearest={"training.attention_kernel": "flex"})  # fmt: skip
    if q.peek("cp") > 1:
        put(document, keys.LOAD_BALANCER, "ptrr" if kernel == "flex" else "headtail")


def _say_compilation(q: Quantities, document: dict[str, Any]) -> None:
    model, loss = bool(q["training.compile"]), q["training.cross_entropy"]
    known = ("unfused", "compiled", "chunked") if keys.is_python(q.version) else ("unfused", "compiled")
    q.only("training.cross_entropy", known, why=f"its loss is one of {', '.join(known)} (components/loss.py)")
    # The parser compiles model and loss together unless components are named, and a loss alone can be compiled, too.
    components = [name for name, on in (("model", model), ("loss", loss == "compiled")) if on]
    put(document, keys.COMPILE, bool(components))
    put(document, keys.COMPONENTS, components or ["model", "loss"])
