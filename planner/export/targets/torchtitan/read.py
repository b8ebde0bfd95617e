"""Reads torchtitan's configuration, in TOML or in Python, and the module that registers a plan's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.export.settings import InputFile, Settings
from planner.export.spellings import Understood, peeked, taken, whole
from planner.export.target import RowParts
from planner.export.targets.allocator import NAMES
from planner.export.targets.torchtitan import keys
from planner.export.targets.torchtitan.read_model import PRESETS_OF_EXPERTS, read_model

_CHANGES_NOTHING = (
    "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "validation", "memory_estimation", "debug",
    "training.dataset", "training.dataset_path", "training.steps", "training.max_norm", "training.gc_freq", "training.gc_debug",
    "training.seed", "training.deterministic", "training.dataloader", "optimizer.lr", "optimizer.eps", "optimizer.beta1",
    "optimizer.beta2", "optimizer.weight_decay", "experimental.custom_import", "model.hf_assets_path", "model.tokenizer_path",
    "model.print_after_conversion", "dataset", "training.warmup_steps", "training.epochs", "training.dataset_cache_dir",
    "training.dataset_streaming", "constant.VOCAB_SIZE", "head", "embedding", "norm", keys.LOAD_BALANCER,
    "config.hf_assets_path", "loss.global_vocab_size",
)  # fmt: skip
"""Sections and keys that decide neither a step's time nor its memory. Validation and checkpoints lie between steps."""
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "optimizer.implementation": ("fused",), "optimizer.fused": (True,), "optimizer.early_step_in_backward": (False,),
    "parallelism.enable_loss_parallel": (True,), "parallelism.disable_loss_parallel": (False,), "parallelism.enable_compiled_autograd": (False,),
    keys.FLOAT8_FILTER: (("output",), "output", ()), "model.norm_type": ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm"),
    "training.fp32_mixed_precision": (False,), "model.converters": ((), ""), keys.FLOAT8_ON: (False,),
}  # fmt: skip
"""Settings of which only the usual value is modelled; another one stays unknown."""
_WHO_TAKES_PART = (
    "enable", "semi_sync_method", "replica_id", "min_replica_size", "process_group", "process_group_timeout_ms", "fragment_update_alpha",
)  # fmt: skip
"""Keys of fault_tolerance that decide neither time nor memory beside those that are read."""
_V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def recognises(files: Sequence[InputFile]) -> bool:
    """Whether a file is torchtitan's."""
    for file in files:
        toml = file.path.endswith(".toml") and "[training]" in file.content and "parallel_degree" in file.content
        python = file.path.endswith(".py") and "torchtitan" in file.content
        if toml or python:
            return True
    return False


def read(settings: Settings) -> RowParts:
    """What the files say; torchtitan's own defaults stand where they say nothing."""
    settings.rename(keys.OLDER)
    # Each of the two syntaxes belongs to one range of releases.
    python = peeked(settings, "model.class") in _PYTHON_BUILDERS or any(
        setting.file.endswith(".py") and setting.key.startswith("parallelism.") for setting in settings
    )
    version = "0.3" if python else "0.2"
    if python:
        settings.rename({keys.ASYNC: "compile.enable_async_tensor_parallel"})  # where it stood at first
    found = Understood(taken(settings, keys.spellings(version)))
    row = found.fields
    row["training.framework"], row["training.framework_version"] = "torchtitan", version
    groups = _groups(settings, row)
    for prefix in _CHANGES_NOTHING:
        settings.take_under(prefix)
    settings.pass_over("--module", "--config")  # the Python configuration, which is read itself
    for key, usual in _USUAL.items():
        if peeked(settings, key) in usual:
            settings.pass_over(key)
    read_model(settings, row)
    _copies(settings, row, found)
    # The files are those of one group: how many replicas all have together follows from the cluster, which only the user knows.
    if groups > 1:
        row["dp"], found.world_size = None, None
    _batch(settings, row)
    _stages(settings, row)
    _recompute(settings, row)
    _types(settings, row)
    _compilation(settings, row)
    row["grad_sync"] = _reduces(row, python=python)
    _drop_idle(row, python=python)
    return found.parts()


_PYTHON_BUILDERS = (
    "family._build_llama3_layers",
    "family._build_qwen3_layers",
    "family._build_qwen3_moe_layers",
    "family.build_mla_moe_layers",
)


def _groups(settings: Settings, row: dict[str, Any]) -> int:
    """Groups of replicas that train by themselves, each a launch of its own; 1 where the file has none."""
    of = keys.FAULT_TOLERANCE
    named = {word: method for method, word in keys.SEMI_SYNC.items()}
    method = named.get(str(peeked(settings, f"{of}.semi_sync_method")))
    count = 1
    if peeked(settings, f"{of}.enable") is True and method is not None:
        count = whole(settings, f"{of}.group_size", "dp", default=1) or 1
        row["sync.method"] = method
        row["sync.sync_every"] = whole(settings, f"{of}.sync_steps", "sync.sync_every", default=5)
        if method == "diloco":
            row["sync.fragments"] = whole(settings, f"{of}.num_fragments", "sync.fragments", default=1)
            row["sync.delay_steps"] = settings.value(f"{of}.fragment_sync_delay", "sync.delay_steps", default=0)
            quantizes = settings.value(f"{of}.should_quantize", "sync.quantize", default=False)
            row["sync.quantize"] = "fp8" if quantizes else "none"
        settings.pass_over(*(f"{of}.{name}" for name in _WHO_TAKES_PART))
    else:
        settings.take_under(of)
    return count


