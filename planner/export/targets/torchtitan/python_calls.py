"""The settings of a Python configuration of torchtitan, read from its syntax tree: nothing is imported or run.

Keyword arguments of the calls that are known get the keys that TOML has for them, such as "training.seq_len" for
`TrainingConfig(seq_len=...)`; those of other calls, "Name.keyword". Values are literals, and names of module constants.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from planner.export.formats.documents import unreadable
from planner.export.formats.python_module import segment
from planner.export.settings import InputFile, Setting

SECTIONS: Mapping[str, str] = {
    "TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile",
    "TransformerModelArgs": "model", "Qwen3ModelArgs": "model", "DeepSeekV3ModelArgs": "model", "MoEArgs": "experts",
    "family._build_llama3_layers": "model", "family._build_qwen3_layers": "model", "family._build_qwen3_moe_layers": "model",
    "family.build_mla_moe_layers": "model", "ComplexRoPE.Config": "rope", "CosSinRoPE.Config": "rope",
    "family.Llama3Model.Config": "ends", "family.Qwen3Model.Config": "ends", "family.DeepSeekV3Model.Config": "ends",
    "Float8LinearConverter.Config": "converter", "MXFP8LinearConverter.Config": "converter", "NVFP4LinearConverter.Config": "converter",
    "Linear.Config": "head", "Embedding.Config": "embedding", "RMSNorm.Config": "norm",
    "ActivationCheckpointConfig": "activation_checkpoint", "OptimizersContainer.Config": "optimizer", "default_adamw": "optimizer",
    "LRSchedulersContainer.Config": "lr_scheduler", "MetricsProcessor.Config": "metrics", "StepMetrics.Config": "metrics",
    "ProfilingConfig": "profiling", "CheckpointManager.Config": "checkpoint", "HuggingFaceTextDataLoader.Config": "training.dataloader",
    "CommConfig": "comm", "DebugConfig": "debug", "Validator.Config": "validation", "CrossEntropyLoss.Config": "loss",
}  # fmt: skip
_VALUES_ALONE = frozenset({"training", "parallelism", "compile", "activation_checkpoint", "optimizer"})
"""Sections that hold nothing but values."""
_HOLDING = frozenset({"Trainer.Config", "ModelConvertersContainer.Config"})
"""Calls that hold others."""
_BESIDE = frozenset({"dataloader", "tokenizer"})
"""Parts of a configuration that decide what is read, not how long it takes."""
_PARTS = frozenset({*SECTIONS.values(), "model_spec", "model_converters"})
CHECKPOINTS: Mapping[str, str] = {"FullAC.Config": "full", "SelectiveAC.Config": "selective"}
_UNKNOWN = object()
_MOST_DEPTH = 60


def read_python(file: InputFile) -> list[Setting]:
    """The settings of a module.

    Raises:
        SyntaxError: it is not Python, with its line.
    """
    # Parsing runs nothing: decorators, defaults and imports stay syntax.
    tree = ast.parse(file.content)
    _refuse_several(tree, file)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: list[Setting] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _call(node, constants, file)
            if ast.unparse(node.func) in _HOLDING:
                found += _held(node, own, file)
        # What the writer says of models whose heads have no norms.
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "layer.attention.qk_norm":
            found.append(_setting("model.qk_norm", False, node, file))
        # `config.training.steps = 10`, on what another function has built.
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path = ast.unparse(node.targets[0]).split(".")
            if len(path) == 3 and path[0] != "self":
                value = _value(node.value, constants)
                key = ".".join(path[1:])
                found.append(_setting(key, value, node.value, file, is_open=value is _UNKNOWN))
            elif len(path) == 2 and path[1] in _PARTS and not _is_known(node.value, own):
                found.append(_setting(path[1], None, node.value, file, is_open=True))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            value = _value(node.value, constants)
            if value is not _UNKNOWN:
                found.append(_setting(f"constant.{node.targets[0].id}", value, node.value, file))
    return sorted(found, key=lambda setting: (setting.line, setting.column))


def _refuse_several(tree: ast.Module, file: InputFile) -> None:
    """Refuses a registry of configurations, of which a launch line names one."""
    holding = [
        each
        for each in tree.body
        if isinstance(each, ast.FunctionDef)
        and any(isinstance(node, ast.Call) and ast.unparse(node.func) == "TrainingConfig" for node in ast.walk(each))
    ]
    if len(holding) > 1:
        names = ", ".join(each.name for each in holding[:5])
        raise unreadable(
            file,
            holding[1].lineno,
            f"holds {len(holding)} configurations: {names}",
            "Give a file with the one that runs.",
        )


def _call(node: ast.Call, constants: Mapping[str, ast.expr], file: InputFile) -> Iterator[Setting]:
    name = ast.unparse(node.func)
    if name in CHECKPOINTS:
        yield _setting("activation_checkpoint.mode", CHECKPOINTS[name], node, file)
        return
    if name == "ChunkedLossWrapper.Config":
        yield _setting("loss.chunked", True, node, file)
        return
    section = SECTIONS.get(name)
    if section in ("model", "converter"):
        yield _setting(f"{section}.class", name.removesuffix(".Config"), node, file)
    for keyword in node.keywords:
        if (
            keyword.arg == "activation_checkpoint"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is None
        ):
            yield _setting("activation_checkpoint.mode", "none", keyword.value, file)
        if section is None or keyword.arg is None:
            continue
        value = _value(keyword.value, constants)
        if value is not _UNKNOWN:
            yield _setting(f"{section}.{keyword.arg}", value, keyword.value, file)
        # Known calls inside are settings of their own; anything else that is computed could be any value.
        elif section in _VALUES_ALONE and not (
            isinstance(keyword.value, ast.Call) and ast.unparse(keyword.value.func) in SECTIONS
        ):
            yield _setting(f"{section}.{keyword.arg}", None, keyword.value, file, is_open=True)


def _is_known(node: ast.expr, own: Collection[str]) -> bool:
    """Whether a value is a call that is read for itself: a section, or a function of this module."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return (
        name in SECTIONS
        or name in CHECKPOINTS
        or name in _HOLDING
        or name in own
        or name == "ChunkedLossWrapper.Config"
    )


