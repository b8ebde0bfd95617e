"""A row from NeMo 2: a script or a recipe in Python, and overrides of a recipe on the command line of NeMo-Run.

What is not said is what NeMo's classes take: no distributed optimizer and no overlap without a configuration of them, and gradients
in fp32. What a named recipe says is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.export.launchers.launch_line import read_launch
from planner.export.settings import InputFile, Setting, Settings
from planner.export.target import RowParts
from planner.export.targets.megatron.adapters import CANONICAL, DORA, FIELD, LORA, read_adapter
from planner.export.targets.megatron.attributes import Part, leave_in_doubt, settings_of
from planner.export.targets.megatron.environment import ALLOCATOR, CONNECTIONS, OFFLOAD_VERSION
from planner.export.targets.megatron.front_end import scalar
from planner.export.targets.megatron.names import NAMES, Values
from planner.export.targets.megatron.rows_of_settings import model_row, strategy_row, training_row
from planner.export.targets.nemo import keys

OF_NO_PLAN = re.compile(
    r"(OptimizerConfig|optim\.config)\.(lr|min_lr|weight_decay|adam_\w+|clip_grad|sgd_momentum)$"
    r"|(MockDataModule|PreTrainingDataModule|data)\.(tokenizer|paths|num_\w+|split|index_mapping_dir|pin_memory|persistent_workers)$"
    r"|(GPTConfig|LatentConfig|MLAGPTConfig|model\.config)\.(rotary_\w+|init_method_std|layernorm_epsilon|vocab_size|bias_\w+"
    r"|apply_rope_fusion|masked_softmax_fusion|gradient_accumulation_fusion|persist_layer_norm|transformer_layer_spec|share_\w+_spec"
    r"|moe_aux_loss_coeff|moe_router_load_balancing_type|moe_router_pre_softmax|moe_router_dtype|attention_softmax_in_fp32)$"
    r"|(MegatronStrategy|trainer\.strategy)\.(ddp|ckpt_\w+|save_ckpt_format|use_te_rng_tracker|progress_interval|gradient_as_bucket_view"
    r"|pipeline_dtype|find_unused_parameters)$"
    r"|(MegatronMixedPrecision|trainer\.plugins)\.(autocast_enabled|reuse_grad_buf_for_mxfp8_param_ag|fp8_amax_\w+|fp16_\w+)$"
    r"|MegatronCommOverlapCallback\.(bucket_size|align_param_gather|batch_p2p_comm|tp_comm_bootstrap_backend)$"
    r"|(Trainer|trainer)\.(accelerator|max_steps|strategy|plugins|callbacks|accumulate_grad_batches|limit_\w+|log_every_n_steps|val_check_interval"
    r"|use_distributed_sampler|enable_checkpointing|check_val_every_n_epoch|max_epochs|num_sanity_val_steps)$"
    r"|(DistributedDataParallelConfig|trainer\.strategy\.ddp)\.(check_for_nan_in_grad|average_in_collective|bucket_size)$"
    r"|(get_nmt_tokenizer|add_argument|ArgumentParser|MegatronOptimizerModule|GPTModel|train|tensor|all_reduce|print|partial)\.\w+$"
    r"|self\.\w+$|STEPS$|MOCK_STEPS$"
)
"""Arguments on data, schedule, checkpoints and logs, fusions that every plan has, and calls of what the plan does not concern."""
_DEFAULTS: Values = {
    "accumulate_allreduce_grads_in_fp32": True,
    "overlap_p2p_comm": False,
    "cross_entropy_loss_fusion": True,
}
_OVERLAPS = {
    "tp_comm_overlap": "overlap.tp_comm", "overlap_p2p_comm": "overlap.p2p", "overlap_grad_reduce": "overlap.grad_reduce",
    "overlap_param_gather": "overlap.param_gather",
}  # fmt: skip
_ROOT = re.compile(r"^(recipe|pretrain|finetune|cfg|config|experiment)\.")


def read(settings: Settings) -> RowParts:
    """What the classes' arguments say, in the contract's names."""
    given, spelled = _given(settings)
    values, taken = settings_of(given)
    for place, fields in taken.items():
        for key in spelled[place]:
            settings.take(key, *fields)
    vocabulary = settings.value(keys.VOCABULARY, "model.vocab_size")
    if type(vocabulary) is int and vocabulary > 0:
        values["vocab_size"] = vocabulary
        # The class is given the padded size, which the script computes.
        taken["model", "vocab_size"] = ("model.vocab_size",)
    leave_in_doubt(settings, spelled, taken)
    stated = {**_DEFAULTS, **values, **_comm_overlap(settings), **_fsdp(settings, values)}
    own = _ranks(settings)
    # The trainer takes the ranks that were started, whatever its own numbers are.
    world_size = read_launch(settings) or own
    training = training_row(stated)
    training["expandable_segments"] = any(
        "expandable_segments:True" in str(settings.value(f"${name}", "training.expandable_segments"))
        for name in (ALLOCATOR, "PYTORCH_ALLOC_CONF")
    )
    for kind in (LORA, DORA, CANONICAL):
        adapter = read_adapter(settings, kind, kind)
        if adapter is not None:
            training[FIELD.rpartition(".")[2]] = adapter
    of_no_plan = {each.key for each in settings if OF_NO_PLAN.search(_key(each))}
    settings.pass_over(f"${CONNECTIONS}", f"${OFFLOAD_VERSION}", "$NCCL_GRAPH_REGISTER", "--mock-data", *of_no_plan)
    return RowParts(
        training=training, strategy=strategy_row(stated, world_size=world_size), model=model_row(_model(stated)), world_size=world_size
    )  # fmt: skip


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether files name NeMo's packages, or a path into its recipes."""
    names = re.compile(r"nemo\.(collections|lightning)|from nemo import|\btrainer\.strategy\.\w+_parallel_size\s*=")
    return any(names.search(each.content) for each in files)


