"""How far a row's step time reaches because of facts that the row leaves open.

A row is priced with the framework's defaults, and the run that it describes may have been set up otherwise. Each open fact that
changes the time widens the range towards its other values, each reaching as far as it would alone, in quadrature with the model's
own range and with each other. The reach is read from the terms on which a fact acts, because evaluating every row anew for each
value of each fact would cost several times what the row itself costs. A plan request has no open facts: its answer states every
default. [T-3]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cost_models.constants import GRAPH_HOST_RATIO
from cost_models.evaluate import Evaluated, Verdict
from cost_models.job import Job
from cost_models.layers.ends import bytes_per_logit, running_loss
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Bools, Floats
from planner.answer.open_facts import lean_losses
from planner.answer.open_rows import OpenRow

_FORWARD_SHARE = 1.0 / 3.0
"""Forward's share of a layer's products and kernels; backward has two products for each of forward's."""
_REPEATED = ("gemm", "attention", "elementwise", "tp_comm", "cp_comm", "ep_comm")
"""Terms of which full recomputation repeats the forward part."""
_CUDNN_UNSURE = ("2024-05", "2024-11")
"""Months in which Transformer Engine on Hopper may have run either kernel of attention (see Megatron's `attention_kernel`)."""
_SLOWER_ATTENTION = 1.75
"""Time of FlashAttention 2 over cuDNN's attention on an H100: 332 to 346 against 568 to 641 TFLOP/s forward, 250 to 313 against 473 to 546
backward (data/measured_h100/kernels.md)."""
_BY_ROW: Final = (7689.5 / 6768.0, 820.0 / 540.0)
"""Time of a step with torchao's rowwise recipe over one with the tensorwise recipe, without and with tensor parallelism: Llama 3 8B on 8 H100
(pytorch/ao, torchao/float8/README.md, training benchmarks), Llama 3 70B on 128 H100 (pytorch/pytorch issue 149990), both in tokens per second
of TorchTitan, compiled."""
_LEAST_CHUNKS = 2.0
"""Chunks of a stage with the least interleaving there is."""


@dataclass(frozen=True, slots=True)
class _Reach:
    """Seconds that one fact's other values take less and more than its default, shape (N,) each."""

    less_s: Floats
    more_s: Floats


def with_open_time(evaluated: Evaluated, rows: Sequence[OpenRow]) -> Evaluated:
    """The evaluation with step-time ranges that hold for the readings of the rows' open facts.

    Args:
        evaluated: N rows whose jobs have equal cost keys (`planner.request.job`).
        rows: the same N rows as they were given.
    """
    reaches = list(_reaches(evaluated, rows).values())
    if not reaches:
        return evaluated
    low = _wider(
        np.log(evaluated.step_time_s / evaluated.step_time_low_s), [-_log(evaluated, -r.less_s) for r in reaches]
    )
    high = _wider(
        np.log(evaluated.step_time_high_s / evaluated.step_time_s), [_log(evaluated, r.more_s) for r in reaches]
    )
    return replace(
        evaluated,
        step_time_low_s=evaluated.step_time_s * np.exp(-low),
        step_time_high_s=evaluated.step_time_s * np.exp(high),
    )


def _log(evaluated: Evaluated, seconds: Floats) -> Floats:
    return np.log1p(seconds / evaluated.step_time_s)


def _wider(half: Floats, reaches: Sequence[Floats]) -> Floats:
    square = half**2
    for reach in reaches:
        square = square + reach**2
    return np.asarray(np.sqrt(square))


