"""Megatron-Bridge's overrides of a plan, what they cannot say, and overrides that somebody else wrote."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cost_models.errors import NotExpressibleError
from planner.export.export import export_row
from planner.export.formats.arguments import read_words
from planner.export.formats.documents import read_document
from planner.export.import_config import import_config
from planner.export.settings import InputFile, Settings
from planner.export.target import RowParts
from planner.export.targets import TARGETS
from planner.export.targets.megatron_bridge.program import read_program

LAUNCHED = "torchrun --nnodes 2 --nproc-per-node 8 run_recipe.py --recipe llama3_70b_pretrain_config "


def row(
    model: str = "llama-3.1-70b", *, nodes: int = 8, training: dict[str, Any] | None = None, **strategy: Any
) -> dict[str, Any]:
    return {
        "model": {"preset": model}, "cluster": {"preset": "dgx-h100", "num_nodes": nodes},
        "training": {
            "seq_length": 8192, "global_batch_size": 512, "precision": "bf16", "framework": "megatron", "framework_version": "0.19",
            **(training or {}),
        },
        "strategy": {"micro_batch_size": 1, **strategy},
    }  # fmt: skip


def written(*given: Any, **named: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The overrides, and every file."""
    files = {file.path: file.content for file in export_row(row(*given, **named), "megatron-bridge")}
    return yaml.safe_load(files["plan.yaml"]), files


def read(text: str, document: str = "") -> tuple[RowParts, list[str]]:
    found = read_words(LAUNCHED + text, "run.sh")
    if document:
        found += read_document(InputFile("plan.yaml", document))
    settings = Settings(found)
    reader = TARGETS["megatron-bridge"].read
    assert reader is not None
    return reader(settings), [each.key for each in settings.unknown() if each.key not in ("@", "--recipe")]


def test_the_worked_example():
    """64 GPUs, interleaved, with context parallelism: the values of `ConfigContainer`'s sections."""
    plan, files = written(tp=4, pp=4, vpp=5, cp=2, recompute="selective", overlap={"tp_comm": True})
    said = {
        "model": {
            "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5,
            "context_parallel_size": 2, "sequence_parallel": True, "tp_comm_overlap": True, "recompute_granularity": "selective",
            "recompute_modules": ["core_attn"], "num_layers": 80, "num_query_groups": 8, "share_embeddings_and_output_weights": False,
        },
        "train": {"micro_batch_size": 1, "global_batch_size": 512},
        "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
        "mixed_precision": {"bf16": True, "params_dtype": "bfloat16", "grad_reduce_in_fp32": True},
    }  # fmt: skip
    for section, values in said.items():
        assert {name: plan[section][name] for name in values} == values
    assert plan["dataset"]["seq_length"] == plan["model"]["seq_length"] == 8192
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in files["launch.sh"]
    assert "train.py --mock-data" in " ".join(files["mock.sh"].split())


def test_two_levels_of_context_parallelism_are_a_list():
    """training/initialize.py hands model.hierarchical_context_parallel_sizes on to Megatron Core; heads are traded on its first level."""
    model = written(tp=2, pp=4, cp=8, cp_comm="a2a+p2p")[0]["model"]
    assert (model["cp_comm_type"], model["hierarchical_context_parallel_sizes"]) == ("a2a+p2p", [4, 2])


def test_the_bridge_of_the_plans_core_is_taken():
    """0.4 runs on core 0.17; without an option, it is the one for such a plan."""
    files = {
        file.path: file.content
        for file in export_row(row(training={"framework_version": "0.17"}, tp=8, pp=4), "megatron-bridge")
    }
    assert "Megatron-Bridge 0.4 must be installed" in files["launch.sh"]


def test_a_plan_for_another_core_is_refused_with_the_nearest():
    with pytest.raises(NotExpressibleError) as refused:
        export_row(row(tp=8, pp=4), "megatron-bridge", framework_version="0.4")
    assert refused.value.context["field"] == "training.framework_version"
    assert refused.value.context["nearest_plan"]["changes"] == {"training.framework_version": "0.17"}


def test_a_budget_of_tokens_is_a_number_of_steps():
    """10^9 tokens in steps of 512 * 8192 = 4,194,304 are 238.4, so 239 steps."""
    assert written(tp=8, pp=4, training={"total_tokens": 10**9})[0]["train"]["train_iters"] == 239


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"training": {"attention_kernel": "fa3"}}, "training.attention_kernel"),
        ({"training": {"compile": True}}, "training.compile"),
        ({"training": {"adapter": {"rank": 8, "target_modules": ["q_proj"], "dora": True}}}, "training.adapter"),
        ({"training": {"frozen": ["embedding"]}}, "training.frozen"),
        ({"model": "gemma-2-9b", "tp": 8, "pp": 1}, "model.norms_per_layer"),
        ({"model": "gpt3-6.7b", "tp": 8, "pp": 1, "training": {"seq_length": 1024}}, "model.max_position_embeddings"),
        ({"training": {"param_dtype": "fp8", "precision": "fp8"}, "zero": 0, "tp": 8, "pp": 8}, "training.param_dtype"),
        ({"model": "deepseek-v3", "pp": 1, "nodes": 64, "training": {"adapter": {"rank": 8}}}, "training.adapter"),
    ],
)  # fmt: skip
def test_what_it_cannot_say_is_refused_by_field(named: dict[str, Any], field: str):
    with pytest.raises(NotExpressibleError) as refused:
        export_row(row(**{"tp": 8, "pp": 4, **named}), "megatron-bridge")
    assert refused.value.context["field"] == field
    assert refused.value.context["target"] == "megatron-bridge"


