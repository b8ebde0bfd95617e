"""The plans that a whole node of two, four or eight GPUs is measured with, as evaluate rows.

Rows of one group train the same model on the same batch, so that the fastest of them is the plan a planner should have put first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

GROUPS = ("dense", "long", "mixture", "hugging face")
SIZES = (2, 4, 8)

_8B: Mapping[str, Any] = {"preset": "llama-3.1-8b"}
_3B: Mapping[str, Any] = {"preset": "llama-3.2-3b", "tie_word_embeddings": False, "name": "llama-3.2-3b, untied"}
_MIXTURE: Mapping[str, Any] = {
    "name": "mixture-3b-a0.7b", "num_layers": 12, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 32000, "tie_word_embeddings": False,
    "moe": {"num_experts": 32, "top_k": 4, "expert_intermediate_size": 1024},
}  # fmt: skip
_NATIVE: Mapping[str, Any] = {
    "framework": "torchtitan", "framework_version": "0.2", "precision": "bf16", "cross_entropy": "unfused", "compile": False, "dropout": 0,
    "param_dtype": "fp32", "grad_dtype": "fp32",
}  # fmt: skip
_FSDP: Mapping[str, Any] = {
    "framework": "fsdp", "precision": "bf16", "model_impl": "transformers", "compile": False, "dropout": 0, "param_dtype": "fp32",
}  # fmt: skip
_DEEPSPEED: Mapping[str, Any] = {
    "framework": "deepspeed", "precision": "bf16", "model_impl": "transformers", "attention_kernel": "sdpa", "compile": False, "dropout": 0,
}  # fmt: skip
_DEGREES: Mapping[str, Any] = {
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "cp": 1,
    "ep": 1,
    "vpp": 1,
    "zero": 0,
    "micro_batch_size": 1,
    "recompute": "none",
}
_FULL = {"recompute": "full"}
Strategies = Iterator[tuple[str, str | None, Mapping[str, Any], Mapping[str, Any]]]
"""Name, target of its export (None: PyTorch's own parallelism), training, strategy."""


def rows(gpus: int) -> list[dict[str, Any]]:
    """The rows of a node with so many GPUs, with `group`, and `launch` and `target` where launch files run them.

    Those that tell most come first in each group, and the groups take turns, so that a run that is cut short has measured all of them.
    """
    columns = [list(_group(group, gpus)) for group in GROUPS]
    return [column[place] for place in range(max(map(len, columns))) for column in columns if place < len(column)]


def _group(group: str, gpus: int) -> Iterator[dict[str, Any]]:
    model, tokens, batch = {
        "dense": (_8B, 4096, 4 * gpus),
        "long": (_8B, 32768 if gpus == 2 else 16384, gpus),
        "mixture": (_MIXTURE, 4096, 8 * gpus),
        "hugging face": (_3B, 4096, 4 * gpus),
    }[group]
    asked = {"seq_length": tokens, "global_batch_size": batch, "software_date": "2026-11"}
    for name, target, training, strategy in _STRATEGIES[group](gpus):
        yield {
            "id": f"{group.replace(' ', '-')}-{name}-x{gpus}",
            "group": group,
            "model": dict(model),
            "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": gpus, "intra_node": "nvswitch"},
            "training": {**training, **asked},
            "strategy": {**_DEGREES, **strategy},
            **({"launch": f"{name}-x{gpus}", "target": target} if target else {}),
        }


def _tensor(tp: int, **others: Any) -> dict[str, Any]:
    return {"tp": tp, "sequence_parallel": True, **others}


