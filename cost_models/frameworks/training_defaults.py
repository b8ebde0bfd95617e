"""What a framework does when the user does not say: one table per field, first matching row wins.

A row names the frameworks, software dates, GPU generations and transformer implementation it holds for; `at_date` reads
the tables. Sources stand beside the rows; a changed default is a new row, not a branch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.specs.training import Framework

RELEASES: Mapping[Framework, tuple[tuple[str, str], ...]] = {
    "megatron": (
        ("0.8", "2024-08"), ("0.9", "2024-10"), ("0.10", "2025-02"), ("0.11", "2025-03"), ("0.12", "2025-05"),
        ("0.13", "2025-07"), ("0.14", "2025-10"), ("0.15", "2025-12"), ("0.16", "2026-02"), ("0.17", "2026-04"),
        ("0.18", "2026-06"), ("0.19", "2026-08"),
    ),
    "megatron-deepspeed": (("2022", "2022-01"), ("2023", "2023-07"), ("2024", "2024-04")),
    "deepspeed": (
        ("0.5", "2021-08"), ("0.9", "2023-04"), ("0.12", "2023-11"), ("0.14", "2024-03"), ("0.15", "2024-08"),
        ("0.16", "2024-11"), ("0.17", "2025-06"), ("0.18", "2025-10"), ("0.19", "2026-05"),
    ),
    "torchtitan": (("0.1", "2025-06"), ("0.2", "2025-10"), ("0.3", "2026-09")),
    "fsdp": (
        ("1.12", "2022-06"), ("2.0", "2023-03"), ("2.1", "2023-10"), ("2.4", "2024-07"), ("2.6", "2025-01"),
        ("2.8", "2025-08"), ("2.11", "2026-03"), ("2.13", "2026-07"),
    ),
    "nanotron": (("0.4", "2024-03"), ("0.5", "2024-04"), ("2025", "2025-06")),
}  # fmt: skip
"""Releases, oldest first, with the month each came out (fsdp: of PyTorch). Checked: Megatron 0.8-0.16, torchtitan and
nanotron 0.4 by the build dates of their wheels, nanotron 0.5 by its tag (2024-04-19), Megatron 0.18 by its source archive, DeepSpeed 0.5, 0.12-0.17 and 0.19 by
the dates in their source packages, PyTorch 1.12-2.6 by the project's table of versions. Not checked beyond memory of the
release notes: Megatron 0.17 and 0.19 (between their neighbours), DeepSpeed 0.9 and 0.18, PyTorch 2.8 on,
Megatron-DeepSpeed (which has no releases: 2022 is BigScience's, 2023 and 2024 Microsoft's). nanotron has tagged none since
0.5, and its package still calls itself 0.4: 2025 is its main branch of that year, and `software_date` tells any other."""

MEGATRONS: frozenset[str] = frozenset({"megatron", "megatron-deepspeed"})
PYTORCH: frozenset[str] = frozenset({"fsdp", "torchtitan"})
HUGGING_FACE: frozenset[str] = frozenset({"deepspeed", "fsdp"})
TORCHTITAN: frozenset[str] = frozenset({"torchtitan"})
HOPPER_ON: frozenset[str] = frozenset({"hopper", "blackwell"})
AMPERE_ON: frozenset[str] = frozenset({"ampere", "ada", *HOPPER_ON})


@dataclass(frozen=True, slots=True)
class Row:
    """One default and what it holds for; None holds for everything."""

    value: object
    frameworks: frozenset[str] | None = None
    since: str = "0000-00"
    before: str = "9999-99"
    generations: frozenset[str] | None = None
    impl: str | None = None
    precisions: frozenset[str] | None = None
    compiled: bool | None = None
    since_version: str = ""
    """The first release; for what a stack's date cannot tell, since its framework may be older than the stack."""
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts a default may depend on."""

    framework: str
    date: str
    generation: str
    precision: str
    impl: str = ""
    compiled: bool = False
    version: str = ""
    recipe: str | None = None


TRAINING_DEFAULTS: Mapping[str, tuple[Row, ...]] = {
    # Megatron-LM arguments.py: --transformer-impl became transformer_engine in early 2024.
    "transformer_impl": (
        Row("transformer-engine", frozenset({"megatron"}), since="2024-01"),
        Row("local"),
    ),
    # FlashAttention reached Megatron and PyTorch in the winter of 2022/23; none of its kernels takes fp32 or Volta,
    # where PyTorch falls back to its memory-efficient kernel.
    "attention": (
        Row("math", precisions=frozenset({"fp32"})),
        Row("math", MEGATRONS, generations=frozenset({"volta"})),
        Row("math", before="2023-01"),
        Row("flash"),
    ),
    # FlashAttention-2: 2023-07, in PyTorch's scaled_dot_product_attention from 2.2 (2024-01). Transformer Engine picks
    # cuDNN's kernel on Hopper and later. torchtitan 0.3's language models take FlexAttention (models/common/config_utils.py,
    # models/llama3/__init__.py); what scaled_dot_product_attention runs elsewhere is SDPA_KERNELS.
    "attention_kernel": (
        Row("sdpa", generations=frozenset({"volta"})),
        Row("fa1", PYTORCH, before="2024-01"),
        Row("flex", TORCHTITAN, since_version="0.3"),
        Row("cudnn", TORCHTITAN, since_version="0.2", generations=AMPERE_ON),
        Row("cudnn", frozenset({"fsdp"}), since_version="2.11", generations=HOPPER_ON),
        Row("sdpa", PYTORCH),
        Row("fa1", before="2023-08"),  # FlashAttention-2 came out on 2023-07-17
        Row("cudnn", frozenset({"megatron"}), since="2024-09", generations=HOPPER_ON, impl="transformer-engine"),
        Row("fa2"),
    ),
    # Transformer Engine's parallel cross entropy is in NVIDIA's recipes of 2025, whereas Megatron's parser leaves fusion off
    # and the implementation native (model_parallel_config.py, through 0.19). torchtitan compiles its loss from 2025, and
    # all recipes of 0.3 cut it into chunks (config_registry.py of each model: ChunkedLossWrapper).
    "cross_entropy": (
        Row("te", frozenset({"megatron"}), since="2025-01", impl="transformer-engine", recipe="nvidia-perf"),
        Row("chunked", TORCHTITAN, since_version="0.3"),
        Row("compiled", frozenset({"torchtitan"}), since="2025-01", compiled=True),
        Row("unfused"),
    ),
    "fp8_recipe": (
        Row("tensorwise", PYTORCH),
        Row("mxfp8", generations=frozenset({"blackwell"}), since="2025-05"),
        Row("tensorwise", frozenset({"megatron"}), since="2025-05"),
        Row("delayed"),
    ),
    "compile": (Row(False),),
    "cuda_graphs": (Row(False),),
    # torchtitan's run_train.sh sets PYTORCH_ALLOC_CONF=expandable_segments:True.
    "expandable_segments": (Row(True, frozenset({"torchtitan"})), Row(False)),
    # Megatron-LM arguments.py: --attention-dropout and --hidden-dropout 0.1; the recipes of decoder-only models
    # switched it off from 2023 on.
    "dropout": (Row(0.1, MEGATRONS, before="2023-01"), Row(0.0)),
}
"""Defaults of `training` fields that are plain look-ups. Types of parameters and gradients follow from STATE_DTYPES."""

SDPA_KERNELS: tuple[Row, ...] = (
    # torchtitan/models/attention.py: FlashAttention comes first in 0.1 (but on B200), cuDNN's kernel from 0.2.
    Row("cudnn", TORCHTITAN, since_version="0.2", generations=AMPERE_ON),
    Row("sdpa", TORCHTITAN),
    # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention): cuDNN's first on Hopper and
    # Blackwell where cuDNN is newer than 9.15; PyTorch's wheels carry 9.10 up to 2.10 and 9.19 from 2.11. Seen on an H100.
    Row("cudnn", frozenset({"fsdp"}), since_version="2.11", generations=HOPPER_ON),
    Row("sdpa", frozenset({"fsdp"})),
    Row("cudnn", since="2026-03", generations=HOPPER_ON),
    Row("sdpa"),
)
"""Which kernel scaled_dot_product_attention runs; `sdpa` itself stands for FlashAttention 2, or what a GPU has in its place."""

COMPUTE = "compute"
"""In STATE_DTYPES: the type of `training.precision`'s matrix inputs as stored (bf16 for fp8 and nvfp4)."""
PARAM = "param"
"""In STATE_DTYPES: whatever `param_dtype` is."""

