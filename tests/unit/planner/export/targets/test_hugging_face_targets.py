"""DeepSpeed, Accelerate and transformers' Trainer: what a plan's files say, and what the targets refuse."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
from typing import Any

import pytest
import yaml

from planner.export.launch_plan import launch_plan
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.target import Launch
from planner.export.targets import TARGETS

FSDP, DEEPSPEED = "fsdp", "deepspeed"
SPLIT_EXPERTS: dict[str, Any] = {"model": "qwen3-30b-a3b", "zero": 3, "training": {"software_date": "2026-11"}}


def written(
    target: str,
    framework: str,
    *,
    training: dict[str, Any] | None = None,
    gpus: int = 8,
    model: str = "llama-3.1-8b",
    nodes: int = 1,
    host_memory_gib: float | None = None,
    **strategy: Any,
) -> Launch:
    row = {
        "model": {"preset": model},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": nodes, "gpus_per_node": gpus,
                    **({"host_memory_gib": host_memory_gib} if host_memory_gib else {})},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework, **(training or {})},
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip
    quantities = Quantities(launch_plan(row), target=target, version=TARGETS[target].versions[-1])
    launch = TARGETS[target].write(quantities)
    quantities.finish()
    return launch


def document(launch: Launch, name: str) -> Any:
    content = next(file.content for file in launch.files if file.path == name)
    return yaml.safe_load(content) if name.endswith(".yaml") else json.loads(content)


def test_a_stage_3_plan_in_deepspeeds_json():
    launch = written("deepspeed", DEEPSPEED, recompute="full", offload={"optimizer_fraction": 0.5, "parameters": True})
    config = document(launch, "ds_config.json")
    assert (
        config["train_batch_size"]
        == config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 8
    )
    assert config["gradient_accumulation_steps"] == 8
    zero = config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["overlap_comm"] is True
    assert zero["offload_optimizer"] == {"device": "cpu", "ratio": 0.5}
    assert zero["offload_param"] == {"device": "cpu"}
    assert config["bf16"] == {"enabled": True}
    assert config["data_types"] == {"grad_accum_dtype": "bf16"}
    train = document(launch, "train.json")
    assert train["gradient_checkpointing"] is True
    assert train["seq_length"] == 4096
    assert train["world_size"] == 8
    assert train["attn_implementation"] == "flash_attention_2"


def test_a_pipeline_of_deepspeed():
    config = document(
        written(
            "deepspeed", DEEPSPEED, zero=1, pp=4, recompute="full", recompute_method="uniform", recompute_num_layers=2
        ),
        "ds_config.json",
    )
    assert config["pipeline"] == {"stages": 4, "partition": "type:layer", "activation_checkpoint_interval": 2}
    # 64 sequences over 2 replicas of micro-batches of one.
    assert config["gradient_accumulation_steps"] == 32


def test_degrees_of_deepspeed():
    split = document(written("deepspeed", DEEPSPEED, zero=2, tp=2), "ds_config.json")
    assert split["tensor_parallel"] == {"autotp_size": 2, "tp_overlap_comm": False}
    assert split["gradient_accumulation_steps"] == 16
    assert document(written("deepspeed", DEEPSPEED, cp=4), "ds_config.json")["sequence_parallel_size"] == 4


def test_types_of_deepspeed():
    config = document(
        written("deepspeed", DEEPSPEED, training={"grad_dtype": "fp32", "precision": "fp16"}), "ds_config.json"
    )
    assert config["fp16"] == {"enabled": True}
    assert "bf16" not in config
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["communication_data_type"] == "fp32"


def test_fsdp_in_accelerates_yaml():
    launch = written("accelerate", FSDP, zero=2, zero_shard_size=4, recompute="full")
    config = document(launch, "accelerate.yaml")
    assert config["distributed_type"] == "FSDP"
    assert config["mixed_precision"] == "bf16"
    assert config["num_processes"] == 8
    assert config["fsdp_config"]["fsdp_version"] == 2
    assert config["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert config["fsdp_config"]["fsdp_activation_checkpointing"] is True
    mesh = config["parallelism_config"]
    assert (mesh["parallelism_config_dp_replicate_size"], mesh["parallelism_config_dp_shard_size"]) == (2, 4)
    assert launch.runner == "accelerate"
    train = document(launch, "train.json")
    assert (train["dtype"], train["reduce_dtype"], train["optim"]) == ("fp32", "bf16", "adamw_torch_fused")
    assert train["sync_each_batch"] is False


def test_context_parallelism_of_accelerate():
    config = document(written("accelerate", FSDP, cp=2, cp_comm="p2p"), "accelerate.yaml")
    mesh = config["parallelism_config"]
    sizes = [mesh[f"parallelism_config_{part}_size"] for part in ("dp_replicate", "dp_shard", "cp", "tp", "sp")]
    assert sizes == [1, 4, 2, 1, 1]
    assert mesh["parallelism_config_cp_comm_strategy"] == "alltoall"


def test_deepspeed_through_accelerate_and_the_trainer():
    for target, name in (("accelerate", "accelerate.yaml"), ("transformers", "training_args.json")):
        launch = written(target, DEEPSPEED, zero=2, offload={"optimizer_fraction": 1.0})
        assert document(launch, "ds_config.json") == document(
            written("deepspeed", DEEPSPEED, zero=2, offload={"optimizer_fraction": 1.0}), "ds_config.json"
        )
        assert "ds_config.json" in json.dumps(document(launch, name))


def test_accelerate_starts_deepspeeds_nodes_without_a_hostfile():
    """utils/launch.py of 1.15, prepare_deepspeed_cmd_env: several nodes take `deepspeed --hostfile` unless the launcher is "standard"."""
    for nodes, launcher in ((1, None), (2, "standard")):
        document_ = document(written("accelerate", DEEPSPEED, zero=2, nodes=nodes), "accelerate.yaml")
        assert document_["deepspeed_config"].get("deepspeed_multinode_launcher") == launcher
    assert "deepspeed_config" not in document(written("accelerate", FSDP, zero=3, nodes=2), "accelerate.yaml")


def test_experts_that_stay_together_can_be_said_for_fsdp():
    for target in ("accelerate", "transformers", "pytorch"):
        launch = written(target, FSDP, model="mixtral-8x7b", zero=3, grad_sync="each")
        assert document(launch, "config.json")["num_local_experts"] == 8


def test_experts_that_ranks_share_are_split_while_the_model_is_loaded():
    """Two replicas of four ranks: `DistributedConfig` has fields of these names, and its Trainer then knows nothing of FSDP."""
    distributed = pytest.importorskip("transformers.distributed")
    training = {"software_date": "2026-11", "grad_reduce_dtype": "fp32"}
    launch = written(
        "transformers", FSDP, model="qwen3-30b-a3b", training=training, ep=4, zero_shard_size=4, recompute="full"
    )
    asked = document(launch, "train.json")["distributed_config"]
    config = distributed.DistributedConfig(**asked)
    assert (config.ep_size, config.fsdp_size, config.dp_replicate_size, config.tp_size) == (4, 4, 2, 1)
    assert (config.fsdp_mixed_precision, config.fsdp_cpu_offload) == (True, False)
    arguments = document(launch, "training_args.json")
    assert arguments["gradient_checkpointing"] is True
    assert not {"fsdp", "fsdp_config", "bf16"} & set(arguments)


def test_the_trainers_arguments():
    arguments = document(
        written("transformers", FSDP, recompute="full", offload={"optimizer_fraction": 1.0, "parameters": True}),
        "training_args.json",
    )
    assert arguments["fsdp"] is True
    assert arguments["fsdp_config"]["cpu_offload"] is True
    assert arguments["fsdp_config"]["activation_checkpointing"] is True
    assert arguments["gradient_checkpointing"] is False
    assert arguments["bf16"] is True
    assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] * 8 == 64


def test_the_trainer_has_every_argument():
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: its arguments cannot be asked"
    )
    known = set(transformers.TrainingArguments.__dataclass_fields__)
    for launch in (
        written("transformers", FSDP),
        written("transformers", DEEPSPEED),
        written("transformers", FSDP, zero=0),
    ):
        assert set(document(launch, "training_args.json")) <= known


def test_ligers_kernels_and_its_loss_alone():
    whole = document(written("transformers", FSDP, training={"model_impl": "liger"}), "training_args.json")
    assert whole["use_liger_kernel"] is True
    assert whole["liger_kernel_config"] == {"cross_entropy": False, "fused_linear_cross_entropy": True}
    alone = document(written("transformers", FSDP, training={"cross_entropy": "linear"}), "training_args.json")
    assert alone["liger_kernel_config"]["rms_norm"] is False
    assert alone["liger_kernel_config"]["fused_linear_cross_entropy"] is True


def test_adapters_are_pefts_own_file():
    launch = written(
        "accelerate",
        FSDP,
        training={"adapter": {"rank": 8, "target_modules": ["q_proj", "v_proj"], "quantized_base": "nf4"}},
    )
    adapter = document(launch, "adapter_config.json")
    assert (adapter["peft_type"], adapter["r"], adapter["target_modules"]) == ("LORA", 8, ["q_proj", "v_proj"])
    assert document(launch, "train.json")["quantized_base"] == "nf4"


@pytest.mark.parametrize("target", ["accelerate", "transformers"])
def test_what_models_need_of_the_host_before_they_are_sharded_is_said(target: str):
    """Llama 3.1 8B has 8,030,261,248 parameters: 15.0 GiB in bf16 as an adapter's base, so that 8 processes hold 120 GiB."""
    adapter = {"adapter": {"rank": 8}}
    for memory, told in (
        (None, "8 x 15.0 GiB on a node."),
        (128.0, "8 x 15.0 GiB on a node."),
        (100.0, "8 x 15.0 GiB on a node, more than its 100 GiB."),
    ):
        notes = written(target, FSDP, zero=3, training=adapter, host_memory_gib=memory).notes
        assert notes[-1] == f"Every process makes the whole base in host memory before FSDP2 shards it: {told}"
    # Weights that nobody writes take no memory there, and neither replicas nor DeepSpeed's models are made there.
    for framework, zero, training in ((FSDP, 3, {}), (FSDP, 0, adapter), (DEEPSPEED, 3, adapter)):
        assert "host memory" not in " ".join(written(target, framework, zero=zero, training=training).notes)


