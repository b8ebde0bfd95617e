"""What a framework does where a strategy says nothing and the answer depends on its other fields or on the cluster.

Defaults that depend on nothing else are plain facts (`StrategyDefaults`). Each default is reported in `assumed` when it is
applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cost_models.frameworks import FrameworkFacts
from cost_models.job import Job, PooledJob
from cost_models.memory.expert_buffers import NVLINK_PEERS
from cost_models.strategies.fields import MOE_MODULE, CpComm, FlexBackend, MoeDispatcher, Recompute
from cost_models.strategies.strategy import Codes, Floats
from planner.rules.rule import divisors


def default_flex_backend(job: Job) -> FlexBackend:
    """The kernels of the flex dispatcher: DeepEP, the frameworks' default, except in large NVLink domains."""
    # DeepEP knows NVLink nodes of 8. Megatron's own documentation sends larger domains (MNNVL) to HybridEP:
    # Megatron Core's transformer/transformer_config.py, moe_flex_dispatcher_backend.
    return FlexBackend.HYBRIDEP if job.cluster.nvlink_domain_gpus > NVLINK_PEERS else FlexBackend.DEEPEP


def default_a2a_sizes(job: Job, tp: Floats, cp: Floats) -> Floats:
    """How many neighbours trade heads under cp_comm a2a+p2p where nothing is said, shape (N,); 1 where cp is 1.

    The largest part of cp that divides the heads of a tensor-parallel rank and lies inside an NVLink domain with the tp ranks, as
    Transformer Engine's hierarchy is meant; without such a part the smallest, which the rules then judge. All of cp is no part.
    """
    model, domain = job.model, job.cluster.nvlink_domain_gpus
    heads = model.num_attention_heads if model.mla is not None else model.num_key_value_heads
    found = np.ones(len(cp))
    for each_tp, each_cp in {*zip(tp.tolist(), cp.tolist(), strict=True)}:
        parts = [part for part in divisors(int(each_cp)) if part > 1]
        # A level of all ranks would be plain a2a, which has a name of its own.
        inner = [part for part in parts if part < each_cp and heads % (each_tp * part) == 0]
        near = [part for part in inner if each_tp * part <= domain]
        size = max(near) if near else min(inner) if inner else parts[0] if parts else 1
        found[(tp == each_tp) & (cp == each_cp)] = size
    return found


def inner_sizes(job: Job, *, cp_comm: Codes, tp: Floats, cp: Floats, given: Floats | None) -> Floats:
    """`cp_a2a_size` of strategies with these transports, shape (N,): what is given, or the default, and 1 where nothing trades heads twice."""
    both = (cp_comm == CpComm.A2A_P2P) & (cp > 1)
    return np.where(both, default_a2a_sizes(job, tp, cp) if given is None else given, 1.0)


def default_zero(framework: FrameworkFacts, pp: int) -> int:
    """The ZeRO stage where none is given."""
    # TorchTitan keeps parameters gathered between the micro-batches of a pipeline, since each would gather them again
    # otherwise; that is stage 2 (TorchTitan's distributed/fsdp.py, get_fsdp_reshard_after_forward_policy).
    return 2 if pp > 1 and framework.keeps_parameters_in_pipelines else framework.default_zero


def assumed_gather_dtype(job: Job, zero: int) -> dict[str, str]:
    """How ZeRO gathers weights that matrix products read in fp8, for `assumed`, since no field of the contract states it."""
    training, framework = job.training, job.framework
    if training.precision != "fp8" or zero < 2:
        return {}
    if training.fp8_recipe in framework.fp8_gather_recipes:
        return {"gather_dtype": f"fp8: {framework.fp8_gather_source}"}
    if zero == 3 and framework.casts_weights_after_gather and training.param_dtype != "fp8":
        said = (
            f"{training.param_dtype}, cast layer by layer: without --fp8-param-gather, which is off by default, "
            "Transformer Engine can cache fp8 copies of all layers"
        )
        return {"gather_dtype": said}
    return {}