STATE_DTYPES: Mapping[str, Mapping[str, str]] = {
    # Megatron-LM arguments.py: --bf16 implies --accumulate-allreduce-grads-in-fp32, --fp16 does not.
    "megatron": {"param_dtype": COMPUTE, "main_param_dtype": "fp32", "grad_dtype": "fp32", "grad_reduce_dtype": "grad"},
    # DeepSpeed BF16_Optimizer accumulates in fp32; FP16_Optimizer keeps fp16 gradients.
    "megatron-deepspeed": {
        "param_dtype": COMPUTE, "main_param_dtype": "fp32", "grad_dtype": "fp32", "grad_reduce_dtype": "grad",
    },
    # DeepSpeed config: grad_accum_dtype and communication_data_type default to the model's type.
    "deepspeed": {
        "param_dtype": COMPUTE, "main_param_dtype": "fp32", "grad_dtype": COMPUTE, "grad_reduce_dtype": "grad",
    },
    # torchtitan TrainingConfig: dtype float32, mixed_precision_reduce float32.
    "torchtitan": {"param_dtype": "fp32", "main_param_dtype": "none", "grad_dtype": PARAM, "grad_reduce_dtype": "fp32"},
    # FSDP MixedPrecision: reduce_dtype is param_dtype unless given.
    "fsdp": {"param_dtype": "fp32", "main_param_dtype": "none", "grad_dtype": PARAM, "grad_reduce_dtype": COMPUTE},
    # nanotron config: accumulate_grad_in_fp32 true.
    "nanotron": {"param_dtype": COMPUTE, "main_param_dtype": "fp32", "grad_dtype": "fp32", "grad_reduce_dtype": "grad"},
}  # fmt: skip
FP16_GRADIENTS: frozenset[str] = frozenset({"megatron", "megatron-deepspeed"})
"""Frameworks whose held gradients are fp16 under --fp16."""