def _held(node: ast.Call, own: Collection[str], file: InputFile) -> Iterator[Setting]:
    """What a configuration is given beside the known sections: settings that somebody has to know."""
    for keyword in node.keywords:
        each = keyword.value
        if keyword.arg in _BESIDE or (isinstance(each, ast.Constant) and keyword.arg == "activation_checkpoint"):
            continue
        within = each.elts if isinstance(each, ast.List | ast.Tuple) else [each]
        for part in within:
            if not _is_known(part, own):
                value = _value(part.args[0] if isinstance(part, ast.Call) and part.args else part, {})
                name = keyword.arg or "**"
                yield _setting(
                    f"config.{name}", None if value is _UNKNOWN else value, part, file, is_open=value is _UNKNOWN
                )


def _value(node: ast.expr, constants: Mapping[str, ast.expr], depth: int = 0) -> Any:
    """The value of a literal; lists become tuples."""
    # Constants of a module may name each other, in a circle at worst.
    if isinstance(node, ast.Name) and node.id in constants and depth < _MOST_DEPTH:
        return _value(constants[node.id], constants, depth + 1)
    try:
        return _frozen(ast.literal_eval(node))
    except (ValueError, TypeError, MemoryError, RecursionError):
        return _UNKNOWN


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value


def _setting(key: str, value: Any, node: ast.expr | ast.stmt, file: InputFile, *, is_open: bool = False) -> Setting:
    text = segment(file.content, node)
    return Setting(key, value, file.path, node.lineno, node.col_offset + 1, node.end_lineno or 0, text, is_open)
