"""The matrix products of a layer, as (m, n, k) shapes after every kind of sharding. [F-1]

Forward computes (m, k) x (k, n), the data gradient (m, n) x (n, k) and the weight gradient (k, m) x (m, n), so the other two
passes follow from the forward shape. Nothing is rounded here: whether a degree divides a width is for the rules to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.layers.expert_loop import loops_over_experts
from cost_models.layers.recurrent_sizes import recurrent_parameters
from cost_models.specs.model import LayerKind
from cost_models.strategies.strategy import Floats


@dataclass(frozen=True, slots=True)
class Gemm:
    """One kernel of `batch` products with different operands, launched `repeats` times; arrays of shape (U,)."""

    name: str
    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    repeats: Floats
    module: str
    """The module's name in recomputation lists: "attention", "mlp", "moe", "shared_experts" or "router"."""


def layer_gemms(
    job: Job, kind: LayerKind, *, tokens: Floats, tp: Floats, ep: Floats, etp: Floats, sp: Floats | float = 1.0
) -> list[Gemm]:
    """Every product of one layer's forward, in the order in which they run; arrays of the shape of `tokens`. [F-1]

    Args:
        job: model and software.
        kind: kind of layer.
        tokens: tokens of one micro-batch on a context-parallel rank.
        tp: tensor-parallel ranks.
        ep: expert-parallel ranks.
        etp: tensor-parallel ranks inside an expert.
        sp: ranks over which sequence parallelism splits the tokens: tp, or 1 without it.
    """
    gemms = _attention_gemms(job, tokens=tokens, tp=tp, sp=sp) if kind.attends else []
    if kind.recurs:
        gemms += _recurrent_gemms(job, tokens=tokens, tp=tp)
    if not kind.has_mlp:
        return gemms
    if not kind.is_moe:
        return gemms + _mlp_gemms(job, job.model.intermediate_size, tokens=tokens, split=tp, module="mlp")
    return gemms + _moe_gemms(job, tokens=tokens, tp=tp, ep=ep, etp=etp)


def _gemm(
    name: str,
    m: Floats,
    n: Floats | float,
    k: Floats | float,
    *,
    module: str,
    batch: Floats | float = 1.0,
    repeats: Floats | float = 1.0,
) -> Gemm:
    m, n, k, batch, copies = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (m, n, k, batch, repeats)))
    return Gemm(name, m, n, k, batch, copies, module)


def _attention_gemms(job: Job, *, tokens: Floats, tp: Floats, sp: Floats | float) -> list[Gemm]:
    model, h = job.model, float(job.model.hidden_size)
    if model.mla is not None:
        return _mla_gemms(job, tokens=tokens, tp=tp, sp=sp)
    q = model.q_size / tp
    # Ranks beyond the number of key-value heads hold copies of a head instead of a part of one.
    kv = model.kv_size / np.minimum(tp, model.num_key_value_heads)
    gate = q * model.attention_gate
    if job.framework.separate_gate_projection and not (model.fused_qkv or job.framework.fuses_qkv):
        projections = [
            _gemm("q_proj", tokens, q, h, module="attention"),
            _gemm("kv_proj", tokens, kv, h, module="attention", repeats=2.0),
        ]
        if model.attention_gate:
            projections.append(_gemm("gate_proj", tokens, gate, h, module="attention"))
    else:
        projections = [_gemm("qkv_proj", tokens, q + 2 * kv + gate, h, module="attention")]
    return [*projections, _gemm("o_proj", tokens, h, q, module="attention")]


def _recurrent_gemms(job: Job, *, tokens: Floats, tp: Floats) -> list[Gemm]:
    """The projections of a recurrent mixer, whose heads tp splits; Mamba's are never split. [F-20]"""
    r, h = job.model.recurrent, float(job.model.hidden_size)
    assert r is not None
    inner = r.inner_size / tp
    inputs = [_gemm("in_proj", tokens, r.projected_size / tp, h, module="attention")]
    if r.kind == "mamba":
        narrow = float(r.dt_rank + 2 * r.state_size)
        inputs.append(_gemm("x_proj", tokens, narrow, inner, module="attention"))
        inputs.append(_gemm("dt_proj", tokens, inner, float(r.dt_rank), module="attention"))
    return [*inputs, _gemm("out_proj", tokens, h, inner, module="attention")]


