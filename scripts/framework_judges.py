"""Asks the configuration classes of megatron-core, DeepSpeed, torchtitan and accelerate whether they accept a plan.

Each `ask_…` builds what a launch would build before it touches a GPU, and raises whatever the framework raises. What no class can
know without GPUs is listed in `SEEN_LATER` with the place that refuses it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cost_models.job import Job

VERSIONS: Mapping[str, str] = {"megatron": "0.16.1", "deepspeed": "0.19.8", "torchtitan": "0.3", "fsdp": "2.13"}
"""The releases whose classes are asked; for fsdp these are accelerate's, on this release of PyTorch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One drawn plan: the job, the strategy as given with every degree filled in, and the rules that it breaks."""

    job: Job
    given: Mapping[str, Any]
    codes: tuple[str, ...]

    @property
    def world(self) -> int:
        """Ranks that a launcher would start: as many as the plan needs, up to the number of GPUs."""
        needed = self.given["tp"] * self.given["pp"] * self.given["cp"] * self.given["dp"]
        return min(int(needed), self.job.cluster.num_gpus)


def ask_megatron(plan: Plan) -> None:
    """Builds megatron-core's process groups, micro-batch calculator and TransformerConfig; raises if one of them refuses."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    given, model, moe = plan.given, plan.job.model, plan.job.model.moe
    dp_cp, shard = given["dp"] * given["cp"], given.get("zero_shard_size")
    instances = dp_cp / shard if shard and given["zero"] >= 1 else 1
    with ranks(plan.world):
        try:
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=given["tp"], pipeline_model_parallel_size=given["pp"],
                virtual_pipeline_model_parallel_size=given["vpp"] if given["vpp"] > 1 else None,
                context_parallel_size=given["cp"], expert_model_parallel_size=given["ep"],
                expert_tensor_parallel_size=given["etp"], create_gloo_process_groups=False,
                num_distributed_optimizer_instances=_whole(instances),
            )  # fmt: skip
        finally:
            parallel_state.destroy_model_parallel()
    # In the order of a launch: Megatron makes its groups first, and what they refuse is never seen by the later checks.
    batch = plan.job.training.global_batch_size
    ConstantNumMicroBatchesCalculator(batch, given["micro_batch_size"], given["dp"], False, 0)
    full, selective = given["recompute"] == "full", given["recompute"] == "selective"
    config = TransformerConfig(
        num_layers=model.num_layers, hidden_size=model.hidden_size, num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads, kv_channels=model.head_dim, ffn_hidden_size=model.intermediate_size or None,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, bias_activation_fusion=False,
        bf16=True, pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=given["tp"],
        pipeline_model_parallel_size=given["pp"], context_parallel_size=given["cp"],
        virtual_pipeline_model_parallel_size=given["vpp"] if given["vpp"] > 1 else None,
        expert_model_parallel_size=given["ep"], expert_tensor_parallel_size=given["etp"],
        sequence_parallel=given["sequence_parallel"], num_moe_experts=moe.num_experts if moe else None,
        moe_ffn_hidden_size=moe.expert_intermediate_size if moe else None, moe_token_dispatcher_type="alltoall",  # noqa: S106
        recompute_granularity=None if given["recompute"] == "none" else given["recompute"],
        recompute_method=given.get("recompute_method", "uniform") if full else None,
        recompute_num_layers=given.get("recompute_num_layers", 1) if full else None,
        recompute_modules=["core_attn"] if selective else None,
    )  # fmt: skip
    for rank in range(given["pp"]):
        for chunk in range(given["vpp"]):
            get_num_layers_to_build(config, vp_stage=chunk if given["vpp"] > 1 else None, pp_rank=rank)


def ask_deepspeed(plan: Plan) -> None:
    """Builds a DeepSpeedConfig and runs AutoEP's validation; raises if one of them refuses."""
    # Before the import: DeepSpeed looks for an accelerator then, and fails where it finds none.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed import comm
    from deepspeed.module_inject.auto_ep_config import (
        AutoEPConfig,
        validate_autoep_config,
        validate_autoep_post_detection,
    )
    from deepspeed.runtime.config import DeepSpeedConfig

    given, moe = plan.given, plan.job.model.moe
    if given["vpp"] > 1 or given["recompute"] == "selective" or given.get("recompute_method") == "block":
        raise CannotBeSpelledError("virtual stages, selective and block recompute have no key")
    shard = given.get("zero_shard_size")
    partial = shard not in (None, given["dp"] * given["cp"]) and given["zero"] >= 1
    config = {
        "train_batch_size": plan.job.training.global_batch_size,
        "train_micro_batch_size_per_gpu": given["micro_batch_size"], "bf16": {"enabled": True},
        "tensor_parallel": {"autotp_size": given["tp"]},
        "zero_optimization": {"stage": given["zero"], **({"mics_shard_size": shard} if partial else {})},
    }  # fmt: skip
    with ranks(plan.world):
        comm.init_distributed(dist_backend="gloo", verbose=False, auto_mpi_discovery=False)
        replicas = plan.world / (given["tp"] * given["pp"] * given["cp"])
        DeepSpeedConfig(config, mpu=SimpleNamespace(get_data_parallel_world_size=lambda: replicas))
    if given["ep"] > 1:
        expert = AutoEPConfig(enabled=True, autoep_size=given["ep"], expert_tensor_parallel_size=given["etp"])
        validate_autoep_config(expert, plan.world, given["pp"], given["tp"], given["cp"], zero_stage=given["zero"])
        spec = SimpleNamespace(
            num_experts=moe.num_experts if moe else 0, moe_module_name="moe", score_apply="post",
            num_expert_groups=None, num_limited_groups=None,
        )  # fmt: skip
        validate_autoep_post_detection(expert, [spec])


