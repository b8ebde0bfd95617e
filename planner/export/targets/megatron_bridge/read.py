"""A row from Megatron-Bridge's configuration: its YAML, overrides on a command line, or assignments in Python.

What is not said is what Bridge's classes and its recipes for pretraining take (`recipes/common.py`): the distributed optimizer,
overlapped reductions and gathers, bf16, and gradients in fp32. What a recipe says of the model is not known here, and a row without
a model is asked for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.export.launchers.launch_line import read_launch
from planner.export.settings import InputFile, Settings
from planner.export.target import RowParts
from planner.export.targets.megatron.adapters import FIELD, read_adapter
from planner.export.targets.megatron.attributes import Part, leave_in_doubt, settings_of
from planner.export.targets.megatron.environment import ALLOCATOR, CONNECTIONS, OFFLOAD_VERSION
from planner.export.targets.megatron.front_end import scalar
from planner.export.targets.megatron.names import NAMES, Values
from planner.export.targets.megatron.rows_of_settings import model_row, strategy_row, training_row
from planner.export.targets.megatron_bridge import keys

OF_NO_PLAN = re.compile(
    r"(dataset|tokenizer|scheduler|logger|checkpoint|rng|validation|profiling|ft|straggler|nvrx_straggler|inprocess_restart"
    r"|rerun_state_machine|tensor_inspect|env_vars)\."
    r"|train\.(train_iters|train_samples|eval_|manual_gc|exit_|empty_unused)|dist\."
    r"|optimizer\.(lr$|min_lr|weight_decay|adam_|clip_grad|sgd_)|ddp\.(check_for_nan|average_in_collective|bucket_size)"
    r"|model\.(rotary_|rope_scaling|init_method_std|layernorm_epsilon|moe_aux_loss|moe_z_loss|moe_router_load_balancing|moe_router_dtype"
    r"|moe_router_topk_scaling|moe_router_bias_update|moe_router_pre_softmax|mtp_loss|attention_softmax_in_fp32|should_pad_vocab"
    r"|use_te_rng_tracker|bias_|masked_softmax|apply_rope|gradient_accumulation|persist_layer_norm)"
)
"""Keys on data, schedule, checkpoints and logs, and fusions that every plan has."""
_DEFAULTS: Values = {
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True, "bf16": True,
    "cross_entropy_loss_fusion": True, "overlap_p2p_comm": False, "fp8_recipe": "tensorwise",
}  # fmt: skip
_RECIPES: Mapping[str, Values] = {
    "bf16": {"bf16": True}, "fp16": {"fp16": True, "bf16": False, "accumulate_allreduce_grads_in_fp32": False},
    "bf16_with_fp8_delayed_scaling": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "bf16_with_fp8_subchannel_scaling": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param_gather": False},
    "bf16_with_mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "bf16_with_nvfp4": {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}  # fmt: skip
"""Named recipes of `training/mixed_precision.py`, without the ending; those of current scaling leave two layers in bf16, which no
plan does, and stay unknown."""
_RECIPE = "mixed_precision"
_OVERLAPS = {
    "tp_comm_overlap": "overlap.tp_comm", "overlap_p2p_comm": "overlap.p2p", "overlap_grad_reduce": "overlap.grad_reduce",
    "overlap_param_gather": "overlap.param_gather", "overlap_moe_expert_parallel_comm": "overlap.moe_all_to_all",
}  # fmt: skip


def read(settings: Settings) -> RowParts:
    """What the overrides say, in the contract's names."""
    given, spelled = _given(settings)
    values, taken = settings_of(given)
    for place, fields in taken.items():
        for key in spelled[place]:
            settings.take(key, *fields)
    leave_in_doubt(settings, spelled, taken)
    # The container applies precision after its sections and overlaps after precision (runtime_config_update).
    stated = {**_DEFAULTS, **_recipe(settings), **values, **_comm_overlap(settings, values)}
    world_size = read_launch(settings)
    training = training_row(stated)
    training["expandable_segments"] = any(
        "expandable_segments:True" in str(settings.value(f"${name}", "training.expandable_segments"))
        for name in (ALLOCATOR, "PYTORCH_ALLOC_CONF")
    )
    target = str(settings.value(f"{keys.ADAPTER}.{keys.TARGET}", FIELD))
    kind = next((name for name, spelled in keys.ADAPTERS.items() if spelled == target), "")
    adapter = read_adapter(settings, keys.ADAPTER, kind)
    if adapter is not None:
        training[FIELD.rpartition(".")[2]] = adapter
    _take_others(settings)
    return RowParts(
        training=training, strategy=strategy_row(stated, world_size=world_size), model=model_row(_model(stated)), world_size=world_size
    )  # fmt: skip


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether files hold Bridge's sections, or name Bridge."""
    sections = re.compile(
        r"megatron\.bridge|\bmodel\.tensor_model_parallel_size\s*=|^model:(?=[\s\S]*^train:)", re.MULTILINE
    )
    return any(sections.search(each.content) for each in files)