def test_what_is_not_said_is_what_bridges_recipes_say():
    """recipes/common.py: bf16, gradients in fp32, the distributed optimizer, both overlaps."""
    parts, unknown = read(
        "model.tensor_model_parallel_size=4 ++model.sequence_parallel=true train.global_batch_size=256 optimizer.lr=3e-4"
    )
    assert unknown == []
    assert (parts.world_size, parts.strategy["tp"], parts.strategy["zero"]) == (16, 4, 1)
    assert parts.strategy["sequence_parallel"] is True
    assert (parts.strategy["overlap"]["grad_reduce"], parts.strategy["overlap"]["param_gather"]) == (True, True)
    assert (parts.training["precision"], parts.training["grad_dtype"]) == ("bf16", "fp32")
    assert parts.training["global_batch_size"] == 256
    assert parts.model == {}


@pytest.mark.parametrize(
    ("recipe", "precision", "fp8_recipe", "param_dtype"),
    [
        ("bf16_mixed", "bf16", None, "bf16"),
        ("bf16-mixed", "bf16", None, "bf16"),
        ("bf16_with_mxfp8_mixed", "fp8", "mxfp8", "fp8"),
        ("bf16_with_fp8_subchannel_scaling_mixed", "fp8", "blockwise", "bf16"),
        ("bf16_with_nvfp4_mixed", "nvfp4", None, "bf16"),
    ],
)
def test_named_recipes_of_precision(recipe: str, precision: str, fp8_recipe: str | None, param_dtype: str):
    parts, unknown = read(f"mixed_precision={recipe}")
    assert unknown == []
    assert (parts.training["precision"], parts.training.get("fp8_recipe"), parts.training["param_dtype"]) == (
        precision,
        fp8_recipe,
        param_dtype,
    )


def test_a_recipe_that_keeps_layers_in_bf16_stays_unknown():
    parts, unknown = read(
        "+mixed_precision=bf16_with_fp8_current_scaling_mixed", "mixed_precision: bf16_with_fp8_current_scaling_mixed\n"
    )
    assert unknown == ["mixed_precision"]
    assert parts.training["precision"] == "bf16"


def test_a_section_of_overlaps_switches_on_what_it_does_not_name():
    """CommOverlapConfig's own rules where data-parallel replicas exist, applied after `ddp`."""
    document = (
        "ddp:\n  overlap_grad_reduce: false\ncomm_overlap:\n  tp_comm_overlap: true\n  overlap_param_gather: false\n"
    )
    parts, unknown = read("model.tensor_model_parallel_size=2", document)
    assert unknown == []
    assert parts.strategy["overlap"] == {
        "grad_reduce": True, "param_gather": False, "tp_comm": True, "p2p": False, "moe_all_to_all": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "model.tensor_model_paralel_size=2", "model.tensor_model_parallel_size=two", "ddp.overlap_grad_reduce=perhaps", "model.window_size=[4,4]",
        "model.pipeline_model_parallel_layout=tt|tt", "mixed_precision.fp8=e5m2", "optimizer.exp_avg_dtype=bf17", "train.micro_batch_size=0",
        "model.activation_func=relu", "peft.dim=8", "model.cp_comm_type=[p2p,a2a]", "comm_overlap.wgrad_deferral_limit=4",
    ],
)  # fmt: skip
def test_what_is_not_understood_stays_unknown(text: str):
    assert read(f"'{text}'")[1] == [text.partition("=")[0]]


PROGRAM = """
from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.comm_overlap import CommOverlapConfig

cfg = llama3_8b_pretrain_config()
cfg.model.tensor_model_parallel_size = 2
cfg.model.attention_backend = AttnBackend.flash
cfg.train.global_batch_size = 64
cfg.mixed_precision = "bf16_with_mxfp8_mixed"
cfg.model.num_experts_per_token = 4
cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
provider = GPTModelProvider(num_layers=4, hidden_size=64, num_attention_heads=4, ffn_hidden_size=256, recompute_granularity=chosen())
"""


def test_a_program_is_read_as_the_overrides_that_it_amounts_to():
    """What would have to be run stays unknown, as does what no class has."""
    found = read_program(InputFile("pretrain.py", PROGRAM))
    settings = Settings(found)
    reader = TARGETS["megatron-bridge"].read
    assert reader is not None
    parts = reader(settings)
    assert (parts.strategy["tp"], parts.strategy["overlap"]["tp_comm"]) == (2, True)
    assert (parts.training["global_batch_size"], parts.training["fp8_recipe"], parts.training["attention_kernel"]) == (
        64,
        "mxfp8",
        "fa2",
    )
    assert (parts.model["num_layers"], parts.model["intermediate_size"]) == (4, 256)
    assert [each.own_key for each in settings.unknown()] == [
        "cfg.model.num_experts_per_token",
        "GPTModelProvider.recompute_granularity",
    ]


def test_the_exported_script_says_nothing_beside_the_overrides():
    _, files = written(tp=8, pp=4)
    imported = import_config([InputFile(path, files[path]) for path in ("plan.yaml", "launch.sh", "train.py")])
    assert (imported.target.name, imported.unknown, imported.missing) == ("megatron-bridge", [], ("/cluster",))


def test_what_a_program_computes_is_no_default():
    """Neither the count of ranks of a tensor group nor the modules are known, so the row does not state any."""
    text = "cfg.model.tensor_model_parallel_size = count()\ncfg.model.recompute_granularity = 'selective'\ncfg.model.recompute_modules = ['mhc']\n"
    imported = import_config([InputFile("x.py", f"import megatron.bridge\n{text}")])
    assert "tp" not in imported.row["strategy"]
    assert "recompute_modules" not in imported.row["strategy"]
    assert [each["text"].partition(":")[0] for each in imported.unknown] == [
        "model.tensor_model_parallel_size",
        "model.recompute_modules",
    ]