def _key(setting: Setting) -> str:
    """A key without the variable that a recipe stands in."""
    return _ROOT.sub("", setting.key.lstrip("+"))


def _given(settings: Settings) -> tuple[dict[tuple[Part, str], Any], dict[tuple[Part, str], list[str]]]:
    """Values by class and attribute, and the keys that say them; a later one overrides an earlier one."""
    found: dict[tuple[Part, str], Any] = {}
    spelled: dict[tuple[Part, str], list[str]] = {}
    for setting in settings:
        section, _, name = _key(setting).rpartition(".")
        if section not in keys.PARTS:
            continue
        for place, value in _placed(section, name, scalar(setting)):
            spelled.setdefault(place, []).append(setting.key)
            found.pop(place, None)
            if not setting.is_open:
                found[place] = value
    return found, spelled


def _placed(section: str, name: str, value: Any) -> list[tuple[tuple[Part, str], Any]]:
    part = keys.PARTS[section]
    if name == "precision" and part == "precision":
        # Lightning takes longer and shorter words for the same.
        kind = {"bf16": "bf16", "16": "fp16", "fp16": "fp16", "32": "fp32", "fp32": "fp32"}.get(
            str(value).removesuffix("-mixed")
        )
        return [((part, each), each == kind) for each in keys.PRECISIONS] if kind else []
    if name == "num_distributed_optimizer_instances":
        return [(("ddp", name), value)]
    if name == "seq_length":
        return [(("model", name), value)]
    if name == "attention_backend":
        return [((part, name), str(value).rpartition(".")[2])]
    return [((part, name), value)]


def _comm_overlap(settings: Settings) -> Values:
    """What the callback says, which is applied last."""
    found: Values = {}
    for setting in settings:
        section, _, name = _key(setting).rpartition(".")
        if section == keys.OVERLAP and name in _OVERLAPS and isinstance(setting.value, bool):
            found[name] = setting.value
            settings.take(setting.key, _OVERLAPS[name])
    return found


def _fsdp(settings: Settings, values: Values) -> Mapping[str, Any]:
    for setting in settings:
        if _key(setting) in (f"{keys.STRATEGY}.fsdp", "trainer.strategy.fsdp") and setting.value == "megatron":
            settings.take(setting.key, "zero")
            # The strategy switches it on where the class of gradients does not.
            return {
                "use_megatron_fsdp": True,
                "use_distributed_optimizer": values.get("use_distributed_optimizer", True),
            }
    return {}


def _ranks(settings: Settings) -> int | None:
    """Ranks by the trainer's own numbers."""
    counts = []
    for name in ("devices", "num_nodes"):
        found = [each for each in settings if _key(each) in (f"{keys.TRAINER}.{name}", f"trainer.{name}")]
        value = scalar(found[-1]) if found and not found[-1].is_open else None
        if type(value) is int and value > 0:
            settings.take(found[-1].key, "dp")
            counts.append(value)
    return counts[0] * counts[1] if len(counts) == 2 else None


def _model(values: Values) -> Values:
    """The settings of the model, whose table of positions has as many rows as a sequence has tokens."""
    length = values.get("seq_length")
    learned = values.get("position_embedding_type", NAMES["position_embedding_type"].default) == "learned_absolute"
    return {**values, "max_position_embeddings": length} if learned and length else values
