"""Older names, launch lines and spellings that public configurations have, read into today's fields."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from planner.export.import_config import Imported, import_config
from planner.export.settings import InputFile


def imported(target: str, *files: tuple[str, str]) -> Imported:
    return import_config([InputFile(*each) for each in files], framework=target)


def field(found: Imported, name: str) -> Any:
    value: Any = found.row
    for part in name.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else value
    return None if value == {} else value


_MEGATRON = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("--checkpoint-activations", "strategy.recompute", "full"),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 4", "strategy.recompute_method", "block"),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 4", "strategy.recompute_num_layers", 4),
        ("--model-parallel-size 2", "strategy.tp", 2),
        ("--batch-size 4", "strategy.micro_batch_size", 4),
        ("--tensor_model_parallel_size 4", "strategy.tp", 4),
        ("--use_flash_attn", "training.attention_kernel", "fa2"),
        ("--use-flash-attn --transformer-impl local", "training.attention", "flash"),
        ("--attention-backend unfused --use-flash-attn", "training.attention", "math"),
        ("--position_embedding_type rotary", "model.position_embedding", "rope"),
    ],
)  # fmt: skip
def test_older_options_of_megatron(options, name, value):
    found = imported("megatron", ("run.sh", _MEGATRON + options))
    assert field(found, name) == value
    assert found.unknown == []


def test_megatron_deepspeed_leaves_the_states_to_deepspeed():
    found = imported("megatron", ("run.sh", _MEGATRON + "--micro-batch-size 1 --deepspeed --zero-stage 3"))
    assert {"/training/framework", "/strategy/zero"} <= set(found.missing)
    assert "zero" not in found.row["strategy"]


def test_options_in_a_variable_that_is_not_known_are_asked_for():
    found = imported("megatron", ("run.sh", _MEGATRON + "--bf16 --micro-batch-size 1 --global-batch-size 8 $MORE_ARGS"))
    assert {"/strategy/zero", "/strategy/recompute"} <= set(found.missing)
    assert not {"/training/precision", "/strategy/micro_batch_size"} & set(found.missing)
    assert "run.sh, line 1: what $MORE_ARGS holds is not known" in found.notes[0]
    assert [each["text"] for each in found.unknown] == ["$MORE_ARGS"]


@pytest.mark.parametrize(
    ("launch", "ranks"),
    [
        ("torchrun --nproc_per_node=4 --nnodes=2 a.py", 8),
        ("python -m torch.distributed.launch --nproc_per_node 8 a.py", 8),
        ("deepspeed --num_gpus 4 --num_nodes 2 a.py", 8),
        ("deepspeed --include localhost:0,1,2,3 a.py", 4),
        ("deepspeed --include=a:0,1@b:0,1 a.py", 4),
        ("mpirun -np 16 --bind-to none python a.py", 16),
        ("accelerate launch --num_processes 8 --num_machines 1 a.py", 8),
        ("#SBATCH --nodes=4\nsrun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES a.py", 32),
        ("#SBATCH --nodes=16 --ntasks-per-node=8\nsrun python a.py", 128),
        ("#SBATCH --nodes=2 --ntasks-per-node=1\nsrun torchrun --nproc-per-node 8 a.py", 16),
    ],
)
def test_launch_lines_say_the_ranks(launch, ranks):
    found = imported(
        "megatron", ("run.sh", f"{launch} --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1")
    )
    assert field(found, "strategy.dp") == ranks
    assert found.unknown == []


_TITAN = """[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[training]
batch_size = 2
seq_len = 8192
warmup_steps = 200
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
compile = true
[experimental]
context_parallel_degree = 1
pipeline_parallel_degree = 1
[float8]
enable_float8_linear = {float8}
"""


@pytest.mark.parametrize(("float8", "precision"), [("true", "fp8"), ("false", "bf16")])
def test_torchtitan_of_2024(float8, precision):
    found = imported("torchtitan", ("train.toml", _TITAN.format(float8=float8)))
    assert found.unknown == []
    assert (
        found.row["strategy"] | {"tp": 8, "dp": 8, "zero_shard_size": 4, "micro_batch_size": 2} == found.row["strategy"]
    )
    assert (
        found.row["training"] | {"precision": precision, "compile": True, "seq_length": 8192} == found.row["training"]
    )


@pytest.mark.parametrize("said", ['["quantize.linear.float8"]', '["float8"]', '"float8"'])
def test_torchtitans_converters_in_their_spellings(said):
    toml = f'[model]\nname = "llama3"\nflavor = "8B"\nconverters = {said}\n[parallelism]\ntensor_parallel_degree = 1\n[training]\nseq_len = 8\n'
    assert field(imported("torchtitan", ("a.toml", toml)), "training.precision") == "fp8"


def test_another_converter_of_torchtitan_is_asked_for():
    toml = '[model]\nconverters = ["bitnet"]\n[parallelism]\ntensor_parallel_degree = 1\n[training]\nseq_len = 8\n'
    found = imported("torchtitan", ("a.toml", toml))
    assert "/training/precision" in found.missing
    assert [each["line"] for each in found.unknown] == [2]


def test_nanotrons_older_optimizer_and_recomputation():
    text = "parallelism:\n  dp: 2\n  tp: 2\n  pp: 1\n  recompute_granularity: SELECTIVE\noptimizer:\n  adam_beta1: 0.9\n  torch_adam_is_fused: true\n  zero_stage: 1\n"
    found = imported(
        "nanotron", ("a.yaml", text + "tokens:\n  micro_batch_size: 2\n  batch_accumulation_per_replica: 4\n")
    )
    assert "/strategy/recompute" in found.missing
    assert [(each["line"], each["text"]) for each in found.unknown] == [
        (5, "parallelism.recompute_granularity: SELECTIVE")
    ]
    assert (field(found, "training.optimizer"), field(found, "training.global_batch_size")) == ("adam", 16)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('{"bfloat16": {"enabled": true}, "train_batch_size": 8}', "training.precision", "bf16"),
        ('{"zero_optimization": {"stage": 2, "cpu_offload": true}}', "strategy.offload.optimizer_fraction", 1.0),
        ('{"zero_optimization": {"stage": 3, "cpu_offload_params": true}}', "strategy.offload.parameters", True),
        ('{"zero_optimization": {"stage": 2, "allgather_partitions": true, "reduce_scatter": true, "sub_group_size": 1e9}}', "strategy.zero", 2),
    ],
)  # fmt: skip
def test_older_keys_of_deepspeed(text, name, value):
    found = imported("deepspeed", ("ds.json", text))
    assert field(found, name) == value
    assert found.unknown == []


def test_what_accelerate_hands_to_megatron_is_asked_for():
    text = "distributed_type: MEGATRON_LM\nnum_processes: 16\nmegatron_lm_config:\n  megatron_lm_tp_degree: 4\n"
    found = imported("accelerate", ("a.yaml", text))
    assert {"/training/framework", "/strategy/zero"} <= set(found.missing)


_TRAINER = "torchrun --nproc_per_node 4 train.py --bf16 True --per_device_train_batch_size 2 --gradient-accumulation-steps 8 --output_dir x "


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("", "training.precision", "bf16"),
        ("", "strategy.micro_batch_size", 2),
        ("", "training.global_batch_size", 64),
        ("--gradient_checkpointing", "strategy.recompute", "full"),
        ("--gradient_checkpointing false", "strategy.recompute", "none"),
        ("--model_max_length 2048", "training.seq_length", 2048),
        ('--fsdp "shard_grad_op auto_wrap"', "strategy.zero", 2),
        ('--fsdp "full_shard auto_wrap"', "strategy.zero", 3),
        ("--torch_compile", "training.compile", True),
        ("--optim adamw_bnb_8bit", "training.optimizer", "adam-8bit"),
        ("--learning_rate 2e-5 --weight_decay 0. --tf32 True --report_to wandb", "strategy.zero", 0),
    ],
)
def test_arguments_of_the_trainer_on_a_command_line(options, name, value):
    found = imported("transformers", ("train.sh", _TRAINER + options))
    assert field(found, name) == value
    assert found.unknown == []


def test_deepspeeds_file_of_the_trainer_is_asked_for_where_it_is_not_given():
    launch = ("train.sh", _TRAINER + "--deepspeed ./scripts/zero3.json")
    alone = imported("transformers", launch)
    assert (field(alone, "training.framework"), field(alone, "strategy.zero")) == ("deepspeed", None)
    assert "/strategy/zero" in alone.missing
    both = imported(
        "transformers",
        launch,
        ("scripts/zero3.json", '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'),
    )
    assert (field(both, "strategy.zero"), both.unknown) == (3, [])


_FACTORY = "stage: sft\nfinetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,v_proj\nper_device_train_batch_size: 1\nbf16: true\ncutoff_len: 2048\n"


def test_adapters_of_llama_factory():
    found = imported("transformers", ("sft.yaml", _FACTORY + "quantization_bit: 4\nflash_attn: fa2\ntemplate: qwen3\n"))
    assert field(found, "training.adapter") == {
        "rank": 16,
        "target_modules": ["q_proj", "v_proj"],
        "quantized_base": "nf4",
    }
    assert (field(found, "training.attention_kernel"), field(found, "training.seq_length"), found.unknown) == (
        "fa2",
        2048,
        [],
    )


@pytest.mark.parametrize("line", ["finetuning_type: oft", "quantization_bit: 4\nquantization_method: hqq"])
def test_other_adapters_of_llama_factory_are_asked_for(line):
    text = (
        _FACTORY.replace("finetuning_type: lora\n", "" if "type" in line else "finetuning_type: lora\n") + line + "\n"
    )
    assert "/training/adapter" in imported("transformers", ("sft.yaml", text)).missing


_REGISTRY = """from torchtitan.trainer import Trainer
from . import model_registry

def big() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./tokens",
        metrics=MetricsProcessor.Config(enable_tensorboard=True),
        model_spec=model_registry("405B"),
        model_converters=ModelConvertersContainer.Config(converters=[
            Float8LinearConverter.Config(enable_fsdp_float8_all_gather=True, filter_fqns=["output"]),
            {converter}
        ]),
        optimizer=OptimizersContainer.Config(lr=8e-5),
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, enable_async_tensor_parallel=True),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        {more}
    )
