"""A plan's training in Megatron Core's settings: precision, types of the states, kernels, regularization."""

from __future__ import annotations

from cost_models.frameworks.releases import precedes
from planner.export.quantities import Quantities
from planner.export.targets.megatron.names import Values
from planner.export.targets.megatron.strategy_settings import owns_matrices, said_elsewhere

FP8_FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
"""The number format of each recipe, as NVIDIA's recipes pair them (Megatron-Bridge, training/mixed_precision.py)."""
TE_LOSS_UNTIL = "0.19"
"""megatron/training/arguments.py of 0.19 refuses --cross-entropy-fusion-impl te; 0.17 and 0.18 take it."""
FSDP_DTYPES_SINCE = "0.17"
"""--megatron-fsdp-main-grads-dtype and its like; before, Megatron-FSDP holds gradients as --accumulate-allreduce-grads-in-fp32 says."""
OPTIMIZERS = {"adam": "adam", "sgd": "sgd", "sgd-momentum": "sgd", "muon": "muon", "lion": "lion"}
"""--optimizer by ours; its SGD keeps momentum in either case."""
_NOT_ON = {"nemo": ("muon", "lion"), "megatron-bridge": ("lion",)}
"""Optimizers that a front end does not set up (NeMo: lightning/pytorch/optim/megatron.py; Bridge: training/optim.py)."""
_IMPLEMENTATIONS = {"transformer-engine": "transformer_engine", "local": "local"}


def training_settings(q: Quantities) -> Values:
    """The settings of the training, or a refusal."""
    q.implied("training.model_impl", "native", why="it trains its own modules")
    q.implied("training.compile", False, why="it does not compile its model")
    # A recipe only stands in for what was not said; whatever it chose is a field of its own.
    said_elsewhere(q, "training.recipe")
    return {**_precision(q), **_gradients(q), **_optimizer(q), **_kernels(q), **_graphs(q), **_dropout(q)}


def _precision(q: Quantities) -> Values:
    precision, recipe = q["training.precision"], q["training.fp8_recipe"]
    found: Values = {"fp16": True} if precision == "fp16" else {"bf16": precision != "fp32"}
    if precision == "fp8":
        q.only("training.fp8_recipe", FP8_FORMATS, why="Transformer Engine has no such recipe in Megatron Core")
        found |= {"fp8": FP8_FORMATS[recipe], "fp8_recipe": recipe}
    if precision == "nvfp4":
        found |= {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    compute = precision if precision in ("fp16", "fp32") else "bf16"
    allowed = [compute, "fp8"] if precision == "fp8" else [compute]
    param = q.only("training.param_dtype", allowed, why="it stores parameters in the type that it computes in")
    if param == "fp8":
        if q.peek("zero") == 0:
            raise q.refusal(
                "training.param_dtype", why="--fp8-param-gather needs the distributed optimizer", nearest={"zero": 1}
            )
        found["fp8_param_gather"] = True
    return found


def _gradients(q: Quantities) -> Values:
    precision, zero = q.peek("training.precision"), q.peek("zero")
    held, reduced = q["training.grad_dtype"], q["training.grad_reduce_dtype"]
    if not q.matters("training.grad_reduce_dtype"):
        reduced = held
    narrow = {"fp16": "fp16", "fp32": "fp32"}.get(precision, "bf16")
    q.only("training.grad_dtype", ["fp32", narrow], why="it holds gradients in fp32 or in the type of parameters")
    fsdp = zero >= 2 and not precedes(q.release, FSDP_DTYPES_SINCE)
    if reduced != held and not (fsdp and (held, reduced) == ("fp32", narrow)):
        raise q.refusal(
            "training.grad_reduce_dtype", why=f"it reduces gradients in the type that it holds them in, {held}",
            nearest={"training.grad_reduce_dtype": held},
        )  # fmt: skip
    found: Values = {}
    if precision != "fp32":
        found["accumulate_allreduce_grads_in_fp32"] = held == "fp32"
    if narrow == "bf16":
        found["grad_reduce_in_bf16"] = held == "bf16"
    if fsdp:
        found |= {"megatron_fsdp_main_grads_dtype": held, "megatron_fsdp_grad_comm_dtype": reduced}
    return found


def _optimizer(q: Quantities) -> Values:
    known = [name for name in OPTIMIZERS if name not in _NOT_ON.get(q.target, ())]
    optimizer = q.only("training.optimizer", known, why=f"{q.target} has no such optimizer")
    found: Values = {"optimizer": f"dist_{optimizer}" if owns_matrices(q) else OPTIMIZERS[optimizer]}
    full = "none" if q.peek("training.precision") == "fp32" else "fp32"
    main, state = q["training.main_param_dtype"], q["training.optimizer_state_dtype"]
    if main == full and state == "fp32":
        return found
    # megatron/core/optimizer/optimizer_config.py: the precision-aware optimizer is a distributed one, and Adam.
    q.only("training.main_param_dtype", [full, "fp16"], why="the precision-aware optimizer has fp32 and fp16 alone")
    narrowed = "training.main_param_dtype" if main != full else "training.optimizer_state_dtype"
    for why, refused, instead in (
        ("the precision-aware optimizer needs the distributed optimizer", q.peek("zero") == 0, {"zero": 1}),
        ("Megatron-FSDP keeps its own main parameters in fp32", q.peek("zero") >= 2 and main != full, {"zero": 1}),
        ("the precision-aware optimizer is Adam", found["optimizer"] != "adam", {"training.optimizer": "adam"}),
        ("there are no main parameters in fp32 training", full == "none", {narrowed: "fp32"}),
    ):
        if refused:
            raise q.refusal(narrowed, why=why, nearest=instead)
    return found | {
        "use_precision_aware_optimizer": True, "main_params_dtype": main, "exp_avg_dtype": state, "exp_avg_sq_dtype": state,
    }  # fmt: skip


def _kernels(q: Quantities) -> Values:
    impl, attention, kernel = q["training.transformer_impl"], q["training.attention"], q["training.attention_kernel"]
    found: Values = {"transformer_impl": _IMPLEMENTATIONS[impl]}
    if impl == "local":
        # megatron/core/transformer/dot_product_attention.py is the only attention of local layers.
        q.implied("training.attention", "math", why="its own layers compute attention unfused, without a flash kernel")
    elif attention == "math":
        found["attention_backend"] = "unfused"
    else:
        # Which FlashAttention Transformer Engine runs follows from the packages that are installed; FlashAttention 3 takes
        # part only where its own package is, and no option asks for it.
        q.only("training.attention_kernel", ["fa2", "cudnn"], why="Transformer Engine cannot be asked for that kernel")
        found["attention_backend"] = "fused" if kernel == "cudnn" else "flash"
    loss = q.only("training.cross_entropy", ["unfused", "fused", "te"], why="Megatron Core has no such loss")
    if loss == "te" and not precedes(q.release, TE_LOSS_UNTIL):
        why = "core 0.19 refuses Transformer Engine's loss as unstable"
        raise q.refusal("training.cross_entropy", why=why, nearest={"training.cross_entropy": "fused"})
    if loss != "unfused":
        found |= {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te" if loss == "te" else "native"}
    return found


def _graphs(q: Quantities) -> Values:
    said_elsewhere(q, "training.expandable_segments")
    if not q["training.cuda_graphs"]:
        return {}
    return {"enable_cuda_graph": True} if precedes(q.release, "0.15") else {"cuda_graph_impl": "local"}


def _dropout(q: Quantities) -> Values:
    dropout = float(q["training.dropout"])
    return {"attention_dropout": dropout, "hidden_dropout": dropout}