def _copies(settings: Settings, row: dict[str, Any], found: Understood) -> None:
    replicas = whole(settings, keys.REPLICATE, "dp", "zero_shard_size", "zero", default=1) or 1
    shards = whole(settings, keys.SHARD, "dp", "zero_shard_size", "zero", default=-1)
    cp, pp = row.get("cp", 1), row.get("pp", 1)
    # "default" reshards behind forward but in pipelines (distributed/fsdp.py, get_fsdp_reshard_after_forward_policy).
    spelled = row.get("zero", 0)  # "default" is read as 0
    row["zero"] = spelled or (0 if shards == 1 and cp == 1 else 2 if pp > 1 else 3)
    if shards is not None and shards > 0:
        row["dp"] = replicas * shards
        found.world_size = replicas * shards * cp * pp * row.get("tp", 1)
        row["zero_shard_size"] = shards * cp if row["zero"] else None
    if settings.value(keys.CPU_OFFLOAD, "offload.parameters", "offload.optimizer_fraction") is True:
        row["offload.parameters"], row["offload.optimizer_fraction"] = True, 1.0
    # The key says nothing where no ranks share the experts: these are then split over tp like every other layer.
    etp = whole(settings, keys.EXPERT_TENSOR, "etp")
    if _experts(row) or row.get("ep", 1) > 1:
        row["etp"] = (etp or 1) if row.get("ep", 1) > 1 else row.get("tp", 1)


def _experts(row: dict[str, Any]) -> bool | None:
    """Whether the model has experts; None where the files do not say which model it is."""
    preset = row.get("model.preset")
    if preset is None and row.get("model.num_layers") is None:
        return None
    return row.get("model.moe") is not None or preset in PRESETS_OF_EXPERTS


def _batch(settings: Settings, row: dict[str, Any]) -> None:
    local = whole(settings, keys.LOCAL_BATCH, "micro_batch_size", "num_micro_batches", default=8)
    chunk = whole(settings, keys.PIPELINE_MICRO_BATCH, "micro_batch_size", default=1)
    row["micro_batch_size"] = chunk if row.get("pp", 1) > 1 else local
    if row.get("training.global_batch_size", -1) < 0:
        row["training.global_batch_size"] = None if "dp" not in row or local is None else local * row["dp"]