def _dense(gpus: int) -> Strategies:
    """Every way to spread one dense model, alone and two at a time."""
    yield "zero3", None, _NATIVE, {"dp": gpus, "zero": 3}
    yield "tp", None, _NATIVE, _tensor(gpus, micro_batch_size=2)
    yield "interleaved", None, _NATIVE, {"pp": gpus, "vpp": 2}
    yield "pp", None, _NATIVE, {"pp": gpus}
    if gpus > 2:
        half = gpus // 2
        yield "hsdp", None, _NATIVE, {"dp": gpus, "zero": 3, "zero_shard_size": half}
        yield "tp2-zero3", None, _NATIVE, _tensor(2, dp=half, zero=3)
        yield "tp2-pp", None, _NATIVE, _tensor(2, pp=half)
        yield "pp2-interleaved-zero2", None, _NATIVE, {"pp": 2, "vpp": 2, "dp": half, "zero": 2}
        yield "hsdp-zero2", None, _NATIVE, {"dp": gpus, "zero": 2, "zero_shard_size": half}
    if gpus > 4:
        yield "tp2-pp2-zero3", None, _NATIVE, _tensor(2, pp=2, dp=gpus // 4, zero=3)
        yield "tp4-zero3", None, _NATIVE, _tensor(4, dp=gpus // 4, zero=3, micro_batch_size=2)
    yield "zero2", None, _NATIVE, {"dp": gpus, "zero": 2}
    yield "zero3-compiled", None, {**_NATIVE, "compile": True}, {"dp": gpus, "zero": 3}


def _long(gpus: int) -> Strategies:
    """Sequences long enough that one is shared, with the layers recomputed."""
    yield "cp", None, _NATIVE, {"cp": gpus, "zero": 3, **_FULL}
    yield "zero3", None, _NATIVE, {"dp": gpus, "zero": 3, **_FULL}
    yield "tp", None, _NATIVE, _tensor(gpus, **_FULL)
    if gpus > 2:
        yield "cp2-zero3", None, _NATIVE, {"cp": 2, "dp": gpus // 2, "zero": 3, **_FULL}
        yield "tp2-cp", None, _NATIVE, _tensor(2, cp=gpus // 2, zero=3, **_FULL)


def _mixture(gpus: int) -> Strategies:
    """Experts at home, spread over all ranks, and over some of them."""
    yield "ep", None, _NATIVE, {"dp": gpus, "zero": 3, "ep": gpus, "micro_batch_size": 4}
    yield "zero3", None, _NATIVE, {"dp": gpus, "zero": 3, "micro_batch_size": 4}
    yield "ep-small", None, _NATIVE, {"dp": gpus, "zero": 3, "ep": gpus, "micro_batch_size": 2}
    if gpus > 2:
        yield "ep-half", None, _NATIVE, {"dp": gpus, "zero": 3, "ep": gpus // 2, "micro_batch_size": 4}
        yield "tp2-ep", None, _NATIVE, _tensor(2, dp=gpus // 2, zero=3, ep=gpus, micro_batch_size=4)
        yield "cp2-ep", None, _NATIVE, {"cp": 2, "dp": gpus // 2, "zero": 3, "ep": gpus, "micro_batch_size": 4}
    yield "ep-zero2", None, _NATIVE, {"dp": gpus, "zero": 2, "ep": gpus, "micro_batch_size": 4}


def _hugging_face(gpus: int) -> Strategies:
    """The Trainer of transformers under FSDP2 and DeepSpeed, and DeepSpeed's own loop."""
    strategy = {"dp": gpus, "micro_batch_size": 2}
    yield "fsdp-zero3", "transformers", _FSDP, {**strategy, "zero": 3}
    yield "deepspeed-zero3", "transformers", _DEEPSPEED, {**strategy, "zero": 3}
    yield "deepspeed-zero2", "transformers", _DEEPSPEED, {**strategy, "zero": 2}
    yield "fsdp-zero2", "transformers", _FSDP, {**strategy, "zero": 2}
    if gpus > 2:
        yield "fsdp-zero3-full", "transformers", _FSDP, {**strategy, "zero": 3, "micro_batch_size": 4, **_FULL}
        yield "deepspeed-own-zero3", "deepspeed", _DEEPSPEED, {**strategy, "zero": 3}


_STRATEGIES = {"dense": _dense, "long": _long, "mixture": _mixture, "hugging face": _hugging_face}