def ask_torchtitan(plan: Plan) -> None:
    """Builds torchtitan's ParallelDims with its meshes, Trainer.Config, the model's config and the schedule; raises if one refuses."""
    from torchtitan.config import ParallelismConfig, TrainingConfig
    from torchtitan.distributed import parallel_dims, pipeline_parallel
    from torchtitan.trainer import Trainer

    given, batch = plan.given, plan.job.training.global_batch_size
    if given["zero"] == 1 or (given["etp"] > 1 and given["ep"] > 1) or _counted(given):
        raise CannotBeSpelledError("ZeRO-1, expert tensor parallelism and recompute counts have no field")
    shard = given.get("zero_shard_size", given["dp"] * given["cp"]) if given["zero"] else given["cp"]
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=_whole(given["dp"] * given["cp"] / shard),
        data_parallel_shard_degree=_whole(shard / given["cp"]), tensor_parallel_degree=given["tp"],
        enable_sequence_parallel=given["sequence_parallel"], pipeline_parallel_degree=given["pp"],
        context_parallel_degree=given["cp"], expert_parallel_degree=given["ep"],
        pipeline_parallel_microbatch_size=given["micro_batch_size"], pipeline_parallel_schedule=SCHEDULES[_schedule(given)],
    )  # fmt: skip
    parallel_dims.device_type = "cpu"
    with ranks(plan.world):
        parallel_dims.ParallelDims.from_config(parallelism, plan.world).build_mesh()
    local = _whole(batch / given["dp"]) if given["pp"] > 1 else given["micro_batch_size"]
    config = Trainer.Config(
        parallelism=parallelism,
        training=TrainingConfig(
            local_batch_size=local, global_batch_size=batch, seq_len=plan.job.training.seq_length,
            disable_cuda_graphs=True,
        ),
    )  # fmt: skip
    config_of_model = _titan_model(plan)
    config_of_model.update_from_config(config=config)
    if given["pp"] > 1:
        chunks, layers = given["pp"] * given["vpp"], plan.job.model.num_layers
        # torchtitan counts embedding and output layer as layers of the first and last stage (`*_less_layers`). We spell plans without
        # them if layers divide evenly.
        weight = 0 if layers % chunks == 0 else 1
        per_stage = math.ceil((layers + 2 * weight) / chunks)
        if math.ceil((layers + 2 * weight) / per_stage) == chunks:  # else it is spelled by module names
            parallelism.pipeline_parallel_layers_per_stage = per_stage
            parallelism.pipeline_parallel_first_stage_less_layers = weight
            parallelism.pipeline_parallel_last_stage_less_layers = weight
            dims = SimpleNamespace(pp=given["pp"])
            pipeline_parallel._get_pipeline_metadata(dims, parallelism, config_of_model)  # noqa: SLF001
        pipeline_parallel._generate_llm_fqn_per_model_part(chunks, layers, weight, weight)  # noqa: SLF001
        stages = [_stage(given, chunk) for chunk in range(given["vpp"])]
        pipeline_parallel._build_pipeline_schedule(  # noqa: SLF001 - the only place that makes the schedule
            parallelism=parallelism, local_batch_size=local, stages=stages, loss_fn=lambda *_: None
        )
    elif given["vpp"] > 1:
        raise CannotBeSpelledError("virtual stages exist only in pipelines")


