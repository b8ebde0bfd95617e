"""Rules on pipelines: which framework has them and with which schedules, and what a schedule asks of micro-batches and layers."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.fields import SPLIT_BACKWARD, V_SHAPED, Recompute, Schedule
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.default_splits import default_split
from planner.rules.rule import Rule, indivisible, one_of, only

_TORCH = "torch/distributed/pipelining/schedules.py"
_CORE = "megatron/core/pipeline_parallel/schedules.py"


def _pipeline(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.pp > 1)


def _virtual(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.vpp > 1)


def _no_interleaving(job: Job) -> bool:
    return not job.framework.choices.vpp


def _virtual_alone(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.vpp > 1) & (s.pp == 1))


def _schedule(job: Job, s: Strategies) -> Bools:
    known = one_of(s.schedule, job.framework.choices.schedules)
    # "interleaved" with vpp above 1 is left to the rule on virtual stages, which names the field that the user set.
    virtual = (s.schedule == Schedule.INTERLEAVED) & (s.vpp > 1)
    return np.asarray((s.pp > 1) & ~known & ~virtual)


def _mismatch(_job: Job, s: Strategies) -> Bools:
    # Each rank holds one chunk of either half of a V, so these schedules have exactly two virtual stages per rank.
    v_shaped = one_of(s.schedule, tuple(V_SHAPED))
    interleaved = s.schedule == Schedule.INTERLEAVED
    single = ~v_shaped & ~interleaved
    return np.asarray((v_shaped & (s.vpp != 2)) | (interleaved & (s.vpp == 1)) | (single & (s.vpp > 1)))


def _modules_apart(_job: Job, s: Strategies) -> Bools:
    if not s.layouts.moves_mtp:
        return np.zeros(len(s), np.bool_)
    return np.array([layout.mtp is not None for layout in s.layouts.table])[s.layout]


def _megatron_rounds(_job: Job, s: Strategies) -> Bools:
    # Megatron sends micro-batches through each chunk in groups of pp. It can be told another group size, but its default
    # refuses a remainder.
    return np.asarray((s.vpp > 1) & indivisible(s.num_micro_batches, s.pp))


def _torch_rounds(_job: Job, s: Strategies) -> Bools:
    # PyTorch makes as many rounds as hold at least pp micro-batches each, and they must all be equal.
    rounds = np.maximum(np.floor(s.num_micro_batches / s.pp), 1.0)
    return np.asarray((s.schedule == Schedule.INTERLEAVED) & indivisible(s.num_micro_batches, rounds))


def _two_stages_without_overlap(_job: Job, s: Strategies) -> Bools:
    # With two ranks the next and the previous one are the same, so a batched exchange cannot tell what is sent forward from
    # what is sent back; overlapped sends are split by direction (NVIDIA/Megatron-LM issue 750).
    return np.asarray((s.vpp > 1) & (s.pp == 2) & ~s.overlap_p2p)


def _dual_pipe(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.schedule == Schedule.DUALPIPE_V) & (s.num_micro_batches < 2 * s.pp))


def _splits_backward(_job: Job, s: Strategies) -> Bools:
    return one_of(s.schedule, tuple(SPLIT_BACKWARD))


def _splits_selective(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_splits_backward(_job, s) & (s.recompute == Recompute.SELECTIVE))


def _runs_dual_pipe(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.schedule == Schedule.DUALPIPE_V)


def _compiles(job: Job) -> bool:
    return job.training.compile or job.training.attention_kernel == "flex"


def _fewer_than_stages(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.schedule == Schedule.ONE_F_ONE_B) & (s.num_micro_batches < s.pp))


def _tied(job: Job) -> bool:
    return job.model.tie_word_embeddings


def _only_ends_differ(_job: Job, s: Strategies) -> Bools:
    return _per_layout(s, [not _ends_differ(layout) for layout in s.layouts.table])


def _ends_differ(layout: Layout) -> bool:
    return layout.is_even or (layout.vpp == 1 and len(set(layout.layers[1:-1])) <= 1)


def _own_split(job: Job, s: Strategies) -> Bools:
    # nanotron derives the split from its blocks' costs and reads no setting, so even an even split is refused if it differs.
    tables = s.layouts.table
    return _per_layout(s, [t.layers != default_split(job, pp=t.pp, vpp=t.vpp) for t in tables])


def _own_or_even_split(job: Job, s: Strategies) -> Bools:
    # DeepSpeed's partition method "uniform" gives the even split; the others follow from the layers.
    tables = s.layouts.table
    return _per_layout(s, [not t.is_even and t.layers != default_split(job, pp=t.pp, vpp=t.vpp) for t in tables])


def _per_layout(s: Strategies, broken: list[bool]) -> Bools:
    # A batch has many strategies and few layouts, so each layout is judged once.
    return np.array(broken, np.bool_)[s.layout]


def _cuda_graphs(job: Job) -> bool:
    return job.training.cuda_graphs


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        "pipeline-unsupported", _pipeline, "{framework} has no pipeline parallelism (pp {pp})",
        "Set pp to 1{or_another}.", "accelerate/parallelism_config.py has no such degree",
        frameworks=frameworks_where(lambda facts: not facts.choices.pipelines), smallest_change="pp {pp} -> 1",
    ),
    Rule(
        "virtual-stages-unsupported", _virtual, "{framework} has no virtual pipeline stages (vpp {vpp})",
        "Set vpp to 1.", "deepspeed/runtime/pipe/schedule.py; nanotron/parallel/pipeline_parallel/engine.py",
        when=_no_interleaving, smallest_change="vpp {vpp} -> 1",
    ),
    Rule(
        "virtual-stages-need-pipeline", _virtual_alone, "vpp {vpp} needs a pipeline, but pp is 1",
        "Set vpp to 1, or raise pp.", "megatron/core/parallel_state.py (interleaved schedule)",
        smallest_change="vpp {vpp} -> 1",
    ),
    Rule(
        "schedule-unsupported", _schedule, "{framework} does not have the pipeline schedule '{schedule}'",
        "Leave schedule out to use the framework's own.",
        f"{_CORE}; torchtitan config pipeline_parallel_schedule; nanotron ParallelismArgs.pp_engine",
    ),
    Rule(
        "schedule-mismatch", _mismatch, "schedule '{schedule}' cannot run with vpp {vpp}",
        "Set vpp to 1 for 1f1b, gpipe and zb-h1, to 2 for zb-v and dualpipe-v, and to 2 or more for interleaved.", _TORCH,
    ),
    Rule(
        "interleaving-needs-micro-batches", _megatron_rounds,
        "the interleaved schedule (vpp {vpp}) needs a multiple of pp {pp} micro-batches, but there are {num_micro_batches}",
        "Choose dp and micro_batch_size so that there are, or set vpp to 1.",
        f"{_CORE} (micro-batch groups of pp, its default)", frameworks=only("megatron"),
        smallest_change="vpp {vpp} -> 1",
    ),
    Rule(
        "interleaving-needs-micro-batches", _torch_rounds,
        "the interleaved schedule needs equal rounds of at least pp {pp} micro-batches, which {num_micro_batches} cannot fill",
        "Choose dp and micro_batch_size so that the micro-batches are a multiple of pp, or set vpp to 1.", f"{_TORCH} (ScheduleInterleaved1F1B)",
        frameworks=frameworks_where(lambda facts: facts.choices.torch_schedules), smallest_change="vpp {vpp} -> 1",
    ),
    Rule(
        "interleaving-needs-p2p-overlap", _two_stages_without_overlap,
        "the interleaved schedule (vpp {vpp}) with pp 2 needs overlap.p2p in megatron, which is false",
        "Set overlap.p2p to true, raise pp, or set vpp to 1.", "megatron/training/arguments.py; NVIDIA/Megatron-LM issue 750",
        frameworks=only("megatron"), smallest_change="overlap.p2p false -> true",
    ),
    Rule(
        "schedule-unsupported", _runs_dual_pipe, "torchtitan {version} does not have the pipeline schedule '{schedule}'",
        "Use 'zb-v', or use torchtitan 0.2.", "torchtitan/models/llama3/infra/pipeline.py (places stages in a V for ZBVZeroBubble alone)",
        frameworks=only("torchtitan"), until="0.2",
    ),
    # A compiled backward is a single node, which cannot be cut into the gradients of inputs and of weights. FlexAttention exists
    # as a compiled kernel alone.
    Rule(
        "schedule-unsupported", _splits_backward,
        "schedule '{schedule}' splits the backward pass, which torch.compile (training.compile, or attention_kernel 'flex') does not allow",
        "Use schedule 'interleaved' or '1f1b', or neither compile nor take attention_kernel 'flex'.",
        f"{_TORCH} (_check_torch_compile_compatibility); torchtitan 0.3's experiments/graph_trainer/tests/test_numerics.py",
        frameworks=frameworks_where(lambda facts: facts.choices.torch_schedules), when=_compiles,
    ),
    Rule(
        "schedule-unsupported", _splits_selective,
        "schedule '{schedule}' runs backward in two parts, which selective recomputation in {framework} does not allow",
        "Set recompute to 'none' or 'full'.", "torch/utils/checkpoint.py (selective checkpoints can be run backward once)",
        frameworks=frameworks_where(lambda facts: facts.choices.torch_schedules), smallest_change="recompute selective -> full",
    ),
    Rule(
        "too-few-micro-batches", _dual_pipe,
        "schedule 'dualpipe-v' needs a micro-batch for each of its 2 x pp {pp} stages, but there are {num_micro_batches}",
        "Lower micro_batch_size, dp or pp.", f"{_TORCH} (ScheduleDualPipeV)",
    ),
    Rule(
        "too-few-micro-batches", _fewer_than_stages,
        "schedule '1f1b' needs a micro-batch for each of the pp {pp} stages in {framework}, but there are {num_micro_batches}",
        "Lower micro_batch_size, dp or pp.", f"{_TORCH} (Schedule1F1B)",
        frameworks=frameworks_where(lambda facts: facts.choices.torch_schedules),
    ),
    # The first and the last stage would each hold a copy of the shared matrix, and torchtitan does not reduce its gradient
    # between them, as Megatron does.
    Rule(
        "pipeline-unsupported", _pipeline, "torchtitan cannot run a model with tied embeddings in a pipeline (pp {pp})",
        "Set pp to 1, or set tie_word_embeddings to false.", "torchtitan/models/common/decoder.py (update_from_config)",
        frameworks=only("torchtitan"), when=_tied, smallest_change="pp {pp} -> 1",
    ),
    Rule(
        "split-unsupported", _only_ends_differ,
        "megatron {version} lets only the first and the last stage differ, unlike layers_per_stage {layers_per_stage}",
        "Use an even split, or use core 0.13, which has --pipeline-model-parallel-layout.", "megatron/training/arguments.py",
        frameworks=only("megatron"), until="0.13",
    ),
    # The stages behind the modules then receive more than one hidden state, whose shapes ranks tell each other from 0.16 on.
    Rule(
        "split-unsupported", _modules_apart, "megatron {version} keeps multi-token prediction beside the output layer",
        "Leave mtp_stage out, or use core 0.16.", "megatron/core/transformer/pipeline_parallel_layer_layout.py (mtp_standalone)",
        frameworks=only("megatron"), until="0.16", when=lambda job: job.mtp_num_layers > 0, smallest_change="leave mtp_stage out",
    ),
    Rule(
        "split-unsupported", _own_split, "nanotron splits the layers by its own costs and takes no other split, such as {layers_per_stage}",
        "Leave layers_per_stage out.", "nanotron/models/base.py (build_model)", frameworks=only("nanotron"),
    ),
    Rule(
        "split-unsupported", _own_or_even_split, "{framework} partitions the layers itself and takes no other split, such as {layers_per_stage}",
        "Leave layers_per_stage out.", "deepspeed/runtime/pipe/module.py (partition_method)",
        frameworks=only("deepspeed", "megatron-deepspeed"),
    ),
    Rule(
        "cuda-graphs-with-pipeline", _pipeline, "torchtitan cannot combine CUDA graphs with a pipeline (pp {pp})",
        "Set training.cuda_graphs to false, or pp to 1.", "torchtitan/trainer.py", frameworks=only("torchtitan"),
        when=_cuda_graphs, smallest_change="pp {pp} -> 1",
    ),
)  # fmt: skip
