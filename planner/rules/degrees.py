"""Rules on the degrees: what each must divide (ranks, batch, heads, widths, sequence), and who has which kind of parallelism.

The order within the tuple decides which rule is reported first, and under which one a strategy is counted: the GPUs and the
batch come before the heads, so that a strategy too large for the cluster is not blamed on its heads.
"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.fields import CpComm
from cost_models.strategies.strategy import Bools, Floats, Strategies
from planner.rules.rule import Rule, indivisible, one_of, only, version_stated

_CORE = "megatron/core/transformer/transformer_config.py"
_TITAN_DIMS = "torchtitan/distributed/parallel_dims.py"


def _world(job: Job, s: Strategies) -> Bools:
    return np.asarray(s.world > job.cluster.num_gpus)


def _batch(job: Job, s: Strategies) -> Bools:
    whole = s.num_micro_batches * s.dp * s.micro_batch_size == job.training.global_batch_size
    return np.asarray(~whole | (s.num_micro_batches != np.floor(s.num_micro_batches)))


def _heads(job: Job, s: Strategies) -> Bools:
    return indivisible(job.model.num_attention_heads, s.tp)


def _kv_heads(job: Job, s: Strategies) -> Bools:
    return indivisible(job.model.num_key_value_heads, s.tp)


def _kv_heads_or_replicas(job: Job, s: Strategies) -> Bools:
    return indivisible(job.model.num_key_value_heads, s.tp) & indivisible(
        s.tp, np.float64(job.model.num_key_value_heads)
    )


def _kv_heads_fewer(job: Job, s: Strategies) -> Bools:
    return np.asarray(s.tp > job.model.num_key_value_heads)


def _grouped_heads(job: Job) -> bool:
    """Whether key-value heads need a rule of their own: they differ in number from the heads, and are not latent."""
    return job.model.mla is None and job.model.num_key_value_heads != job.model.num_attention_heads


def _dense_width(job: Job, s: Strategies) -> Bools:
    return indivisible(job.model.intermediate_size, s.tp)


def _has_dense(job: Job) -> bool:
    return job.model.intermediate_size > 0 and any(not kind.is_moe for kind in job.model.distinct_kinds)


def _shared_width(job: Job, s: Strategies) -> Bools:
    assert job.model.moe is not None
    return indivisible(job.model.moe.num_shared_experts * job.model.moe.shared_expert_intermediate_size, s.tp)


def _has_shared(job: Job) -> bool:
    return job.model.moe is not None and job.model.moe.num_shared_experts > 0


def _sequence_zigzag(job: Job, s: Strategies) -> Bools:
    # A causal mask gives late tokens more work than early ones, so each rank takes one chunk from either end of the sequence
    # to even it out (Megatron's get_batch_on_this_cp_rank, PyTorch's load balancer). The two chunks together are then split
    # over tp, so the least factor is cp * lcm(2, tp), not 2 * cp * tp (NVIDIA-NeMo/RL pull request 3563).
    split = np.where(s.sequence_parallel, s.tp, 1.0)
    even: Floats = np.where(split % 2 == 0, split, 2 * split)
    return indivisible(job.training.seq_length, np.where(s.cp > 1, s.cp * even, split))


def _sequence_torchtitan(job: Job, s: Strategies) -> Bools:
    # Before 0.3 seq_len_divisor multiplies all three factors whether or not tp or cp is in use, so even tp = cp = 1 asks
    # for an even length.
    return indivisible(job.training.seq_length, s.tp * s.cp * 2)


def _sequence_titan_trainer(job: Job, s: Strategies) -> Bools:
    return indivisible(
        job.training.seq_length, np.where(s.sequence_parallel, s.tp, 1.0) * np.where(s.cp > 1, 2 * s.cp, 1.0)
    )


def _sequence_plain(job: Job, s: Strategies) -> Bools:
    # Ulysses and nanotron's ring leave each rank one contiguous chunk, so there is no factor of two.
    return indivisible(job.training.seq_length, s.cp * np.where(s.sequence_parallel, s.tp, 1.0))


def _sequence_parallel_alone(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.sequence_parallel & (s.tp == 1))


def _sequence_parallel(_job: Job, s: Strategies) -> Bools:
    return s.sequence_parallel


def _context(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.cp > 1)


def _ulysses_with_others(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp > 1) & ((s.tp > 1) | (s.pp > 1)))


def _math_attention(job: Job) -> bool:
    return job.training.attention == "math"


def _transport(job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp > 1) & ~one_of(s.cp_comm, job.framework.choices.cp_comms))


def _heads_over_context(job: Job, s: Strategies) -> Bools:
    # Ulysses trades its share of the sequence for a share of the heads around attention, and tp has already split these.
    return np.asarray((s.cp > 1) & (s.cp_comm == CpComm.A2A) & indivisible(job.model.num_attention_heads, s.tp * s.cp))


def _kv_heads_over_context(job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp > 1) & (s.cp_comm == CpComm.A2A) & indivisible(job.model.num_key_value_heads, s.tp * s.cp))


def _levels(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp > 1) & (s.cp_comm == CpComm.A2A_P2P))


def _no_two_levels(job: Job, s: Strategies) -> Bools:
    # One level of a single rank, or of all of them, is what p2p and a2a are for.
    return np.asarray(
        _levels(job, s) & (indivisible(s.cp, s.cp_a2a_size) | (s.cp_a2a_size == s.cp) | (s.cp_a2a_size == 1))
    )


def _levels_of_another(job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp_a2a_size > 1) & ~_levels(job, s))


def _heads_over_level(job: Job, s: Strategies) -> Bools:
    model = job.model
    heads = model.num_attention_heads if model.mla is not None else model.num_key_value_heads
    return np.asarray(_levels(job, s) & indivisible(heads, s.tp * s.cp_a2a_size))


def _cuts_attention(job: Job) -> bool:
    """Whether attention has a window, a bias or several documents in a sequence."""
    windows = any(kind.window is not None for kind in job.model.layer_kinds)
    packed = any(length < job.training.seq_length for length, _ in job.training.attended_spans)
    return windows or packed or job.model.position_embedding == "alibi"


def _tensor(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.tp > 1)


_SIZE = "cp_a2a_size"
_TP_CHANGE = "tp {tp} -> {tp_fit}"
DEGREE_RULES: tuple[Rule, ...] = (
    Rule(
        "world-exceeds-gpus", _world,
        "tp {tp} x pp {pp} x cp {cp} x dp {dp} needs {world} GPUs, but the cluster has only {gpus}",
        "Lower one of these degrees, or add nodes.", "arithmetic of ranks",
    ),
    # Gradients are accumulated over whole micro-batches, the same number on every replica.
    Rule(
        "batch-not-divisible", _batch,
        "dp {dp} x micro_batch_size {micro_batch_size} does not divide global_batch_size {batch}",
        "Choose dp and micro_batch_size so that their product divides the global batch.",
        "megatron/core/num_microbatches_calculator.py",
    ),
    # A rank computes whole heads: the softmax of one head cannot be split over ranks without another exchange.
    Rule(
        "heads-not-divisible", _heads, "tp {tp} does not divide the model's {heads} attention heads",
        "Use a tp that divides the heads: {tp_options}.", f"{_CORE}; torchtitan and nanotron refuse it too",
        smallest_change=_TP_CHANGE,
    ),
    # Four rules share the code on key-value heads because frameworks differ in what they do with too few of them: Megatron
    # copies them from core 0.16 on and refuses before, DeepSpeed leaves the last ranks without any, the others refuse.
    Rule(
        "kv-heads-not-divisible", _kv_heads_or_replicas,
        "tp {tp} neither divides the model's {kv_heads} key-value heads nor is a multiple of them",
        "Use a tp that divides the key-value heads ({tp_options}) or is a multiple of them.",
        # With tp a multiple of the key-value heads, each rank keeps one head and several ranks keep copies of the same one.
        f"{_CORE}; replication came with pull request 2565", frameworks=only("megatron"), since="0.16", when=_grouped_heads,
        smallest_change=_TP_CHANGE,
    ),
    Rule(
        "kv-heads-not-divisible", _kv_heads, "tp {tp} does not divide the model's {kv_heads} key-value heads (query groups)",
        "Use a tp that divides the key-value heads: {tp_options}.", f"{_CORE} before core 0.16",
        frameworks=only("megatron"), until="0.16", when=_grouped_heads, smallest_change=_TP_CHANGE,
    ),
    Rule(
        "kv-heads-not-divisible", _kv_heads, "tp {tp} does not divide the model's {kv_heads} key-value heads",
        "Use a tp that divides the key-value heads: {tp_options}.",
        "pytorch/torchtitan pull request 2577; nanotron/models/llama.py; Megatron-DeepSpeed megatron/arguments.py",
        frameworks=frameworks_where(lambda facts: facts.choices.tp_divides_kv_heads), when=_grouped_heads,
        smallest_change=_TP_CHANGE,
    ),
    # AutoTP hands heads out one by one and tolerates a remainder: `get_shard_size` gives the first kv_heads % tp ranks one more.
    # Only ranks that would get none at all are a problem.
    Rule(
        "kv-heads-not-divisible", _kv_heads_fewer, "tp {tp} is larger than the model's {kv_heads} key-value heads",
        "Use a tp of at most {kv_heads}.", "deepspeed/module_inject/tp_shard.py: ranks past the last head get none",
        frameworks=only("deepspeed"), when=_grouped_heads, smallest_change=_TP_CHANGE,
    ),
    # Weight matrices are cut into equal shards without padding, on every framework alike.
    Rule(
        "mlp-not-divisible", _dense_width, "tp {tp} does not divide intermediate_size {width}",
        "Use a tp that divides intermediate_size.", "megatron/core/tensor_parallel/layers.py (divide)", when=_has_dense,
    ),
    Rule(
        "mlp-not-divisible", _shared_width, "tp {tp} does not divide the combined width of the shared experts",
        "Use a tp that divides the number of shared experts times their width.", "megatron/core/tensor_parallel/layers.py (divide)", when=_has_shared,
    ),
    Rule(
        "sequence-not-divisible", _sequence_zigzag,
        "seq_length {seq} cannot be cut evenly: with cp above 1 every one of the cp {cp} ranks takes two equal chunks, and with "
        "sequence parallelism the share of a rank is split over tp {tp}",
        "Pad seq_length to a multiple of 2 x cp x tp, or lower cp or tp.",
        "megatron/core/utils.py (get_batch_on_this_cp_rank: 2 chunks a rank); NVIDIA-NeMo/RL issue 3563",
        frameworks=only("megatron", "fsdp"),
    ),
    Rule(
        "sequence-not-divisible", _sequence_torchtitan, "seq_length {seq} is not a multiple of tp {tp} x 2 x cp {cp}",
        "Pad seq_length to such a multiple, or lower cp or tp.", f"{_TITAN_DIMS} (seq_len_divisor)", frameworks=only("torchtitan"),
        until="0.3",
    ),
    Rule(
        "sequence-not-divisible", _sequence_titan_trainer,
        "seq_length {seq} is not a multiple of tp {tp} (counted with sequence parallelism) x 2 x cp {cp} (counted where cp is "
        "above 1)", "Pad seq_length to such a multiple, or lower cp or tp.", "torchtitan/trainer.py (seq_len_divisor)", frameworks=only("torchtitan"),
        since="0.3",
    ),
    Rule(
        "sequence-not-divisible", _sequence_plain,
        "seq_length {seq} is not a multiple of cp {cp} (times tp {tp} with sequence parallelism)",
        "Pad seq_length to such a multiple, or lower cp or tp.", "nanotron/parallel/tensor_parallel; deepspeed/sequence/layer.py",
        frameworks=only("nanotron", "deepspeed", "megatron-deepspeed"),
    ),
    Rule(
        "sequence-parallel-needs-tp", _sequence_parallel_alone, "sequence_parallel is true, but tp is 1",
        "Set sequence_parallel to false, or raise tp.", "megatron/core/model_parallel_config.py",
        smallest_change="sequence_parallel true -> false",
    ),
    # DeepSpeed's "sequence parallelism" is Ulysses, which is context parallelism (cp) here.
    Rule(
        "sequence-parallel-unsupported", _sequence_parallel, "{framework} has no Megatron-style sequence parallelism",
        "Set sequence_parallel to false; for DeepSpeed's Ulysses set cp.", "deepspeed/runtime/tensor_parallel/config.py has no such key",
        frameworks=only("deepspeed"), smallest_change="sequence_parallel true -> false",
    ),
    Rule(
        "sequence-parallel-unsupported", _sequence_parallel, "{framework} {version} has no sequence parallelism",
        "Set sequence_parallel to false, or use version 2023.", "bigscience-workshop/Megatron-DeepSpeed megatron/arguments.py",
        frameworks=only("megatron-deepspeed"), until="2023", smallest_change="sequence_parallel true -> false",
    ),
    Rule(
        "tensor-parallel-unsupported", _tensor, "{framework} {version} has no tensor parallelism for training (tp {tp})",
        "Set tp to 1, or use version 0.16.4, which brought AutoTP training.", "deepspeed/runtime/tensor_parallel/config.py",
        frameworks=only("deepspeed"), until="0.16.4", smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "context-parallel-unsupported", _context, "megatron-deepspeed {version} has no context parallelism (cp {cp})",
        "Set cp to 1, or use version 2023, which has --ds-sequence-parallel-size.",
        "Megatron-DeepSpeed megatron/arguments.py (ds_sequence_parallel_size)", frameworks=only("megatron-deepspeed"),
        until="2023", when=version_stated, smallest_change="cp {cp} -> 1",
    ),
    Rule(
        "context-parallel-unsupported", _ulysses_with_others,
        "megatron-deepspeed cannot combine context parallelism (cp {cp}) with tensor or pipeline parallelism (tp {tp}, pp {pp})",
        "Set both tp and pp to 1, or set cp to 1.",
        "Megatron-DeepSpeed megatron/core/parallel_state.py (initialize_model_parallel)",
        frameworks=only("megatron-deepspeed"), smallest_change="cp {cp} -> 1",
    ),
    # A ring merges partial results by their softmax statistics, which fused kernels return and the unfused ("math") path does
    # not; in Megatron only Transformer Engine's attention has a context-parallel path at all.
    Rule(
        "context-parallel-needs-flash", _context, "cp {cp} needs flash attention, but attention is {attention}",
        "Set training.attention to 'flash', or cp to 1.",
        "megatron/core/extensions/transformer_engine.py (only its attention splits the context)", when=_math_attention,
        frameworks=frameworks_where(lambda facts: facts.choices.context_needs_flash), smallest_change="cp {cp} -> 1",
    ),
    Rule(
        "context-parallel-comm-unsupported", _transport, "{framework} does not have cp_comm '{cp_comm}'",
        "Leave cp_comm out to use the framework's own.",
        "megatron/core/model_parallel_config.py; torchtitan/config (context_parallel_rotate_method)",
    ),
    Rule(
        "context-parallel-heads", _heads_over_context,
        "cp_comm 'a2a' splits the heads over tp and cp, but tp {tp} x cp {cp} does not divide the model's {heads} heads",
        "Lower cp or tp, or choose another cp_comm.", "deepspeed/sequence/layer.py; TransformerEngine attention (a2a)",
    ),
    Rule(
        "context-parallel-heads", _kv_heads_over_context,
        "cp_comm 'a2a' splits the key-value heads over tp and cp, but tp {tp} x cp {cp} does not divide the model's {kv_heads} "
        "key-value heads",
        "Lower cp or tp, or choose another cp_comm.", "TransformerEngine attention (a2a)",
        frameworks=only("megatron"), when=_grouped_heads,
    ),
    Rule(
        "context-parallel-comm-unsupported", _levels, "megatron {version} does not have cp_comm 'a2a+p2p'",
        "Use another cp_comm, or core 0.10 with Transformer Engine 1.12.",
        "megatron/core/model_parallel_config.py (hierarchical_context_parallel_sizes)", frameworks=only("megatron"), until="0.10",
        rare=_SIZE, smallest_change="cp_comm a2a+p2p -> p2p",
    ),
    Rule(
        "context-parallel-levels", _no_two_levels,
        "cp_comm 'a2a+p2p' has two levels, but cp_a2a_size {cp_a2a_size} does not split cp {cp} into several groups of several ranks",
        "Choose a cp_a2a_size between 1 and cp that divides cp, or cp_comm 'p2p' or 'a2a'.",
        "megatron/training/arguments.py (hierarchical_context_parallel_sizes)", rare=_SIZE, smallest_change="cp_comm a2a+p2p -> p2p",
    ),
    Rule(
        "context-parallel-levels", _levels_of_another, "cp_a2a_size {cp_a2a_size} belongs to cp_comm 'a2a+p2p' (cp {cp}, cp_comm '{cp_comm}')",
        "Leave cp_a2a_size out, or set cp_comm to 'a2a+p2p' and cp above 1.",
        "megatron/core/model_parallel_config.py (hierarchical_context_parallel_sizes)", rare=_SIZE,
        smallest_change="leave cp_a2a_size out",
    ),
    Rule(
        "context-parallel-heads", _heads_over_level,
        "cp_comm 'a2a+p2p' splits the key-value heads over tp and cp_a2a_size, but tp {tp} x cp_a2a_size {cp_a2a_size} does not divide "
        "the model's {kv_heads}",
        "Lower cp_a2a_size or tp.", "TransformerEngine attention/context_parallel.py (flash_attn_a2a_communicate)", rare=_SIZE,
        smallest_change="cp_comm a2a+p2p -> p2p",
    ),
    Rule(
        "context-parallel-comm-unsupported", _levels,
        "cp_comm 'a2a+p2p' runs neither with windows or biases in attention nor with several documents in a sequence",
        "Use cp_comm 'a2a' or 'allgather' for windows, and 'p2p' for packed documents and biases.",
        "TransformerEngine attention/context_parallel.py (attn_forward_func_with_cp)", when=_cuts_attention, rare=_SIZE,
        smallest_change="cp_comm a2a+p2p -> p2p",
    ),
)  # fmt: skip