"""


def test_a_python_configuration_of_torchtitan_with_every_part_of_its_own():
    found = imported("torchtitan", ("registry.py", _REGISTRY.format(more="", converter="")))
    assert field(found, "strategy.recompute") == "full"
    assert field(found, "strategy.overlap.tp_comm") is True
    assert field(found, "training.fp8_recipe") == "tensorwise"
    assert [(each["line"], each["text"]) for each in found.unknown] == [
        (8, 'config.model_spec: model_registry("405B")')
    ]
    assert "/model" in found.missing


@pytest.mark.parametrize(
    ("more", "converter"),
    [
        ("comm_mode=CommMode(fast=True)", ""),
        ("sleep=3", ""),
        ("**others", ""),
        ("", "OtherConverter.Config(bits=4)"),
        ("activation_checkpoint_budget=BUDGET", ""),
    ],
)
def test_no_part_of_a_python_configuration_is_dropped(more, converter):
    found = imported("torchtitan", ("registry.py", _REGISTRY.format(more=more, converter=converter)))
    assert len(found.unknown) == 2


def test_what_a_python_configuration_sets_afterwards_is_not_dropped():
    text = (
        _REGISTRY.format(more="", converter="")
        + "\ndef small():\n    config = big()\n    config.model_spec = other(2)\n"
    )
    text += "    config.activation_checkpoint = None\n    config.parallelism.pipeline_parallel_degree = 4\n    return config\n"
    found = imported("torchtitan", ("registry.py", text))
    assert field(found, "strategy.pp") == 4
    assert [each["line"] for each in found.unknown] == [8, 22, 23]


_NAMED = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: conf/ds.json\n  zero_stage: 2\n"


def test_a_deepspeed_file_that_accelerate_names_is_asked_for_where_it_is_not_given():
    found = imported("accelerate", ("accelerate.yaml", _NAMED))
    assert {"/strategy/zero", "/training/precision", "/strategy/offload/parameters"} <= set(found.missing)
    assert "zero" not in found.row["strategy"]
    assert "precision" not in found.row["training"]


def test_a_deepspeed_file_that_accelerate_names_is_read_where_it_is_given():
    text = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    found = imported("accelerate", ("accelerate.yaml", _NAMED), ("ds.json", text))
    assert (field(found, "strategy.zero"), field(found, "training.precision")) == (3, "bf16")


def test_ranks_that_share_the_experts_of_a_published_model_of_torchtitan():
    text = '[model]\nname = "qwen3"\nflavor = "{}"\n[training]\nseq_len = 2048\n[parallelism]\nexpert_parallel_degree = 8\n'
    found = imported("torchtitan", ("run.toml", text.format("30B-A3B")))
    assert (field(found, "strategy.ep"), field(found, "strategy.etp")) == (8, 1)
    assert field(imported("torchtitan", ("run.toml", text.format("8B"))), "strategy.ep") is None
    assert field(imported("torchtitan", ("run.toml", text.format("somebody's"))), "strategy.ep") == 8


def test_numbers_that_no_run_has_are_refused_or_asked_for_at_once():
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = {}\n[parallelism]\npipeline_parallel_degree = {}\n'
    with pytest.raises(InvalidInputError, match=r"run\.toml, line 5 has a number that cannot be read"):
        imported("torchtitan", ("run.toml", text.format("9" * 5000, 2)))
    with pytest.raises(InvalidInputError, match=r"run\.toml, line 7: pp is 10{9}"):
        imported("torchtitan", ("run.toml", text.format(4096, 10**9)))
    assert "layers_per_stage" not in imported("torchtitan", ("run.toml", text.format(4096, 64))).row["strategy"]