def _mla_gemms(job: Job, *, tokens: Floats, tp: Floats, sp: Floats | float) -> list[Gemm]:
    """Latent attention's products; the down-projections are split as `Job.latent_down` says."""
    model, mla, h = job.model, job.model.mla, float(job.model.hidden_size)
    assert mla is not None
    heads = model.num_attention_heads / tp
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    rows, columns = tokens, np.ones_like(tp)
    if job.latent_down == "shards":
        rows = tokens / sp
    elif job.latent_down == "columns":
        columns = tp
    if mla.q_lora_rank is None:
        query = [_gemm("q_proj", tokens, heads * qk, h, module="attention")]
    else:
        query = [
            _gemm("q_down_proj", rows, mla.q_lora_rank / columns, h, module="attention"),
            _gemm("q_up_proj", tokens, heads * qk, float(mla.q_lora_rank), module="attention"),
        ]
    indexer: list[Gemm] = []
    if mla.indexer is not None:
        # Whole on every tensor-parallel rank, which gathers its rows first (dsa.py, parallel_mode="duplicated").
        widths = {"indexer_q": mla.indexer.num_heads * mla.indexer.head_dim, "indexer_k": mla.indexer.head_dim}
        widths["indexer_weights"] = mla.indexer.num_heads
        indexer = [
            _gemm(name, tokens, width, float(mla.q_lora_rank or h) if name == "indexer_q" else h, module="attention")
            for name, width in widths.items()
        ]
    return [
        *query,
        *indexer,
        _gemm("kv_down_proj", rows, (mla.kv_lora_rank + mla.qk_rope_head_dim) / columns, h, module="attention"),
        _gemm("kv_up_proj", tokens, heads * (mla.qk_nope_head_dim + mla.v_head_dim), float(mla.kv_lora_rank), module="attention"),
        _gemm("o_proj", tokens, h, heads * mla.v_head_dim, module="attention"),
    ]  # fmt: skip


def _mlp_gemms(
    job: Job,
    width: float,
    *,
    tokens: Floats,
    split: Floats,
    module: str,
    batch: Floats | float = 1.0,
    times: Floats | float = 1.0,
) -> list[Gemm]:
    """Products of one MLP, or of `batch` MLPs in one kernel; `times` such kernels run one after another."""
    h, f = float(job.model.hidden_size), width / split
    inputs = 2 if job.model.gated_mlp else 1
    wide, repeats = (f, inputs) if job.framework.separate_gate_projection else (inputs * f, 1)
    first = _gemm("fc1", tokens, wide, h, module=module, batch=batch, repeats=repeats * times)
    return [first, _gemm("fc2", tokens, h, f, module=module, batch=batch, repeats=times)]


def _moe_gemms(job: Job, *, tokens: Floats, tp: Floats, ep: Floats, etp: Floats) -> list[Gemm]:
    """Products of router, routed experts and shared experts; every expert receives the same number of tokens.

    The ep*etp ranks that share one copy of the experts bring tokens/tp each, so an expert multiplies
    ep * etp * tokens / tp * top_k / num_experts rows (`Job.routed_copies`, where a capacity fills or cuts them).
    """
    moe, h = job.model.moe, float(job.model.hidden_size)
    assert moe is not None
    # With few tokens, balanced routing would give an expert a fraction of a row; a kernel computes at least one.
    rows = np.maximum(ep * etp * tokens / tp * job.routed_copies / moe.num_experts, 1.0)
    gemms = [_gemm("router", tokens / tp, float(moe.num_experts), h, module="router")]
    held = moe.num_experts / ep
    looped = loops_over_experts(job, ep)
    gemms += _mlp_gemms(
        job,
        float(moe.expert_intermediate_size),
        tokens=rows,
        split=etp,
        module="moe",
        batch=np.where(looped, 1.0, held),
        times=np.where(looped, held, 1.0),
    )
    if moe.num_shared_experts:
        width = float(moe.num_shared_experts * moe.shared_expert_intermediate_size)
        gemms += _mlp_gemms(job, width, tokens=tokens, split=tp, module="shared_experts")
    return gemms


def parameter_tensors(job: Job, kind: LayerKind) -> float:
    """Number of parameter tensors of one layer outside its routed experts, each a collective where gathered alone. [C-14]"""
    return sum(tensors_by_part(job, kind).values())


def tensors_by_part(job: Job, kind: LayerKind) -> dict[str, float]:
    """The same by the part that may be frozen: norms, attention with recurrent mixers, and MLP with shared experts."""
    model = job.model
    norms = model.norms_of(kind) * (1.0 + model.norm_bias)
    separate = job.framework.separate_gate_projection and not (model.fused_qkv or job.framework.fuses_qkv)
    inputs = 3.0 if separate else 1.0
    attention = inputs * (1.0 + model.qkv_bias) + 1.0 + model.attention_out_bias if kind.attends else 0.0
    if kind.recurs:
        assert model.recurrent is not None
        attention += recurrent_parameters(model.recurrent, model.hidden_size).tensors
    dense = kind.has_mlp and (not kind.is_moe or (model.moe is not None and model.moe.num_shared_experts > 0))
    return {"norms": norms, "attention": attention, "mlp": dense * (2.0 + model.gated_mlp) * (1.0 + model.mlp_bias)}
