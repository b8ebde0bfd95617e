"""nanotron, Hugging Face's trainer of tensor, pipeline and data parallel models."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.constants import Constant
from cost_models.frameworks.choices import Choices, Habit, StrategyDefaults
from cost_models.frameworks.facts import NO_OVERLAPS, FrameworkFacts
from cost_models.frameworks.knobs import Flag, always
from cost_models.frameworks.megatron import FACTS as MEGATRON
from cost_models.frameworks.megatron import LOCAL_MEMORY
from cost_models.frameworks.releases import Former
from cost_models.frameworks.splits import Split, SplitRule
from cost_models.frameworks.training_defaults import MIXED_PRECISION
from cost_models.specs.model import Model
from cost_models.strategies.fields import CpComm, MoeDispatcher, Recompute, Schedule

RESERVED: Final = Constant(
    1.02, "ratio", 1.0, 1.10, "reserved over allocated, assumed: persistent buffers dominate; no reading separates it"
)


def _own_split(model: Model, stages: int, _version: str) -> Split | None:
    """Blocks go to a stage until its share of the summed block cost is passed; there is no way to say otherwise. None where
    a stage would hold no parameters, which nanotron refuses (a large head ends the pipeline before its last stage).

    Source: nanotron/models/base.py (build_model, check_model_has_grad) and get_block_compute_costs of its models: a layer
    costs 4*heads*(hidden//heads)*hidden + 3*ffn*hidden, the head vocab*hidden, everything else nothing.
    """
    width = model.intermediate_size or (model.moe.expert_intermediate_size * model.moe.top_k if model.moe else 0)
    attention = 4 * model.num_attention_heads * (model.hidden_size // model.num_attention_heads) * model.hidden_size
    layer, head = attention + 3 * width * model.hidden_size, model.vocab_size * model.hidden_size
    embedding_layers_norm_head = [0, *[layer] * model.num_layers, 0, head]
    total = sum(embedding_layers_norm_head)
    split, filled = [0] * stages, [False] * stages
    stage = placed = 0
    for block, cost in enumerate(embedding_layers_norm_head):
        filled[stage] = True
        split[stage] += 1 <= block <= model.num_layers
        placed += cost
        stage += placed > total * ((stage + 1) / stages)
    return tuple(split) if all(filled) else None


FACTS: Final = FrameworkFacts(
    name="nanotron",
    # 0.4 by the build date of its wheel, 0.5 by its tag (2024-04-19). None was tagged since, and the package still calls
    # itself 0.4: 2025 is the main branch of that year, and `software_date` tells any other.
    releases=(("0.4", "2024-03"), ("0.5", "2024-04"), ("2025", "2025-06")),
    default_version="2025",
    fused_elementwise=True,
    default_zero=1,
    default_sequence_parallel=False,
    overlaps=NO_OVERLAPS,
    overlap_tp_backward=True,
    tp_overlap_needs_split=True,
    gradient_accumulation_bytes=10.0,
    kernels_forward=40.0,
    kernels_backward=60.0,
    overlaps_p2p_without_vpp=False,
    vocab_multiple_per_tp=1,  # ModelArgs.make_vocab_size_divisible_by
    host=MEGATRON.host,
    # That queries are saved twice is an outline of its source, which no reading separates.
    memory=replace(
        LOCAL_MEMORY, fuses_gated_activation=False, keeps_fused_qkv=False, keeps_query_twice=True, saves_rotary_tables=False,
        keeps_fp32_logits=True,
        casts_gradients_for_step="never", compute_gradients="always", norm_group=False,
        # parallel/tensor_parallel/functional.py: "allgather" and, in backward, "allgather2" of its MemoryBuffer.
        sequence_workspaces=2,
        reserved_factor=RESERVED.value, reserved_factor_tp=RESERVED.value, spread_low=0.15, spread_high=0.12,
    ),
    state_dtypes=MIXED_PRECISION,  # nanotron config: accumulate_grad_in_fp32 true
    # nanotron/config/parallelism_config.py: recompute_layer False; ring attention.
    strategy=StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.P2P, selective_modules=("core_attn",)),
    choices=Choices(
        zero=(0, 1),
        schedules=(Schedule.ONE_F_ONE_B, Schedule.GPIPE),
        cp_comms=(CpComm.P2P,),
        dispatchers=(MoeDispatcher.ALLTOALL,),
        without_precisions=frozenset({"fp8", "nvfp4"}), selective_recompute=False, recompute_counts=False, offload=False,
    ),
    splits=SplitRule("nanotron", _own_split, can_leave_stages_empty=True),
    # nanotron/config/config.py: optimizer.zero_stage has no default.
    habits={"zero": Habit(1, "nanotron's examples say zero_stage 1; its configuration has no default.")},
    knobs=(
        Flag(
            "model.ddp_bucket_cap_mb", "size of a gradient bucket", "MB", always(25.0),
            lambda strategy: strategy["zero"] == 0 and strategy["dp"] > 1,
            "nanotron/trainer.py (init_model; with ZeRO-1 and fp32 accumulation it wraps nothing in buckets)",
        ),
    ),
    former=(
        # nanotron/parallel/tensor_parallel/functional.py: gathered inputs of column-parallel products stayed saved until
        # tp_recompute_allgather, true by default, came in July 2024.
        Former({"keeps_gathered_norms": True}, until_month="2024-07"),
    ),
)  # fmt: skip