def default_of(field: str, setting: Setting) -> object:
    """The value a field takes when it is not given."""
    return next(row.value for row in TRAINING_DEFAULTS[field] if _holds(row, setting))


def sdpa_kernel(setting: Setting) -> object:
    """The kernel that runs where a job asks for `sdpa`."""
    return next(row.value for row in SDPA_KERNELS if _holds(row, setting))


def _holds(row: Row, setting: Setting) -> bool:
    return (
        (row.frameworks is None or setting.framework in row.frameworks)
        and row.since <= setting.date < row.before
        and (row.generations is None or setting.generation in row.generations)
        and (row.impl is None or setting.impl == row.impl)
        and (row.precisions is None or setting.precision in row.precisions)
        and (row.compiled is None or setting.compiled == row.compiled)
        and (row.recipe is None or setting.recipe == row.recipe)
        and not (row.since_version and precedes(setting.version, row.since_version))
    )


def precedes(version: str, release: str) -> bool:
    """Whether a version is older than a release; one that gives fewer numbers stands for the newest of its series."""
    key = version_key(version)
    return key < version_key(release)[: len(key)]


def default_model_impl(framework: Framework) -> str:
    """Whose modules run where the user does not say: most people run Hugging Face models under DeepSpeed and FSDP."""
    return "transformers" if framework in HUGGING_FACE else "native"


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for ordering."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))


def release_at(framework: Framework, date: str) -> str:
    """The newest release that was out in this month, or the oldest known one."""
    out = [version for version, month in RELEASES[framework] if month <= date]
    return out[-1] if out else RELEASES[framework][0][0]


def date_of(framework: Framework, version: str) -> tuple[str, bool]:
    """Month of a release, and whether the release is a known one; a patch release counts as its minor one."""
    key, releases = version_key(version), RELEASES[framework]
    for known, month in releases:
        known_key = version_key(known)
        if key[: len(known_key)] == known_key:
            return month, True
    earlier = [month for known, month in releases if version_key(known) <= key]
    return (earlier[-1] if earlier else releases[0][1]), False