def _stages(settings: Settings, row: dict[str, Any]) -> None:
    pp, layers = row.get("pp", 1), row.get("model.num_layers")
    modules = settings.value(keys.MODULES, "layers_per_stage", "vpp")
    each = whole(settings, keys.LAYERS_PER_STAGE, "layers_per_stage", "vpp")
    first = whole(settings, keys.FIRST_LESS, "layers_per_stage", default=1) or 0
    last = whole(settings, keys.LAST_LESS, "layers_per_stage", default=1) or 0
    if pp == 1:
        return
    # Where nothing is said, schedules of several stages get two on each rank (distributed/pipeline_parallel.py).
    schedule = row.get("schedule", "1f1b")
    stages = pp * (1 if schedule in ("1f1b", "gpipe") else 2)
    if modules:
        row["layers_per_stage"] = [sum(str(name).startswith("layers.") for name in part) for part in modules]
        stages = len(modules)
    elif layers is not None:
        if each:
            stages = -(-(layers + first + last) // each)
        # More stages than layers end torchtitan's start, and without bound they would end ours.
        if not 0 < stages <= layers + first + last:
            return
        row["layers_per_stage"] = layers_of_stages(stages, layers, first, last)
    row["vpp"] = stages // pp


def layers_of_stages(stages: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each virtual stage where embedding and head count as `first` and `last` layers.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.
    """
    base, extra = divmod(layers + first + last, stages)
    counts = [base + (stage < extra) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def _recompute(settings: Settings, row: dict[str, Any]) -> None:
    mode = peeked(settings, keys.CHECKPOINT_MODE)
    # The parser's own default is every second layer; the recipes say "op".
    option = str(peeked(settings, keys.CHECKPOINT_OPTION) or "2")
    if mode not in ("none", "full", "selective", None):
        return
    settings.take(keys.CHECKPOINT_MODE, "recompute")
    settings.take(keys.CHECKPOINT_OPTION, "recompute", "recompute_num_layers")
    row["recompute"] = mode or "selective"
    if (
        row["recompute"] != "selective"
        or option == "op"
        or row["training.framework_version"] == "0.3"
        or not option.isdigit()
    ):
        return
    split = row.get("layers_per_stage") or [row.get("model.num_layers") or 0]
    row["recompute"] = "full"
    if int(option) > 1 and split[0]:
        row["recompute_method"], row["recompute_num_layers"] = "block", max(split[0] // int(option), 1)


def _types(settings: Settings, row: dict[str, Any]) -> None:
    computed = settings.value(keys.COMPUTE, "training.precision", default="bfloat16")
    settings.take(keys.REDUCE, "training.grad_reduce_dtype")
    row["training.precision"] = "fp32" if computed == "float32" else "bf16"
    row.setdefault("training.param_dtype", "fp32")
    if row["zero"] >= 2 or row["training.framework_version"] == "0.3":
        row["training.grad_reduce_dtype"] = "fp32"
    # No recipe means tensorwise scaling (components/quantization/float8.py).
    said = peeked(settings, keys.CONVERTERS) or ()
    named = tuple(str(said).split(",")) if isinstance(said, str) else said if isinstance(said, tuple) else ()
    converters = tuple(keys.CONVERTERS_OLDER.get(str(each).strip(), str(each).strip()) for each in named)
    if peeked(settings, keys.FLOAT8_ON) is True:
        settings.take(keys.FLOAT8_ON, "training.precision")
        converters = ("float8",)
    elif converters not in ((), ("float8",), ("mx",)):
        settings.doubt(keys.CONVERTERS, "training.precision")
    # Recipes list the options of every converter, whichever of them runs.
    if not converters:
        settings.take_under("quantize")  # of no converter that runs
    recipe = None
    micro = converters in ((keys.MX_CONVERTER,), ("mx",))
    if micro or converters in ((keys.FLOAT8_CONVERTER,), ("float8",)):
        settings.take(keys.CONVERTERS, "training.precision")
        # Whichever small products a filter leaves in bf16, the row calls the training fp8.
        settings.take(keys.MX_FILTER if micro else keys.FLOAT8_FILTER, "training.precision")
        recipe = "mxfp8" if micro else settings.value(keys.FLOAT8_RECIPE, "training.fp8_recipe", default="tensorwise")
        settings.take(keys.MX_RECIPE, "training.fp8_recipe")
        settings.take(keys.FLOAT8_GATHER, "training.fp8_recipe")
        settings.take(keys.FLOAT8_SCALES, "training.fp8_recipe")
    converter = settings.value("converter.class", "training.precision", "training.fp8_recipe")
    gathers, said_recipe = (
        peeked(settings, "converter.enable_fsdp_float8_all_gather"),
        peeked(settings, "converter.recipe_name"),
    )
    settings.take_under("converter", "training.fp8_recipe")
    # Gathers in float8 belong to tensorwise scaling, which an older converter did unless it was told.
    scaled = "tensorwise" if gathers else "rowwise"
    recipe = {"Float8LinearConverter": str(said_recipe or scaled), "MXFP8LinearConverter": "mxfp8"}.get(
        str(converter), recipe
    )
    if recipe is not None:
        row["training.precision"], row["training.fp8_recipe"] = "fp8", recipe
    elif converter == "NVFP4LinearConverter":
        row["training.precision"] = "nvfp4"
    if str(settings.value(keys.OPTIMIZER, "training.optimizer", default="AdamW")) in ("Adam", "AdamW"):
        row["training.optimizer"] = "adam"
    row["training.expandable_segments"] = any(
        "expandable_segments:True" in str(settings.value(f"${name}", "training.expandable_segments")) for name in NAMES
    ) or None  # fmt: skip


def _compilation(settings: Settings, row: dict[str, Any]) -> None:
    on = settings.value(keys.COMPILE, "training.compile", "training.cross_entropy") is True
    # CompileConfig compiles both unless its components are named.
    components = settings.value(
        keys.COMPONENTS, "training.compile", "training.cross_entropy", default=("model", "loss")
    )
    row["training.compile"] = on and "model" in components
    row["training.cross_entropy"] = "compiled" if on and "loss" in components else "unfused"
    if settings.value("loss.chunked", "training.cross_entropy"):
        row["training.cross_entropy"] = "chunked"


def _reduces(row: dict[str, Any], *, python: bool) -> str:
    """When the loop reduces gradients (write.py's document says why)."""
    return "last" if row.get("pp", 1) > 1 and (python or row["zero"] >= 2) else "each"


def _drop_idle(row: dict[str, Any], *, python: bool) -> None:
    """Fields that the files spell although they make no difference, and what a release decides by itself."""
    idle = {
        "tp": ("sequence_parallel", "overlap.tp_comm"), "cp": ("cp_comm",), "pp": ("schedule",), "ep": ("overlap.moe_all_to_all", "moe_dispatcher"),
    }  # fmt: skip
    for degree, fields in idle.items():
        if row.get(degree, 1) == 1:
            for field in fields:
                row.pop(field, None)
    if _experts(row) is False:
        for field in ("ep", "etp", "moe_dispatcher"):
            row.pop(field, None)
    if not python and row.get("moe_dispatcher") == "flex":
        row["flex_backend"] = "deepep"
    if not python and row.get("tp", 1) > 1:
        row["sequence_parallel"] = True
