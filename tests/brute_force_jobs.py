"""Small jobs for the brute force, drawn from a seed: open splits, pools with virtual stages, and listed knobs of every framework.

Memory is drawn between what the leanest and the most generous even split need, so that about half of all splits fit.
"""

from __future__ import annotations

from random import Random
from typing import Any

from brute_force import Document, num_strategies
from meshwright import evaluate

KEEPS_ON_THE_GPU: Document = {"optimizer_fraction": 0, "parameters": False, "activation_layers": 0}
STATED: Document = {"cross_entropy": "unfused", "grad_dtype": "fp32"}
"""What a row would leave open about memory; stated, since evaluate prices each possibility of an open fact."""


def made_up_gpu(name: str, memory_gib: float, *, speed: float = 1.0) -> Document:
    """A GPU of round figures, which borrows no measured curves."""
    return {
        "name": name, "memory_gib": memory_gib, "peak_tflops": {"bf16": 312 * speed}, "memory_bandwidth_gb_per_s": 2000 * speed,
        "nvlink_gb_per_s": 300,
    }  # fmt: skip


def drawn_model(draw: Random, *, layers: int, experts: bool, kinds: int = 2) -> Document:
    hidden = draw.choice([2048, 4096])
    model: Document = {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 128, "intermediate_size": 4 * hidden,
        "vocab_size": draw.choice([32000, 128256, 256000]), "tie_word_embeddings": draw.random() < 0.2,
    }  # fmt: skip
    if experts:
        moe: Document = {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 2 * hidden}
        kind = draw.choice(["first", "every", "alternating"]) if kinds > 1 else "every"
        if kind == "first":
            moe["first_dense_layers"] = draw.randint(1, max(layers - 1, 1))
        if kind == "alternating":
            moe["moe_layer_freq"] = 2
        model["moe"] = moe
    return model


def needs_gib(request: Document, strategy: Document) -> float | None:
    """GiB that the fullest stage of a strategy takes, at the high end of its range; None where it is not legal."""
    job = {name: request[name] for name in ("model", "cluster", "training")}
    found = next(iter(evaluate([{**job, "strategy": strategy}])))
    return None if found["memory"] is None else float(found["memory"]["peak_device_range_bytes"][1]) / 2**30


def near_even(layers: int, stages: int) -> list[int]:
    base, extra = divmod(layers, stages)
    return [base + (stage < extra) for stage in range(stages)]


class Unfit(Exception):  # noqa: N818 - no error: the next draw is tried
    """What was drawn is no legal job."""


def drawn_memory_gib(draw: Random, request: Document, strategy: Document) -> float:
    """Between what full recomputation and none need on an even split, a little beyond either."""
    lean, generous = (needs_gib(request, {**strategy, "recompute": mode}) for mode in ("full", "none"))
    if lean is None or generous is None:
        raise Unfit
    return round(draw.uniform(0.95 * lean, 1.2 * max(generous, lean)), 1)


# --- Open splits ------------------------------------------------------------------------------------------------------------


def open_split_request(seed: int, *, most_rows: int) -> tuple[Document, bool]:
    """A request for open splits, and whether stages may recompute counts of their own."""
    for attempt in range(1000):
        draw = Random(1000 * seed + attempt)
        request, per_stage, even = _open_split_draw(draw)
        if num_strategies(request, per_stage=per_stage) > most_rows:
            continue
        try:
            memory_gib = drawn_memory_gib(draw, request, even)
        except Unfit:
            continue
        request["cluster"]["gpu"] = made_up_gpu("X", memory_gib)
        return request, per_stage
    raise AssertionError(f"no instance of seed {seed} has at most {most_rows} rows")