def _reaches(evaluated: Evaluated, rows: Sequence[OpenRow]) -> dict[str, _Reach]:
    """What each open fact reaches, by its name; facts that no row leaves open are left out."""
    job, terms, s = rows[0].job.jobs[0], evaluated.terms_s, evaluated.strategies
    nothing = np.zeros(len(rows))
    lean, rich = _loss_ratios(job)
    halved = 1.0 - BYTES_PER[job.training.compute_dtype] / BYTES_PER[job.training.grad_reduce_dtype]
    shards = np.maximum(s.dp_cp, 1.0)
    repeated = _FORWARD_SHARE * sum((terms[name] for name in _REPEATED), nothing) * (terms["recompute"] == 0)
    each: Mapping[str, tuple[Bools, _Reach]] = {
        "cross_entropy": (
            _left_open(rows, "cross_entropy"),
            _Reach((1.0 - lean) * terms["loss"], (rich - 1.0) * terms["loss"]),
        ),
        # Gradients reduced in the training precision halve what is sent and added up.
        "grad_reduce_dtype": (
            _left_open(rows, "grad_reduce_dtype"),
            _Reach(max(halved, 0.0) * (terms["dp_comm"] + terms["grad_accumulation"]), nothing),
        ),
        "cuda_graphs": (
            _left_open(rows, "cuda_graphs") & _captures(job),
            _Reach((1.0 - GRAPH_HOST_RATIO.value) * terms["launch"], nothing),
        ),
        "attention_kernel": (
            _left_open(rows, "attention_kernel") & _may_be_cudnn(job),
            _Reach(
                (1.0 - 1.0 / _SLOWER_ATTENTION) * terms["attention"] * (job.training.attention_kernel != "cudnn"),
                (_SLOWER_ATTENTION - 1.0) * terms["attention"] * (job.training.attention_kernel == "cudnn"),
            ),
        ),
        # PyTorch's modules run torchao's recipes, of which only these two are stable.
        "fp8_recipe": (
            _left_open(rows, "fp8_recipe") & _may_be_by_row(job),
            _Reach(nothing, (np.where(s.tp > 1, _BY_ROW[1], _BY_ROW[0]) - 1.0) * evaluated.step_time_s),
        ),
        "vpp": (_left_open(rows, "vpp"), _Reach((1.0 - 1.0 / _LEAST_CHUNKS) * terms["pp_bubble"], nothing)),
        # Where states are sharded by default, that is what recipes do; where they are not, the update may be shorter by as many
        # times as there are shards.
        "zero": (_left_open(rows, "zero") & (s.zero == 0), _Reach((1.0 - 1.0 / shards) * terms["optimizer"], nothing)),
        # Nobody recomputes without need: where the row fits as priced, its default is believed.
        "recompute": (
            _left_open(rows, "recompute") & (evaluated.verdict != Verdict.FITS),
            _Reach(nothing, repeated),
        ),
    }
    return {
        name: _Reach(np.where(open_here, reach.less_s, 0.0), np.where(open_here, reach.more_s, 0.0))
        for name, (open_here, reach) in each.items()
        if open_here.any()
    }


def _left_open(rows: Sequence[OpenRow], field: str) -> Bools:
    """Where neither the row's training nor its strategy states a fact, and no recipe states it for them."""
    jobs = [row.job.jobs[0] for row in rows]
    return np.array(
        [
            field in row.assumed or (field in job.training.assumed and field not in _of_recipe(job))
            for row, job in zip(rows, jobs, strict=True)
        ],
        np.bool_,
    )


def _of_recipe(job: Job) -> Collection[str]:
    """Fields of the training that the recipe which it names is known by."""
    return () if job.recipe is None else {"cross_entropy", *job.recipe.fields(job.training.precision)}


def _captures(job: Job) -> bool:
    """Whether users of the framework capture layers in graphs: Megatron's recipes do, around Transformer Engine's layers."""
    return bool(job.framework.choices.recipes) and job.training.transformer_impl == "transformer-engine"


def _may_be_by_row(job: Job) -> bool:
    """Whether the row may have meant torchao's rowwise recipe where its framework's default is the tensorwise one."""
    training = job.training
    return job.framework.wraps_layers and training.precision == "fp8" and training.fp8_recipe == "tensorwise"


def _may_be_cudnn(job: Job) -> bool:
    first, until = _CUDNN_UNSURE
    on_engine = bool(job.framework.choices.recipes) and job.training.transformer_impl == "transformer-engine"
    return on_engine and job.cluster.gpu.generation == "hopper" and first <= job.training.software_date < until


def _loss_ratios(job: Job) -> tuple[float, float]:
    """Time of the leanest and of the richest cross entropy that the row may have meant, over that of its default."""
    now = bytes_per_logit(job, running_loss(job.training))
    others = [bytes_per_logit(job, name) for name in (*lean_losses(job.training), "unfused")]
    return min(1.0, *(value / now for value in others)), max(1.0, *(value / now for value in others))