def reduces_each(framework: FrameworkFacts, *, zero: Any, pp: Any) -> Any:
    """Whether gradients are reduced for each micro-batch where `grad_sync` is not given; takes scalars or arrays."""
    # From stage 2 on a rank has room only for its own shard of the gradients. In a pipeline, PyTorch nevertheless keeps them
    # whole and reduces them once, behind the last backward (torch/distributed/pipelining/stage.py).
    return (zero >= 2) & ~(np.asarray(pp > 1) & framework.keeps_parameters_in_pipelines)


def overlaps_tp(job: Job, *, tp: Any, sequence_parallel: Any) -> Any:
    """Where a search overlaps tensor-parallel collectives; takes scalars or arrays.

    The overlap costs no memory, and every formula that it enters takes a share below 1 of the same seconds [C-10]. A shorter
    layer hides less of what runs beside it, but by no more than it became shorter. So wherever the overlap is possible it is
    at least as fast, and the alternative need not be searched.
    """
    needs, training, cluster = job.framework.strategy.tp_overlap_needs, job.training, job.cluster
    if needs is None or training.software_date < job.framework.overlaps_since:
        return np.zeros(np.shape(tp), np.bool_)
    local = "transformer-engine" in needs and training.transformer_impl == "local"
    eager = "compile" in needs and not training.compile
    # Both Transformer Engine's userbuffers and PyTorch's symmetric memory read the peers' memory over NVLink.
    peers = 1 if local or eager or cluster.link_kind == "pcie" else min(cluster.nvlink_domain_gpus, cluster.num_gpus)
    within = np.asarray((tp > 1) & (tp <= peers))
    return within & sequence_parallel if "sequence-parallel" in needs else within


def possible_overlaps(framework: FrameworkFacts, row: Mapping[str, Any]) -> dict[str, Any]:
    """Where each kind of overlap can exist at all, by flag; scalars or arrays, as `row` holds.

    An overlap needs a group of more than one rank and something to run beside.
    """
    # What a framework cannot overlap although there is something to overlap is in its facts. Megatron's 1F1B schedule sends
    # synchronously and overlaps only with virtual stages; parameters are gathered beside forward only where they are sharded;
    # DeepSpeed gathers inside step() below stage 3, and its pipeline engine overlaps nothing.
    replicas, zero = row["dp"] * row["cp"] > 1, row["zero"]
    piped = (row["pp"] > 1) & (not framework.overlaps_in_pipelines)
    return {
        "grad_reduce": replicas & (zero >= framework.reduces_in_backward_from) & (piped ^ True),
        "param_gather": replicas & (zero >= framework.gathers_in_forward_from),
        "tp_comm": row["tp"] > 1,
        "p2p": (row["pp"] > 1) & ((row["vpp"] > 1) | framework.overlaps_p2p_without_vpp),
        "moe_all_to_all": row["ep"] > 1,
    }


def expert_overlap_runs(row: Mapping[str, Any], *, dispatcher: Any, several: Any) -> Any:
    """Where `overlap.moe_all_to_all` is off or has what Megatron needs for it; takes scalars or arrays.

    A search leaves the other options out, rather than counting them as rejected; `planner.rules.experts` judges given ones.
    `several` says where there is another micro-batch whose computation could hide anything.
    """
    unsplit = (row["pp"] > 1) & (row["vpp"] == 1)
    repeats = (row["recompute"] == Recompute.FULL) | ((row["recompute_modules"] & MOE_MODULE) != 0)
    refused = unsplit | (dispatcher == MoeDispatcher.ALLGATHER) | repeats | ~several
    return ~(row["overlap_moe_all_to_all"] & refused)


def assumed_by_pool(job: PooledJob) -> dict[str, Any]:
    """The defaults of the training, one that follows from the GPU under the pools' names where it differs."""
    found: dict[str, Any] = {}
    for name, value in job.jobs[0].training.assumed.items():
        values = [each.training.assumed.get(name, value) for each in job.jobs]
        same = all(other == value for other in values)
        found[name] = value if same else dict(zip(job.names, values, strict=True))
    return found