def _open_split_draw(draw: Random) -> tuple[Document, bool, Document]:
    """A request that leaves memory open, whether stages may recompute counts of their own, and an even split of it."""
    titan = draw.random() < 0.15
    pp = draw.choice([2, 2, 3, 4])
    vpp = draw.choice([[1], [2], [1, 2]]) if pp < 4 else [1]
    layers = draw.randint(max(pp, 3), {1: 8, 2: 6}[max(vpp)] if pp < 4 else 7)
    experts = draw.random() < 0.4
    dp, tp = draw.choice([1, 2, 2, 4]), draw.choice([1, 1, 2])
    micro = draw.choice([1, 2])
    model = drawn_model(draw, layers=layers, experts=experts)
    fixed: Document = {
        "tp": tp, "pp": pp, "cp": 1, "dp": dp, "ep": draw.choice([1, 2]) if experts and dp > 1 else 1, "etp": 1,
        "micro_batch_size": micro, "sequence_parallel": tp > 1,
        "overlap": {"tp_comm": False, "moe_all_to_all": False}, "offload": KEEPS_ON_THE_GPU,
    }  # fmt: skip
    if experts:
        fixed["moe_dispatcher"] = "alltoall"
    modes = draw.choice([["none", "selective", "full"]] * 3 + [["full"], ["none"], ["none", "full"]])
    zeros = draw.choice([[2], [3], [2, 3]] if titan else [[0], [1], [0, 1]])
    allowed: dict[str, list[Any]] = {"vpp": vpp, "zero": zeros, "recompute": modes}
    if titan:
        allowed["schedule"] = ["1f1b", "interleaved"]
    batch = dp * micro * pp * draw.choice([1, 2, 4, 8])
    training: Document = {
        "framework": "torchtitan" if titan else "megatron", "precision": "bf16", "seq_length": draw.choice([2048, 4096, 8192]),
        "global_batch_size": batch,
    } | (STATED if not titan else {})  # fmt: skip
    request: Document = {
        "model": model,
        "cluster": {"gpu": made_up_gpu("X", 1000), "num_nodes": 1, "gpus_per_node": tp * pp * dp},
        "training": training,
        "constraints": {"fixed": fixed, "allowed": allowed},
        "top_k": draw.choice([1, 5, 20]),
        "include": ["open_splits"],
    }
    even = {**fixed, "vpp": 1, "zero": zeros[0], "layers_per_stage": near_even(layers, pp)}
    return request, "full" in modes and not titan and draw.random() < 0.6, even


# --- Pools ------------------------------------------------------------------------------------------------------------------


def pools_request(seed: int, *, most_rows: int) -> Document:
    """A request on two kinds of node, with virtual stages."""
    for attempt in range(1000):
        draw = Random(1000 * seed + attempt)
        try:
            request = _pools_draw(draw)
        except Unfit:
            continue
        if num_strategies(request) <= most_rows:
            return request
    raise AssertionError(f"no instance of seed {seed} has at most {most_rows} rows")


def _pools_draw(draw: Random) -> Document:
    layers = draw.randint(3, 6)
    width = draw.choice([2, 2, 4])
    tp = draw.choice([1, 2])
    micro = draw.choice([1, 2])
    pps, vpps = draw.choice([[2], [3], [2, 3]]), draw.choice([[2], [1, 2]])
    zeros, modes = draw.choice([[0], [1], [0, 1]]), draw.choice([["none"], ["full"], ["selective"], ["none", "full"]])
    dp = width // tp
    nodes = draw.choice([(1, 1), (1, 2), (2, 1)])
    fixed: Document = {
        "tp": tp, "cp": 1, "dp": dp, "ep": 1, "etp": 1, "micro_batch_size": micro, "sequence_parallel": tp > 1,
        "overlap": {"tp_comm": False, "moe_all_to_all": False}, "offload": KEEPS_ON_THE_GPU,
    }  # fmt: skip
    # With virtual stages on pools `plan` refuses layers of several kinds (not-modelled), so there is nothing to judge.
    model = drawn_model(draw, layers=layers, experts=draw.random() < 0.3, kinds=1)
    if "moe" in model:
        fixed["moe_dispatcher"] = "alltoall"
    request: Document = {
        "model": model,
        "cluster": {"gpu": made_up_gpu("X", 1000), "num_nodes": 3, "gpus_per_node": width},
        "training": {
            "framework": "megatron", "precision": "bf16", "seq_length": draw.choice([2048, 4096]),
            "global_batch_size": dp * micro * draw.choice([6, 12, 24]), **STATED,
        },
        "constraints": {"fixed": fixed, "allowed": {"pp": pps, "vpp": vpps, "zero": zeros, "recompute": modes}},
        "top_k": draw.choice([1, 5]),
    }  # fmt: skip
    strategy = {**fixed, "pp": max(pps), "vpp": 1, "zero": zeros[0], "layers_per_stage": near_even(layers, max(pps))}
    request["cluster"] = {
        "pools": [
            {
                "name": name, "gpu": made_up_gpu(name.upper(), drawn_memory_gib(draw, request, strategy), speed=speed),
                "num_nodes": count, "gpus_per_node": width,
            }
            for name, count, speed in zip("ab", nodes, (1.0, draw.choice([1.0, 1.5, 3.0])), strict=True)
        ]
    }  # fmt: skip
    if draw.random() < 0.5:
        request["include"] = ["open_splits"]
    return request