SCHEDULES = {
    "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}  # fmt: skip


def _schedule(given: Mapping[str, Any]) -> str:
    return str(given.get("schedule") or ("interleaved" if given["vpp"] > 1 else "1f1b"))


def _stage(given: Mapping[str, Any], chunk: int) -> Any:
    """The attributes of a stage that the constructor of a schedule reads."""
    return SimpleNamespace(
        is_first=chunk == 0, is_last=chunk == given["vpp"] - 1, num_stages=given["pp"] * given["vpp"],
        group_size=given["pp"], group_rank=0, stage_index=chunk * given["pp"], group=None, submod=None, device="cpu",
        stage_index_to_group_rank={}, dw_builder=None, has_backward=True,
    )  # fmt: skip


def _titan_model(plan: Plan) -> Any:
    from torchtitan.models.common.rope import ComplexRoPE
    from torchtitan.models.llama3 import _build_llama3_layers, llama3_configs

    model = plan.job.model
    config = llama3_configs["debugmodel"](attn_backend="flex", tp_gemm_backend="default")
    layers = _build_llama3_layers(
        fuse_qkv=False, n_layers=model.num_layers, dim=model.hidden_size, n_heads=model.num_attention_heads,
        n_kv_heads=model.num_key_value_heads, hidden_dim=model.intermediate_size or 1024,
        rope=ComplexRoPE.Config(dim=model.head_dim, max_seq_len=131072, theta=500000, scaling="llama"),
        attn_backend="flex", tp_gemm_backend="default",
    )  # fmt: skip
    config.layers, config.enable_weight_tying = layers, model.tie_word_embeddings
    return config


def ask_fsdp(plan: Plan) -> None:
    """Builds accelerate's ParallelismConfig for FSDP2; raises if it refuses."""
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DistributedType

    given = plan.given
    if given["zero"] == 1 or given["recompute"] == "selective" or _counted(given):
        raise CannotBeSpelledError("ZeRO-1, selective recompute and recompute counts have no key")
    unknown = {f"{name}_size": given[name] for name in ("pp", "ep", "vpp") if given[name] > 1}
    shard = given.get("zero_shard_size", given["dp"] * given["cp"]) if given["zero"] else given["cp"]
    config = ParallelismConfig(
        dp_replicate_size=_whole(given["dp"] * given["cp"] / shard), dp_shard_size=_whole(shard / given["cp"]),
        tp_size=given["tp"], cp_size=given["cp"], **unknown,
    )  # fmt: skip
    accelerator = SimpleNamespace(
        multi_device=plan.world > 1, num_processes=plan.world, is_fsdp2=given["zero"] > 0 and shard > 1, is_main_process=False,
        distributed_type=DistributedType.FSDP,
    )  # fmt: skip
    if plan.world > 1:
        config._validate_accelerator(accelerator)  # noqa: SLF001 - what Accelerator.__init__ calls


def _counted(given: Mapping[str, Any]) -> bool:
    """Whether recomputation covers anything but every layer, each on its own."""
    return given.get("recompute_method") == "block" or given.get("recompute_num_layers", 1) > 1


class CannotBeSpelledError(Exception):
    """The framework's configuration has no field for it."""


def _whole(number: float) -> int:
    if number != int(number) or number < 1:
        raise CannotBeSpelledError(f"a degree of {number}")
    return int(number)


class ranks:  # noqa: N801 - reads as a word where it is used
    """A process group of this many ranks that transfers nothing.

    The frameworks only ask it for sizes and ranks, which PyTorch's own fake group answers in a single process.
    """

    def __init__(self, world: int) -> None:
        self.world = world

    def __enter__(self) -> None:
        """Starts the group."""
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=self.world)

    def __exit__(self, *_: object) -> None:
        """Ends the group."""
        import torch.distributed as dist

        dist.destroy_process_group()


