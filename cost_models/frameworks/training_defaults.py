"""What the training of a framework looks like where the user does not say: one table per field, first matching row wins.

A row names the software dates, releases, GPU generations and transformer implementations it holds for. The tables here are
the usual ones; a framework's own file replaces those in which it differs. A changed default is a new row, not a branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.frameworks.releases import precedes

HOPPER_ON: frozenset[str] = frozenset({"hopper", "blackwell"})
AMPERE_ON: frozenset[str] = frozenset({"ampere", "ada", *HOPPER_ON})


@dataclass(frozen=True, slots=True)
class Row:
    """One default and what it holds for; None holds for everything."""

    value: object
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


Rows = tuple[Row, ...]

MATH_IN_FP32 = Row("math", precisions=frozenset({"fp32"}))
MATH_BEFORE_FLASH = Row("math", before="2023-01")
SDPA_ON_VOLTA = Row("sdpa", generations=frozenset({"volta"}))
FA1 = Row("fa1", before="2023-08")
"""FlashAttention-2 came out on 2023-07-17."""

USUAL: Mapping[str, Rows] = {
    "transformer_impl": (Row("local"),),
    # FlashAttention reached Megatron and PyTorch in the winter of 2022/23; none of its kernels takes fp32 or Volta,
    # where PyTorch falls back to its memory-efficient kernel.
    "attention": (MATH_IN_FP32, MATH_BEFORE_FLASH, Row("flash")),
    "attention_kernel": (SDPA_ON_VOLTA, FA1, Row("fa2")),
    "cross_entropy": (Row("unfused"),),
    "fp8_recipe": (Row("mxfp8", generations=frozenset({"blackwell"}), since="2025-05"), Row("delayed")),
    "compile": (Row(False),),
    "cuda_graphs": (Row(False),),
    "expandable_segments": (Row(False),),
    "dropout": (Row(0.0),),
}
"""Defaults of `training` fields that are plain look-ups. Types of parameters and gradients follow from `StateDtypes`."""

USUAL_SDPA: Rows = (Row("cudnn", since="2026-03", generations=HOPPER_ON), Row("sdpa"))
"""Which kernel scaled_dot_product_attention runs; `sdpa` itself stands for FlashAttention 2, or what a GPU has in its place."""

# FlashAttention-2 is in PyTorch's scaled_dot_product_attention from 2.2 (2024-01).
FA1_IN_TORCH = Row("fa1", before="2024-01")

COMPUTE = "compute"
"""In `StateDtypes`: the type of `training.precision`'s matrix inputs as stored (bf16 for fp8 and nvfp4)."""
PARAM = "param"
"""In `StateDtypes`: whatever `param_dtype` is."""
GRAD = "grad"
"""In `StateDtypes`: whatever `grad_dtype` is."""


@dataclass(frozen=True, slots=True)
class StateDtypes:
    """Types in which a framework keeps a model's state: names of types, or one of COMPUTE, PARAM and GRAD."""

    param_dtype: str
    main_param_dtype: str
    grad_dtype: str
    grad_reduce_dtype: str
    fp16_gradients: bool = False
    """Held gradients are fp16 where `precision` is."""
    stated_grad_is_reduced: bool = False
    """Gradients are reduced in `grad_dtype` where the user states it, whatever `grad_reduce_dtype` here says."""


MIXED_PRECISION = StateDtypes(param_dtype=COMPUTE, main_param_dtype="fp32", grad_dtype="fp32", grad_reduce_dtype=GRAD)
"""Parameters in the compute type beside an fp32 copy, and gradients summed in fp32."""


def chosen(rows: Rows, setting: Setting) -> object:
    """The value of the first row that holds in this setting."""
    return next(row.value for row in rows if _holds(row, setting))


def _holds(row: Row, setting: Setting) -> bool:
    return (
        row.since <= setting.date < row.before
        and (row.generations is None or setting.generation in row.generations)
        and (row.impl is None or setting.impl == row.impl)
        and (row.precisions is None or setting.precision in row.precisions)
        and (row.compiled is None or setting.compiled == row.compiled)
        and (row.recipe is None or setting.recipe == row.recipe)
        and not (row.since_version and precedes(setting.version, row.since_version))
    )