@pytest.mark.parametrize(
    ("training", "packages"),
    [
        ({}, None),
        ({"attention_kernel": "fa2"}, "flash-attn"),
        ({"model_impl": "liger"}, "liger-kernel"),
        (
            {"attention_kernel": "fa2", "adapter": {"rank": 8, "quantized_base": "nf4"}},
            "flash-attn, peft and bitsandbytes",
        ),
    ],
)
def test_what_else_to_install_is_said(training: dict[str, Any], packages: str | None):
    notes = " ".join(written("accelerate", FSDP, zero=0, training=training).notes)
    assert (f"This plan also needs {packages}." in notes) if packages else ("also needs" not in notes)


def test_frozen_parts_and_the_allocator():
    launch = written("deepspeed", DEEPSPEED, training={"frozen": ["embedding"], "expandable_segments": True})
    assert document(launch, "train.json")["freeze"] == ["embedding"]
    assert [(each.name, each.value) for each in launch.variables] == [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    ]


@pytest.mark.parametrize(
    ("target", "framework", "field", "given"),
    [
        ("accelerate", FSDP, "tp", {"tp": 2, "sequence_parallel": False}),
        ("accelerate", DEEPSPEED, "pp", {"zero": 1, "pp": 2}),
        ("transformers", FSDP, "zero_shard_size", {"zero_shard_size": 4}),
        ("transformers", FSDP, "cp", {"cp": 2}),
        ("transformers", FSDP, "offload.activation_layers", {"recompute": "full", "offload": {"activation_layers": 32}}),
        ("accelerate", FSDP, "ep", {"ep": 4, **SPLIT_EXPERTS}),
        ("pytorch", FSDP, "ep", {"ep": 4, **SPLIT_EXPERTS}),
        ("transformers", FSDP, "training.grad_reduce_dtype", {"ep": 4, **SPLIT_EXPERTS}),
        ("deepspeed", DEEPSPEED, "ep", {"zero": 2, "ep": 2, "model": "qwen3-30b-a3b", "training": {"framework_version": "0.18"}}),
        ("deepspeed", DEEPSPEED, "training.cuda_graphs", {"training": {"cuda_graphs": True}}),
        ("deepspeed", DEEPSPEED, "training.dropout", {"training": {"dropout": 0.1}}),
        ("deepspeed", DEEPSPEED, "training.param_dtype", {"training": {"param_dtype": "fp32"}}),
        ("deepspeed", DEEPSPEED, "training.precision", {"training": {"precision": "fp8"}}),
        ("deepspeed", DEEPSPEED, "training.model_impl", {"training": {"model_impl": "native"}}),
        ("deepspeed", DEEPSPEED, "training.cross_entropy", {"training": {"cross_entropy": "te"}}),
        ("deepspeed", DEEPSPEED, "training.attention_kernel", {"training": {"attention_kernel": "fa1"}}),
        ("deepspeed", DEEPSPEED, "offload.activation_layers", {"recompute": "full", "offload": {"activation_layers": 3}}),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_with_its_field(target: str, framework: str, field: str, given: dict[str, Any]):
    with pytest.raises(FieldNotExpressibleError) as refused:
        written(target, framework, **given)
    assert refused.value.context["field"] == field
    assert refused.value.context["target"] == target
    assert refused.value.context["nearest"]


@pytest.mark.parametrize(
    ("target", "framework"), [("deepspeed", DEEPSPEED), ("accelerate", FSDP), ("transformers", FSDP)]
)  # fmt: skip
def test_scripts_are_python_and_the_same_for_every_plan(target: str, framework: str):
    first, second = written(target, framework), written(target, framework, zero=2, model="qwen3-8b")
    for name in ("train.py", "hf_model.py"):
        content = [file.content for launch in (first, second) for file in launch.files if file.path == name]
        assert content[0] == content[1]
        ast.parse(content[0])


@pytest.mark.parametrize(
    ("deepspeed", "fsdp", "place"),
    [
        ({"zero_optimization": {"stage": 3}}, None, None),
        ({"zero_optimization": {"stage": 2}}, None, "cuda:1"),
        (None, True, "cpu"),
        (None, None, "cuda:1"),
    ],
)
def test_the_trainers_model_is_made_where_it_fits(
    deepspeed: dict[str, Any] | None, fsdp: bool | None, place: str | None
):
    """Only stage 3 makes a model in shards; made on the host, one of 3.6 billion parameters takes a thread minutes."""
    torch = pytest.importorskip("torch")
    script = next(file.content for file in written("transformers", FSDP).files if file.path == "train.py")
    program = ast.parse(script)
    program.body = [
        part for part in program.body if isinstance(part, ast.FunctionDef) and part.name == "place_of_model"
    ]
    names: dict[str, Any] = {"torch": torch, "contextlib": contextlib}
    exec(compile(program, "train.py", "exec"), names)
    found = names["place_of_model"](argparse.Namespace(deepspeed=deepspeed, fsdp=fsdp), torch.device("cuda:1"))
    assert found == torch.device(place) if place else isinstance(found, contextlib.nullcontext)
