"""Rules on experts: which ranks expert parallelism takes, what must divide, and which dispatcher exists.

Most frameworks borrow the expert-parallel ranks from the ranks of a pipeline stage (tp x cp x dp). nanotron multiplies the
world by ep instead, which makes ep a factor of what the contract calls dp. What must divide what follows from that.
"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.memory.expert_buffers import NVLINK_PEERS
from cost_models.strategies.fields import MOE_MODULE, FlexBackend, MoeDispatcher, Recompute, Schedule
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.fsdp_experts import FSDP_EXPERT_RULES
from planner.rules.rule import Rule, indivisible, one_of, only

_CORE = "megatron/core/transformer/transformer_config.py"
_TITAN_DIMS = "torchtitan/distributed/parallel_dims.py"


def _is_moe(job: Job) -> bool:
    return job.model.moe is not None


def _is_dense(job: Job) -> bool:
    return job.model.moe is None


def _experts_used(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.ep > 1)


def _num_experts(job: Job, s: Strategies) -> Bools:
    assert job.model.moe is not None
    return indivisible(job.model.moe.num_experts, s.ep)


def _expert_width(job: Job, s: Strategies) -> Bools:
    assert job.model.moe is not None
    return indivisible(job.model.moe.expert_intermediate_size, s.etp)


def _ranks(_job: Job, s: Strategies) -> Bools:
    return indivisible(s.tp * s.cp * s.dp, s.ep * s.etp)


def _shard_ranks(_job: Job, s: Strategies) -> Bools:
    # FSDP takes the expert ranks from one sharded copy of the model; replicas of whole parameters lie outside of it.
    sharded = np.where(s.zero >= 1, s.zero_shard_size, s.cp)
    return np.asarray((s.ep > 1) & indivisible(sharded * s.tp, s.ep * s.etp))


def _borrows_whole_axes(_job: Job, s: Strategies) -> Bools:
    # Before 0.3 the expert mesh borrows all of cp, and all of tp too unless the experts keep it for themselves (etp = tp);
    # only of dp_shard can it borrow a part (ParallelDims._validate).
    axes = np.where(s.etp == 1, s.cp * s.tp, s.cp)
    return np.asarray((s.ep > 1) & indivisible(s.ep, axes))


def _multiplied_ranks(_job: Job, s: Strategies) -> Bools:
    return indivisible(s.dp, s.ep)


def _etp_neither(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.etp > 1) & (s.etp != s.tp))


def _etp(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.etp > 1))


def _with_tensor(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.tp > 1))


def _folded_with_more(_job: Job, s: Strategies) -> Bools:
    offloaded = (s.offload_optimizer_fraction > 0) | s.offload_parameters
    return np.asarray((s.ep > 1) & (s.tp > 1) & ((s.pp > 1) | (s.cp > 1) | offloaded))


def _folded_zero3(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.tp > 1) & (s.zero == 3))


def _zero3(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.zero == 3))


def _zero3_context(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.zero == 3) & (s.cp > 1))


def _with_pipeline(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep > 1) & (s.pp > 1))


def _needs_sequence_parallel(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.tp > 1) & ~s.sequence_parallel)


def _exchanges(job: Job) -> bool:
    return _is_moe(job) and bool(job.framework.choices.dispatchers)


def _flex(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep * s.etp > 1) & (s.moe_dispatcher == MoeDispatcher.FLEX))


def _dispatcher(job: Job, s: Strategies) -> Bools:
    return np.asarray((s.ep * s.etp > 1) & ~one_of(s.moe_dispatcher, job.framework.choices.dispatchers))


def _hybrid(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_flex(_job, s) & (s.flex_backend == FlexBackend.HYBRIDEP))


def _flex_ranks(job: Job, s: Strategies) -> Bools:
    # DeepEP holds its NVLink peers in arrays of 8 and marks them in one byte (NUM_MAX_NVL_PEERS), so a group is part of one
    # node of 8 or whole nodes of 8. Smaller and larger NVLink domains do not map onto that.
    deepep, ranks, domain = s.flex_backend == FlexBackend.DEEPEP, s.ep * s.etp, job.cluster.nvlink_domain_gpus
    odd = (ranks > NVLINK_PEERS) & indivisible(ranks, NVLINK_PEERS)
    other_nodes = (domain > NVLINK_PEERS) | ((domain < NVLINK_PEERS) & (ranks > domain))
    return np.asarray(_flex(job, s) & deepep & (odd | other_nodes))


def _before_ampere(job: Job) -> bool:
    return job.model.moe is not None and job.cluster.gpu.generation == "volta"


def _overlapped(_job: Job, s: Strategies) -> Bools:
    return s.overlap_moe_all_to_all


def _overlap_conditions(_job: Job, s: Strategies) -> Bools:
    # The exchange of one micro-batch runs beside the backward pass of another. A pipeline has such a pair at hand only where
    # it interleaves (vpp > 1), and to recompute mixture layers would run the exchange again inside that backward pass.
    gathers = s.moe_dispatcher == MoeDispatcher.ALLGATHER
    unsplit = (s.pp > 1) & (s.vpp == 1)
    repeats = (s.recompute == Recompute.FULL) | ((s.recompute_modules & MOE_MODULE) != 0)
    return np.asarray(s.overlap_moe_all_to_all & (gathers | unsplit | repeats))


def _overlap_without_dual_pipe(_job: Job, s: Strategies) -> Bools:
    # The exchange is hidden in the pairs of a forward and a backward that only DualPipe-V runs.
    pairs = (s.schedule == Schedule.DUALPIPE_V) & (s.recompute == Recompute.NONE)
    return np.asarray(s.overlap_moe_all_to_all & (s.ep > 1) & ~pairs)


EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        "experts-missing", _experts_used, "ep is {ep}, but the model has no experts",
        "Set ep to 1.", _CORE, when=_is_dense, smallest_change="ep {ep} -> 1",
    ),
    Rule(
        "experts-not-divisible", _num_experts, "ep {ep} does not divide the model's {experts} experts",
        "Use an ep that divides the experts: {ep_options}.", "megatron/training/arguments.py", when=_is_moe,
        smallest_change="ep {ep} -> {ep_fit}",
    ),
    Rule(
        "expert-mlp-not-divisible", _expert_width, "etp {etp} does not divide expert_intermediate_size {expert_width}",
        "Use an etp that divides the width of an expert, such as 1.", "megatron/core/transformer/moe/experts.py", when=_is_moe,
        smallest_change="etp {etp} -> 1",
    ),
    # The grid of experts (etp x ep x their own data parallelism) is folded onto the ranks of one pipeline stage, so it must
    # divide them.
    Rule(
        "expert-ranks-not-divisible", _ranks,
        "ep {ep} x etp {etp} = {ep_etp} does not divide the {tp_cp_dp} ranks of a pipeline stage (tp x cp x dp)",
        "Lower ep or etp, or lower pp so that a stage has more ranks.", "megatron/core/parallel_state.py (expert ranks)",
        when=_is_moe,
    ),
    Rule(
        "expert-ranks-not-divisible", _shard_ranks,
        "ep {ep} x etp {etp} = {ep_etp} does not divide the ranks of one sharded copy, zero_shard_size {zero_shard_size} x tp {tp}",
        "Lower ep, or raise zero_shard_size.", f"{_TITAN_DIMS} (dp_shard * cp * tp = efsdp * ep)",
        frameworks=frameworks_where(lambda facts: facts.groups_hold_context), when=_is_moe,
    ),
    Rule(
        "expert-ranks-not-divisible", _borrows_whole_axes,
        "ep {ep} must be a multiple of cp {cp} (and of tp {tp} where etp is 1) in torchtitan {version}",
        "Raise ep, lower cp or tp, or use torchtitan 0.3.", f"{_TITAN_DIMS} (_validate)",
        frameworks=only("torchtitan"), until="0.3", when=_is_moe,
    ),
    Rule(
        "expert-ranks-not-divisible", _multiplied_ranks, "ep {ep} does not divide dp {dp}, which holds nanotron's expert-parallel ranks",
        "Choose an ep that divides dp.", "nanotron slurm_launcher.py (world = dp * pp * tp * cp * ep)",
        frameworks=only("nanotron"), when=_is_moe,
    ),
    # Outside of Megatron no mesh holds a degree of its own for the width of an expert: torchtitan's before 0.3 give the whole tp
    # axis to the experts or none of it, and the others cut an expert's products, where at all, like those of any other layer.
    Rule(
        "expert-tensor-parallel-unsupported", _etp_neither, "etp {etp} is neither 1 nor tp {tp}, and {framework} {version} has no other",
        "Set etp to 1 or to tp.", f"{_TITAN_DIMS} (_validate); transformers/models/qwen3_moe/configuration_qwen3_moe.py "
        "(base_model_tp_plan); accelerate/parallelism_config.py (has no such degree)",
        frameworks=only("megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron"),
        when=_is_moe, smallest_change="etp {etp} -> 1",
    ),
    Rule(
        "expert-tensor-parallel-unsupported", _etp, "torchtitan {version} has no expert tensor parallelism (etp {etp})",
        "Set etp to 1.", "torchtitan 0.3 parallelism config", frameworks=only("torchtitan"), since="0.3", when=_is_moe,
        smallest_change="etp {etp} -> 1",
    ),
    Rule(
        "expert-tensor-parallel-unsupported", _etp, "etp is {etp}, but {framework} does not split single experts over tensor-parallel ranks",
        "Set etp to 1.", "deepspeed expert_parallel.expert_tensor_parallel_size",
        frameworks=only("deepspeed", "megatron-deepspeed"), when=_is_moe, smallest_change="etp {etp} -> 1",
    ),
    *FSDP_EXPERT_RULES,
    Rule(
        "expert-parallel-unsupported", _with_tensor, "deepspeed {version} cannot combine ep {ep} with tp {tp}",
        "Set tp or ep to 1, or use version 0.19.3.", "deepspeed pull request 8064 (AutoEP with AutoTP)",
        frameworks=only("deepspeed"), until="0.19.3", when=_is_moe, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _folded_with_more,
        "deepspeed can combine ep {ep} with tp {tp} only where pp is 1, cp is 1 and nothing is offloaded (pp {pp}, cp {cp})",
        "Set tp to 1, or set pp and cp to 1 and leave offload out.",
        "deepspeed/module_inject/auto_ep_folding.py (validate_folding_global)", frameworks=only("deepspeed"),
        since="0.19.3", when=_is_moe, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _folded_zero3, "deepspeed {version} cannot combine ep {ep}, tp {tp} and zero 3",
        "Use zero 2, or use version 0.19.8.", "deepspeed/runtime/engine.py (AutoEP with ZeRO Stage 3)",
        frameworks=only("deepspeed"), since="0.19.3", until="0.19.8", when=_is_moe, smallest_change="zero 3 -> 2",
    ),
    Rule(
        "expert-parallel-unsupported", _zero3, "deepspeed {version} cannot combine ep {ep} with zero 3",
        "Use zero 2, or use version 0.19.3.", "deepspeed/runtime/engine.py (MoE not supported with Stage 3)",
        frameworks=only("deepspeed"), until="0.19.3", when=_is_moe, smallest_change="zero 3 -> 2",
    ),
    Rule(
        "expert-parallel-unsupported", _zero3_context, "deepspeed cannot combine ep {ep}, zero 3 and cp {cp}",
        "Use zero 2, or set cp to 1.", "deepspeed/runtime/engine.py (AutoEP with ZeRO Stage 3)",
        frameworks=only("deepspeed"), since="0.19.3", when=_is_moe, smallest_change="zero 3 -> 2",
    ),
    Rule(
        "expert-parallel-unsupported", _with_pipeline, "deepspeed {version} cannot combine ep {ep} with pp {pp}",
        "Set pp or ep to 1, or use version 0.14.1.", "deepspeed pull request 5338 (MoE for pipeline models)",
        frameworks=only("deepspeed"), until="0.14.1", when=_is_moe, smallest_change="pp {pp} -> 1",
    ),
    Rule(
        "expert-parallel-unsupported", _with_pipeline, "megatron-deepspeed {version} cannot combine ep {ep} with pp {pp}",
        "Set pp or ep to 1, or use the repository as of April 2024 (version 2024).",
        "Megatron-DeepSpeed pull request 373, with DeepSpeed 0.14.1", frameworks=only("megatron-deepspeed"),
        until="2024", when=_is_moe, smallest_change="pp {pp} -> 1",
    ),
    # Without sequence parallelism every tensor-parallel rank would route and dispatch the same tokens. Megatron refuses that in
    # training as slow (megatron/core/transformer/moe/moe_layer.py, forward).
    Rule(
        "moe-needs-sequence-parallel", _needs_sequence_parallel,
        "an MoE model with tp {tp} needs sequence parallelism in megatron", "Set sequence_parallel to true, or set tp to 1.",
        "megatron/training/arguments.py; megatron/core/model_parallel_config.py", frameworks=only("megatron"),
        when=_is_moe, smallest_change="sequence_parallel false -> true",
    ),
    Rule(
        "dispatcher-unsupported", _flex, "megatron {version} does not have moe_dispatcher 'flex'",
        "Use 'alltoall', or use core 0.12.", "megatron/training/arguments.py (moe_enable_deepep)",
        frameworks=only("megatron"), until="0.12", when=_is_moe, smallest_change="moe_dispatcher flex -> alltoall",
    ),
    Rule(
        "dispatcher-unsupported", _flex, "torchtitan {version} does not have moe_dispatcher 'flex'",
        "Use 'alltoall', or use torchtitan 0.2.", "torchtitan job_config.py (expert_parallel_comm_backend, from 0.2.1)",
        frameworks=only("torchtitan"), until="0.2", when=_is_moe, smallest_change="moe_dispatcher flex -> alltoall",
    ),
    Rule(
        "dispatcher-unsupported", _flex, "moe_dispatcher 'flex' (DeepEP) does not run on {gpu}, which is older than Ampere",
        "Use 'alltoall'.", "deepseek-ai/DeepEP README (SM80 and later)",
        frameworks=frameworks_where(lambda facts: MoeDispatcher.FLEX in facts.choices.dispatchers), when=_before_ampere,
        smallest_change="moe_dispatcher flex -> alltoall",
    ),
    Rule(
        "dispatcher-unsupported", _flex_ranks,
        "flex_backend 'deepep' is written for NVLink nodes of 8 GPUs and takes up to 8 ranks or a multiple of 8, which "
        "ep x etp = {ep_etp} is not on this cluster",
        "Choose an ep that is, or use flex_backend 'hybridep' or moe_dispatcher 'alltoall'.", "deepseek-ai/DeepEP csrc/config.hpp (NUM_MAX_NVL_PEERS)",
        frameworks=frameworks_where(lambda facts: MoeDispatcher.FLEX in facts.choices.dispatchers), when=_is_moe,
        smallest_change="moe_dispatcher flex -> alltoall",
    ),
    Rule(
        "dispatcher-unsupported", _hybrid, "megatron {version} does not have flex_backend 'hybridep'",
        "Use 'deepep', or use core 0.16.", f"{_CORE} (moe_flex_dispatcher_backend)", frameworks=only("megatron"), until="0.16",
        when=_is_moe, smallest_change="flex_backend hybridep -> deepep",
    ),
    Rule(
        "dispatcher-unsupported", _hybrid, "torchtitan {version} does not have flex_backend 'hybridep'",
        "Use 'deepep', or use torchtitan 0.3.", "torchtitan/models/common/token_dispatcher.py", frameworks=only("torchtitan"),
        until="0.3", when=_is_moe, smallest_change="flex_backend hybridep -> deepep",
    ),
    Rule(
        "dispatcher-unsupported", _dispatcher, "{framework} does not have moe_dispatcher '{moe_dispatcher}'",
        "Leave moe_dispatcher out to use 'alltoall'.", "deepspeed/moe/sharded_moe.py; nanotron moe_config.token_dispatcher_type; "
        "torchtitan/models/common/config_utils.py (comm_backend)",
        frameworks=frameworks_where(lambda facts: 0 < len(facts.choices.dispatchers) < len(MoeDispatcher)), when=_exchanges,
        smallest_change="moe_dispatcher {moe_dispatcher} -> alltoall",
    ),
    Rule(
        "overlap-unsupported", _overlapped, "megatron {version} cannot overlap the experts' all-to-all",
        "Set overlap.moe_all_to_all to false, or use core 0.14.", "megatron/training/arguments.py",
        frameworks=only("megatron"), until="0.14", when=_is_moe, smallest_change="overlap.moe_all_to_all true -> false",
    ),
    Rule(
        "overlap-unsupported", _overlap_conditions,
        "overlap.moe_all_to_all needs moe_dispatcher 'alltoall' or 'flex' (not '{moe_dispatcher}'), in a pipeline a vpp above 1 "
        "(pp {pp}, vpp {vpp}), and neither full recompute nor that of module 'moe' (recompute '{recompute}')",
        "Set overlap.moe_all_to_all to false, or change what it needs.", _CORE, frameworks=only("megatron"), when=_is_moe,
        smallest_change="overlap.moe_all_to_all true -> false",
    ),
    Rule(
        "overlap-unsupported", _overlapped, "torchtitan {version} cannot overlap the experts' all-to-all",
        "Set overlap.moe_all_to_all to false, or use torchtitan 0.2.1.", "torchtitan/distributed/dual_pipe_v.py (not in the wheel of 0.2.0)",
        frameworks=only("torchtitan"), until="0.2.1", when=_is_moe, smallest_change="overlap.moe_all_to_all true -> false",
    ),
    Rule(
        "overlap-unsupported", _overlapped, "torchtitan {version} cannot overlap the experts' all-to-all any more",
        "Set overlap.moe_all_to_all to false, or use torchtitan 0.2.2.", "torchtitan 0.3.0 (without distributed/dual_pipe_v.py)",
        frameworks=only("torchtitan"), since="0.3", when=_is_moe, smallest_change="overlap.moe_all_to_all true -> false",
    ),
    Rule(
        "overlap-unsupported", _overlap_without_dual_pipe,
        "overlap.moe_all_to_all needs schedule 'dualpipe-v' (not '{schedule}') and no recompute (recompute '{recompute}') in torchtitan",
        "Set overlap.moe_all_to_all to false, or change what it needs.", "torchtitan/distributed/dual_pipe_v.py (get_dual_pipe_v_flag)",
        frameworks=only("torchtitan"), until="0.3", when=_is_moe, smallest_change="overlap.moe_all_to_all true -> false",
    ),
    Rule(
        "overlap-unsupported", _overlapped, "{framework} cannot overlap the experts' all-to-all",
        "Set overlap.moe_all_to_all to false.", "no such key in its configuration",
        frameworks=frameworks_where(lambda facts: not facts.choices.expert_overlap), when=_is_moe,
        smallest_change="overlap.moe_all_to_all true -> false",
    ),
)  # fmt: skip