ASK: Mapping[str, Callable[[Plan], None]] = {
    "megatron": ask_megatron,
    "deepspeed": ask_deepspeed,
    "torchtitan": ask_torchtitan,
    "fsdp": ask_fsdp,
}


SEEN_LATER: Mapping[str, Mapping[str, str]] = {
    "megatron": {
        "world-exceeds-gpus": "dp is not told to it: on the GPUs there are it runs a smaller one",
        "mlp-not-divisible": "divide() when the layers are built (core/tensor_parallel/layers.py)",
        "expert-mlp-not-divisible": "divide() when the experts are built (core/transformer/moe/experts.py)",
        "experts-not-divisible": "assertion when the MoE layer is built (core/transformer/moe/moe_layer.py)",
        "sequence-not-divisible": "when a batch is cut (core/utils.py, get_batch_on_this_cp_rank)",
        "interleaving-needs-micro-batches": "when the step starts (core/pipeline_parallel/schedules.py)",
        "moe-needs-sequence-parallel": "the training script (megatron/training/arguments.py, not in the wheel)",
        "zero-shard-size-not-divisible": "zero 0: no such option is given, ours refuses the contradiction",
    },
    "deepspeed": {
        "world-exceeds-gpus": "dp is not told to it: on the GPUs there are it runs a smaller one",
        "heads-not-divisible": "when AutoTP cuts the weights (module_inject/auto_tp.py)",
        "kv-heads-not-divisible": "when AutoTP cuts the weights (module_inject/tp_shard.py)",
        "mlp-not-divisible": "when AutoTP cuts the weights (module_inject/auto_tp.py)",
        "context-parallel-heads": "when attention is called (sequence/layer.py)",
        "sequence-not-divisible": "when a batch is cut (sequence/layer.py)",
        "zero-with-pipeline": "assertion of PipelineEngine (runtime/pipe/engine.py)",
        "layers-not-divisible": "when PipelineModule partitions (runtime/pipe/module.py)",
        "zero-shard-size-not-divisible": "zero 0: no such option is given, ours refuses the contradiction",
        "experts-missing": "AutoEP finds no MoE layer and does nothing",
    },
    "torchtitan": {
        "batch-not-divisible": "Trainer.__init__, which needs GPUs (trainer.py)",
        "sequence-not-divisible": "Trainer.__init__, which needs GPUs (trainer.py)",
        "mlp-not-divisible": "when weights become distributed tensors",
        "expert-mlp-not-divisible": "when weights become distributed tensors",
        "experts-not-divisible": "when expert weights become distributed tensors",
        "schedule-unsupported": "when a compiled or selectively checkpointed backward is split (torch.distributed.pipelining)",
        "schedule-mismatch": "stages named module by module: schedules of one stage a rank take the first (pipeline_parallel.py)",
        "experts-missing": "a mesh of a degree that nothing uses is made; the configuration says no effect",
        "zero-shard-size-not-divisible": "zero 0: no such option is given, ours refuses the contradiction",
    },
    "fsdp": {
        "batch-not-divisible": "the batch is the script's; accelerate does not know it",
        "heads-not-divisible": "when transformers cuts the weights by its tensor-parallel plan",
        "kv-heads-not-divisible": "when transformers cuts the weights by its tensor-parallel plan",
        "mlp-not-divisible": "when transformers cuts the weights by its tensor-parallel plan",
        "sequence-not-divisible": "when the context is cut (torch context_parallel)",
        "zero-shard-size-not-divisible": "zero 0: no such option is given, ours refuses the contradiction",
    },
}
"""By framework, the rules that no configuration class can know, and where the framework refuses the plan instead."""


def refusal(framework: str, plan: Plan) -> str | None:
    """What the framework's classes say against a plan; None if they accept it."""
    try:
        ASK[framework](plan)
    except Exception as error:  # noqa: BLE001 - a refusal is whatever they raise
        return f"{type(error).__name__}: {error}"
    return None
