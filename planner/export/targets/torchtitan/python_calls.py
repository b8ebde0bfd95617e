"""The settings of a Python configuration of torchtitan, read from its syntax tree: nothing is imported or run.

Keyword arguments of the calls that are known get the keys that TOML has for them, such as "training.seq_len" for
`TrainingConfig(seq_len=...)`; those of other calls, "Name.keyword". Values are literals, and names of module constants.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from planner.export.formats.documents import unreadable
from planner.export.settings import InputFile, Setting

SECTIONS: Mapping[str, str] = {
    "TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile",
    "TransformerModelArgs": "model", "Qwen3ModelArgs": "model", "DeepSeekV3ModelArgs": "model", "MoEArgs": "experts",
    "family._build_llama3_layers": "model", "family._build_qwen3_layers": "model", "family._build_qwen3_moe_layers": "model",
    "family.build_mla_moe_layers": "model", "ComplexRoPE.Config": "rope", "CosSinRoPE.Config": "rope",
    "family.Llama3Model.Config": "ends", "family.Qwen3Model.Config": "ends", "family.DeepSeekV3Model.Config": "ends",
    "Float8LinearConverter.Config": "converter", "MXFP8LinearConverter.Config": "converter", "NVFP4LinearConverter.Config": "converter",
    "Linear.Config": "head", "Embedding.Config": "embedding", "RMSNorm.Config": "norm",
}  # fmt: skip
_VALUES_ALONE = frozenset({"training", "parallelism", "compile"})
"""Sections that hold nothing but values."""
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
    found: list[Setting] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _call(node, constants, file)
        # What the writer says of models whose heads have no norms.
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "layer.attention.qk_norm":
            found.append(_setting("model.qk_norm", False, node, file))
        # `config.training.steps = 10`, on what another function has built.
        elif isinstance(node, ast.Assign) and len(path := ast.unparse(node.targets[0]).split(".")) == 3:
            if path[1] in SECTIONS.values():
                value = _value(node.value, constants)
                key = ".".join(path[1:])
                found.append(_setting(key, value, node.value, file, is_open=value is _UNKNOWN))
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
    text = ast.get_source_segment(file.content, node) or ""
    return Setting(key, value, file.path, node.lineno, node.col_offset + 1, node.end_lineno or 0, text, is_open)
