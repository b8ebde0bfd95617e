"""`train.json`: what the generated training scripts do in code, because no configuration of the framework says it.

Keys that `transformers.TrainingArguments` has bear its names. The scripts are the same for every plan; this file is all that
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.export.quantities import Quantities
from planner.export.settings import Settings
from planner.export.spellings import Spelling, collected, peeked, taken, written
from planner.export.target import Variable

FILE: Final = "train.json"
IN_SCRIPT: Final = (Spelling("seq_length", "training.seq_length"),)
"""What has no counterpart among the arguments of transformers' Trainer."""
TRAINER: Final = (
    Spelling("torch_compile", "training.compile"),
    Spelling(
        "gradient_checkpointing", "recompute", {"none": False, "full": True},
        why="transformers recomputes whole layers (gradient_checkpointing_enable)",
    ),
)  # fmt: skip
"""What the arguments of transformers' Trainer say under the same names."""
ATTENTION: Final[Mapping[tuple[str, str | None], tuple[str, tuple[str, ...]]]] = {
    ("math", None): ("eager", ()),
    ("flash", "fa2"): ("flash_attention_2", ()),
    ("flash", "fa3"): ("flash_attention_3", ()),
    ("flash", "flex"): ("flex_attention", ()),
    ("flash", "sdpa"): ("sdpa", ("FLASH_ATTENTION", "EFFICIENT_ATTENTION")),
    ("flash", "cudnn"): ("sdpa", ("CUDNN_ATTENTION",)),
}  # fmt: skip
"""attn_implementation (transformers/modeling_utils.py), and the backends of scaled_dot_product_attention that the script admits
(torch/nn/attention, SDPBackend), by attention and its kernel."""
_IMPLEMENTATION, _BACKENDS = "attn_implementation", "sdpa_backends"
_USE_LIGER, _LIGER = "use_liger_kernel", "liger_kernel_config"
_LOSS_ALONE: Final = {"rope": False, "rms_norm": False, "swiglu": False, "geglu": False}
_LOSSES: Final[Mapping[str, Mapping[str, bool]]] = {
    "linear": {"cross_entropy": False, "fused_linear_cross_entropy": True},
    "fused": {"cross_entropy": True, "fused_linear_cross_entropy": False},
    "unfused": {"cross_entropy": False, "fused_linear_cross_entropy": False},
}
"""liger_kernel/transformers/monkey_patch.py, apply_liger_kernel_to_llama and its like."""
_FREEZE, _DOCUMENT = "freeze", "document_length"
ALLOCATOR: Final = "PYTORCH_ALLOC_CONF"


def said_attention(q: Quantities) -> dict[str, Any]:
    """The implementation of attention.

    Raises:
        FieldNotExpressibleError: transformers has no such kernel.
    """
    attention, kernel = q["training.attention"], q["training.attention_kernel"]
    found = ATTENTION.get((attention, None if attention == "math" else kernel))
    if found is None:
        why = "transformers calls no such kernel (attn_implementation)"
        raise q.refusal("training.attention_kernel", why=why, nearest={"training.attention_kernel": "fa2"})
    document: dict[str, Any] = {_IMPLEMENTATION: found[0]}
    if found[1]:
        document[_BACKENDS] = list(found[1])
    length = q["training.mean_document_length"]
    # Documents as long as the sequence are one to a sequence, which needs no positions of their own.
    if length is not None and length < q.peek("training.seq_length"):
        if not found[0].startswith("flash_attention"):
            why = "transformers tells packed documents apart only in flash_attention_2 and 3 (position_ids)"
            raise q.refusal(
                "training.mean_document_length", why=why, nearest={"training.attention_kernel": "fa2"}
            )  # fmt: skip
        document[_DOCUMENT] = length
    return document