def _given(settings: Settings) -> tuple[dict[tuple[Part, str], Any], dict[tuple[Part, str], list[str]]]:
    """Values by class and attribute, and the keys that say them; a later one overrides an earlier one."""
    found: dict[tuple[Part, str], Any] = {}
    spelled: dict[tuple[Part, str], list[str]] = {}
    for setting in settings:
        # Hydra takes a key with plus signs for one that may be new.
        section, _, name = setting.key.lstrip("+").partition(".")
        if section in keys.PARTS and name:
            place = keys.PARTS[section], name
            spelled.setdefault(place, []).append(setting.key)
            found.pop(place, None)
            if not setting.is_open:
                value = scalar(setting)
                # Python names a member of the enumeration, overrides its name alone.
                found[place] = value.removeprefix("AttnBackend.") if isinstance(value, str) else value
    return found, spelled


def _recipe(settings: Settings) -> Values:
    """What a named recipe of mixed precision says."""
    for setting in settings:
        texts = setting.value if isinstance(setting.value, tuple) else (setting.value,)
        own = setting.key.lstrip("+") == _RECIPE
        # An override without a dot may stand among the values of the option before it.
        for text in (str(each) for each in texts if own or str(each).startswith(f"{_RECIPE}=")):
            named = _RECIPES.get(text.rpartition("=")[2].replace("-", "_").removesuffix("_mixed"))
            if named is not None and own:
                settings.take(setting.key, "training.precision", "training.fp8_recipe", "training.param_dtype")
            if named is not None:
                return named
    return {}


def _comm_overlap(settings: Settings, values: Values) -> Values:
    """What the section of overlaps says, which is applied last; without a value of its own it switches on what it can."""
    inside = {
        each.key.lstrip("+").partition(".")[2]: each for each in settings if each.key.lstrip("+").startswith(f"{keys.COMM}.")
    }  # fmt: skip
    if not inside:
        return {}
    interleaved = values.get("num_virtual_stages_per_pipeline_rank", 1) > 1
    found: Values = {
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "overlap_p2p_comm": interleaved,
        "tp_comm_overlap": False,
    }
    for name, field in _OVERLAPS.items():
        if name in inside and isinstance(scalar(inside[name]), bool):
            found[name] = scalar(inside[name])
            settings.take(inside[name].key, field)
    return found


def _model(values: Values) -> Values:
    """The settings of the model, whose table of positions has as many rows as a sequence has tokens."""
    length = values.get("seq_length")
    learned = values.get("position_embedding_type", NAMES["position_embedding_type"].default) == "learned_absolute"
    return {**values, "max_position_embeddings": length} if learned and length else values


def _take_others(settings: Settings) -> None:
    keys_of_no_plan = {each.key for each in settings if OF_NO_PLAN.match(each.key.lstrip("+"))}
    settings.pass_over(f"${CONNECTIONS}", f"${OFFLOAD_VERSION}", "$NCCL_GRAPH_REGISTER", *_ALWAYS, *keys_of_no_plan)


_ALWAYS = frozenset({keys.REUSE, "--mock-data", "mixed_precision.autocast_enabled", "mixed_precision.fp8_amax_history_len",
                     "mixed_precision.fp8_amax_compute_algo"})  # fmt: skip
