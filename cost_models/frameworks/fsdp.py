"""PyTorch's FSDP around Hugging Face's modules, as accelerate and transformers' Trainer set it up. Versions are PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models.frameworks.choices import Choices, StrategyDefaults
from cost_models.frameworks.facts import REPLICA_OVERLAPS, TORCH_LAYER_KERNELS, FrameworkFacts, LayerRuntimes
from cost_models.frameworks.releases import Former
from cost_models.frameworks.torchtitan import FSDP_HOST, WHOLE_OFFLOAD
from cost_models.frameworks.torchtitan import MEMORY as TORCHTITAN_MEMORY
from cost_models.frameworks.training_defaults import (
    COMPUTE,
    FA1_IN_TORCH,
    HOPPER_ON,
    PARAM,
    SDPA_ON_VOLTA,
    Row,
    StateDtypes,
)
from cost_models.specs.adapter import ADAPTER_FEATURES
from cost_models.specs.recurrent import RECURRENT_KINDS
from cost_models.strategies.fields import CpComm, MoeDispatcher, Recompute, Schedule

# Checked: 1.12 to 2.6 by PyTorch's table of versions. 2.8 on are not checked beyond memory of the release notes.
RELEASES: Final = (
    ("1.12", "2022-06"), ("2.0", "2023-03"), ("2.1", "2023-10"), ("2.4", "2024-07"), ("2.6", "2025-01"),
    ("2.8", "2025-08"), ("2.11", "2026-03"), ("2.13", "2026-07"),
)  # fmt: skip
HYBRID_SHARD_SINCE = "2.0"
"""ShardingStrategy.HYBRID_SHARD, with process groups of any size."""
EXPERT_PARALLEL_SINCE = "2026-11"
"""Month of transformers 5.23, whose experts can be split over the ranks of FSDP2 (DistributedConfig.ep_size)."""
_CUDNN = Row("cudnn", since_version="2.11", generations=HOPPER_ON)

MEMORY: Final = replace(
    TORCHTITAN_MEMORY, ends_stay_gathered=True, optimizer_copies=0.0,
    buffers_pipeline_inputs=False, spread_low=0.10, spread_high=0.10,
)  # fmt: skip

# peft around Hugging Face's modules. bitsandbytes' NF4 can be stored in a floating-point type that is sharded like any other
# (Linear4bit, quant_storage); its 8-bit weights cannot.
CHOICES: Final = Choices(
    towers=True, adapters=True, adapter_features=frozenset(ADAPTER_FEATURES),
    quantized_bases=frozenset({"nf4", "int8"}), sharded_bases=frozenset({"nf4"}),
    zero=(0, 2, 3),
    schedules=(Schedule.ONE_F_ONE_B,),
    cp_comms=(CpComm.P2P, CpComm.ALLGATHER),
    dispatchers=(MoeDispatcher.ALLTOALL,),
    # transformers' modules: models/nemotron_h, jamba, qwen3_next, lfm2 and falcon_h1.
    recurrent=frozenset(RECURRENT_KINDS), recurrent_beside_attention=True,
    nearest=("torchtitan", "megatron"), pipelines=False, without_precisions=frozenset({"nvfp4"}), eight_bit_adam=True, selective_recompute=False,
    recompute_counts=False, tp_overlap=False,
    # Hooks of DistributedDataParallel (torch/distributed/algorithms/ddp_comm_hooks), and BlueFog and BytePS, which wrap it.
    syncs=frozenset({"local-sgd", "gossip", "parameter-server"}), compressions=frozenset({"fp16", "bf16", "powersgd"}),
)  # fmt: skip

FACTS: Final = FrameworkFacts(
    name="fsdp",
    releases=RELEASES,
    default_version="2.11",
    fused_elementwise=False,
    default_zero=3,
    default_sequence_parallel=True,
    overlaps=REPLICA_OVERLAPS,
    gradient_accumulation_bytes=10.0,
    kernels_forward=TORCH_LAYER_KERNELS[0],
    kernels_backward=TORCH_LAYER_KERNELS[1],
    wraps_layers=True,
    copies_units=True,
    # Steps of 64 tokens, which the host decides, against the profile of their machine: 0.80 to 1.19 in five runs of FSDP2 that train
    # everything (data/measured_h200/hugging_face_runs.jsonl, host_step_s). No engine or schedule stands around such a loop.
    host_step_ratio=1.05,
    # DistributedDataParallel: 5.0 and 7.0 ms a Llama layer where plain ones take 4.2 and 4.9 (data/measured_h200, host_layers).
    hooked_host_ratio=1.3,
    # accelerate runs fp32 parameters under autocast where nothing shards them (accelerator.py, prepare_model).
    layer_runtimes=LayerRuntimes(sharded=("fsdp2",), hooked=("ddp",), nothing=("autocast",)),
    hooks_when_reducing=True,  # torch/nn/parallel/distributed.py (no_sync), reducer.cpp (autograd_hook)
    copies_around_gathers=True,
    keeps_gathered_norms=True,
    selective_alternates=True,
    selective_repeats_attention=0.0,
    selective_repeats_elementwise=1.0,
    separate_gate_projection=True,
    layerwise_from_zero=2,
    # accelerate/accelerator.py (accumulate, no_sync) unless sync_each_batch, and transformers' Trainer through it.
    accumulates_unreduced=frozenset({"transformers", "liger"}),
    fp8_gather_recipes=frozenset({"tensorwise"}),
    fp8_gather_source="accelerate's default for torchao (AORecipeKwargs.enable_fsdp_float8_all_gather)",
    # Operators of a Qwen3-MoE layer on two ranks with ep 2 over those with ep 1, transformers 5.24, counted by a
    # TorchDispatchMode without views: 34 more in forward, 20 in backward.
    exchange_kernels=(34.0, 20.0),
    splits_experts_at_loading=True,  # transformers/distributed/expert_parallel.py (AllToAllEP)
    groups_hold_context=True,
    shard_group_stages=frozenset({1, 2, 3}),
    expert_shard_group_stages=frozenset({1, 2, 3}),
    host=FSDP_HOST,
    memory=MEMORY,
    # FSDP MixedPrecision: reduce_dtype is param_dtype unless given.
    state_dtypes=StateDtypes(
        param_dtype="fp32", main_param_dtype="none", grad_dtype=PARAM, grad_reduce_dtype=COMPUTE,
        stated_grad_is_reduced=True,
    ),
    model_impl="transformers",
    training_defaults={
        "attention_kernel": (SDPA_ON_VOLTA, FA1_IN_TORCH, _CUDNN, Row("sdpa")),
        "fp8_recipe": (Row("tensorwise"),),
    },
    # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention): cuDNN's first on Hopper and
    # Blackwell where cuDNN is newer than 9.15; PyTorch's wheels carry 9.10 up to 2.10 and 9.19 from 2.11. Seen on an H100.
    sdpa_kernels=(_CUDNN, Row("sdpa")),
    # accelerate/parallelism_config.py: cp_comm_strategy "allgather".
    strategy=StrategyDefaults(recompute=Recompute.NONE, cp_comm=CpComm.ALLGATHER, fallback_offload=WHOLE_OFFLOAD),
    choices=CHOICES,
    former=(
        # torch/distributed/fsdp/_fully_shard came with 2.4; FSDP1 gathers into the flat tensor that its parameters are views of.
        Former({"copies_units": False}, until="2.4"),
        # transformers/training_args.py: adamw_torch_fused is the default with PyTorch 2.8 or later, foreach's AdamW before.
        Former({"memory": replace(MEMORY, optimizer_copies=1.0)}, until="2.8"),
        # accelerate/utils/dataclasses.py: AORecipeKwargs has the switch, on by default, from 1.13 (2026-03).
        Former({"fp8_gather_recipes": frozenset()}, until_month="2026-03"),
        # transformers 5.23 (2026-11-13, the first with replicas of it and with gradients that wait for the last micro-batch) splits
        # experts over ranks (distributed/expert_parallel.py, fsdp.py, trainer.py); 5.19 (2026-10-06) has it without these two.
        Former({"choices": replace(CHOICES, dispatchers=())}, until_month=EXPERT_PARALLEL_SINCE),
        Former(
            {"shard_group_stages": frozenset(), "expert_shard_group_stages": frozenset()}, until=HYBRID_SHARD_SINCE
        ),
    ),
)  # fmt: skip