def said_kernels(q: Quantities) -> dict[str, Any]:
    """Whose modules run, and which loss: `use_liger_kernel` and its choices."""
    why = "its script runs the modules of transformers"
    impl = q.only("training.model_impl", ["transformers", "liger"], why=why)
    loss = q.only("training.cross_entropy", list(_LOSSES), why="neither transformers nor Liger has such a loss")
    # Liger's losses also work around transformers' own modules, with all of its other kernels off.
    if impl == "transformers" and loss == "unfused":
        return {_USE_LIGER: False}
    return {_USE_LIGER: True, _LIGER: {**(_LOSS_ALONE if impl == "transformers" else {}), **_LOSSES[loss]}}


def said_in_script(q: Quantities) -> dict[str, Any]:
    """What only the script does: lengths, attention, and what is frozen; asserts the number of ranks."""
    q.implied("training.transformer_impl", "local", why="transformers has no modules of Transformer Engine")
    q.implied("training.cuda_graphs", False, why="the script captures no graphs")
    q["dp"]  # the number of ranks says it
    document = {"world_size": q.plan.world_size, **written(q, IN_SCRIPT), **said_attention(q)}
    frozen = q["training.frozen"]
    return {**document, _FREEZE: list(frozen)} if frozen else document


def said_train(q: Quantities) -> dict[str, Any]:
    """The whole `train.json` of a script that has no arguments of the Trainer."""
    return {**said_in_script(q), **written(q, TRAINER), **said_kernels(q)}


def variables(q: Quantities) -> tuple[Variable, ...]:
    """The environment that PyTorch's allocator needs."""
    if not q["training.expandable_segments"]:
        return ()
    why = "The plan counts on segments that grow, so that the allocator's cache does not break up."
    return (Variable(ALLOCATOR, "expandable_segments:True", why),)


def read_train(settings: Settings) -> tuple[dict[str, Any], int | None]:
    """The fields that `train.json`, or the Trainer's arguments of the same names, say; and the number of ranks."""
    found = taken(settings, (*IN_SCRIPT, *TRAINER))
    implementation = peeked(settings, _IMPLEMENTATION)
    backends = tuple(collected(settings, _BACKENDS, "training.attention_kernel") or ())
    for (attention, kernel), (name, admitted) in ATTENTION.items():
        if name == implementation and (backends == admitted or (name == "sdpa" and not backends)):
            found["training.attention"] = attention
            settings.take(_IMPLEMENTATION, "training.attention", "training.attention_kernel")
            if kernel is not None and backends == admitted:
                found["training.attention_kernel"] = kernel
            break
    found |= _read_kernels(settings)
    frozen, length = collected(settings, _FREEZE, "training.frozen"), peeked(settings, _DOCUMENT)
    if frozen:
        found["training.frozen"] = frozen
    if length is not None:
        found["training.mean_document_length"] = settings.value(_DOCUMENT, "training.mean_document_length")
    allocator = peeked(settings, f"${ALLOCATOR}") or peeked(settings, "$PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(allocator, str) and "expandable_segments:True" in allocator:
        for name in (f"${ALLOCATOR}", "$PYTORCH_CUDA_ALLOC_CONF"):
            settings.take(name, "training.expandable_segments")
        found["training.expandable_segments"] = True
    ranks = settings.value("world_size")
    return found, ranks if isinstance(ranks, int) else None


def _read_kernels(settings: Settings) -> dict[str, Any]:
    uses = peeked(settings, _USE_LIGER)
    if not isinstance(uses, bool):
        return {}
    settings.take(_USE_LIGER, "training.model_impl", "training.cross_entropy")
    if not uses:
        return {"training.model_impl": "transformers"}
    config = collected(settings, _LIGER, "training.model_impl", "training.cross_entropy") or {}
    alone = all(config.get(name) is False for name in ("rope", "rms_norm", "swiglu"))
    # Liger's patches take the fused linear loss unless they are told otherwise.
    asked = {name: config.get(name, name == "fused_linear_cross_entropy") for name in _LOSSES["linear"]}
    loss = next((loss for loss, choices in _LOSSES.items() if dict(choices) == asked), "linear")
    return {"training.model_impl": "transformers" if alone else "liger", "training.cross_entropy": loss}
