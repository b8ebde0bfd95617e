"""Asks NeMo's signatures and Megatron Core's own configuration classes what they make of exported scripts.

Run in a process of its own: `python nemo_arguments.py NEMO CORE` with the unpacked wheels in these folders, and on standard input a
list of scripts. NeMo itself asks for CUDA and Lightning, so that its classes stand in here with the arguments that their source
declares, and nothing else is taken; `GPTConfig` has the fields of its source on top of Megatron Core's real class, and the classes of
gradients and of the optimizer are Megatron Core's. Arguments of the strategy and of mixed precision are then handed to the model's
configuration as NeMo does, which validates them once more. Standard output is a list of `{sections, layout}` or `{error}`.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import megatron_parser

CLASSES = {
    "MegatronStrategy": "lightning/pytorch/strategies/megatron_strategy.py", "MegatronMixedPrecision": "lightning/pytorch/plugins/mixed_precision.py",
    "MegatronCommOverlapCallback": "lightning/pytorch/callbacks/megatron_comm_overlap.py", "MockDataModule": "collections/llm/gpt/data/mock.py",
    "PreTrainingDataModule": "collections/llm/gpt/data/pre_training.py", "LoRA": "collections/llm/peft/lora.py",
    "DoRA": "collections/llm/peft/dora.py", "CanonicalLoRA": "collections/llm/peft/canonical_lora.py",
}  # fmt: skip


def declared(source: Path, name: str) -> ast.ClassDef:
    """A class as its source declares it."""
    tree = ast.parse(source.read_text())
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def arguments(node: ast.ClassDef) -> set[str]:
    """What a class can be given: the arguments of its constructor, or its fields."""
    own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    if own:
        return {each.arg for each in (*own[0].args.args[1:], *own[0].args.kwonlyargs)}
    return {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def stand_in(node: ast.ClassDef) -> type:
    """A class that keeps what it is given, and takes nothing that is not declared."""
    known = arguments(node)

    def init(self: Any, **given: Any) -> None:
        if given.keys() - known:
            raise TypeError(f"{node.name} takes no {', '.join(sorted(given.keys() - known))}")
        self.given = given

    return type(node.name, (), {"__init__": init})


def gpt_config(nemo: Path) -> type:
    """`GPTConfig` with the fields of its source, on Megatron Core's class."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    fields = []
    for each in declared(nemo / "collections/llm/gpt/model/base.py", "GPTConfig").body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            value = each.value.value if isinstance(each.value, ast.Constant) else None
            fields.append((each.target.id, Any, dataclasses.field(default=value)))
    return dataclasses.make_dataclass("GPTConfig", fields, bases=(TransformerConfig,))


def modules(nemo: Path) -> None:
    """Puts the stand-ins in place, under the names that scripts import."""
    found = {name: stand_in(declared(nemo / path, name)) for name, path in CLASSES.items()}
    callback = type("Callback", (), {})
    peft = types.SimpleNamespace(**{name: found[name] for name in ("LoRA", "DoRA", "CanonicalLoRA")})
    contents: dict[str, dict[str, Any]] = {
        "lightning": {}, "lightning.pytorch": {"Callback": callback}, "nemo": {}, "nemo.collections": {},
        "nemo.lightning": {name: found[name] for name in ("MegatronStrategy", "MegatronMixedPrecision")},
        "nemo.collections.llm": {
            "GPTConfig": gpt_config(nemo), "peft": peft, "MockDataModule": found["MockDataModule"],
            "PreTrainingDataModule": found["PreTrainingDataModule"],
        },
        "nemo.collections.llm.gpt.model.base": {"local_layer_spec": _local},
        "nemo.lightning.pytorch.callbacks.megatron_comm_overlap": {"MegatronCommOverlapCallback": found["MegatronCommOverlapCallback"]},
        "nemo.collections.nlp.modules.common.tokenizer_utils": {"get_nmt_tokenizer": dict},
        "nemo.collections.common.tokenizers.tokenizer_utils": {"get_nmt_tokenizer": dict},
    }  # fmt: skip
    for name, values in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(values)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, module)


def _local() -> None:
    """Stands for a specification of layers."""


def ask(text: str, copied: set[str]) -> dict[str, Any]:
    """What the classes make of one script, or the error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            script: dict[str, Any] = {"__name__": "train", "__file__": "train.py"}
            # Dataclasses look their module up.
            sys.modules["train"] = types.ModuleType("train")
            exec(compile(text, "train.py", "exec"), script)
            config, strategy, precision = (
                script["model_config"](),
                script["strategy"]().given,
                script["precision"]().given,
            )
            ddp, optimizer = strategy.pop("ddp"), script["optimizer_config"]()
            overlap, adapter = script["comm_overlap"](), script["adapter"]()
            mocked = script["data_module"](types.SimpleNamespace(mock_data=True)).given
            own = script["data_module"](types.SimpleNamespace(mock_data=False, data_path=["a"], tokenizer="b")).given
            for name, value in strategy.items():
                if name in copied:
                    setattr(config, name, value)
            kinds = {"bf16-mixed": "bf16", "16-mixed": "fp16"}
            if precision["precision"] in kinds:
                setattr(config, kinds[precision["precision"]], True)
            for name, value in precision.items():
                if hasattr(config, name):
                    setattr(config, name, value)
            if overlap is not None:
                config.tp_comm_overlap = overlap.given["tp_comm_overlap"]
            config.__post_init__()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its answer
        return {"error": f"{type(error).__name__}: {error}"}
    sections = {
        "config": vars(config), "strategy": strategy, "precision": precision, "ddp": vars(ddp), "optimizer": vars(optimizer),
        "mock": mocked, "data": own, "overlap": overlap.given if overlap else {},
        "adapter": {**adapter.given, "class": type(adapter).__name__} if adapter else {},
    }  # fmt: skip
    return {
        "sections": {
            part: {name: _plain(value) for name, value in values.items()} for part, values in sections.items()
        },
        "layout": megatron_parser.layout(config),
    }


def _plain(value: Any) -> Any:
    name = getattr(value, "__name__", None)
    return name if callable(value) and name else megatron_parser.plain(value)


def main() -> None:
    warnings.simplefilter("ignore")
    scripts = json.load(sys.stdin)
    nemo = Path(sys.argv[1]) / "nemo"
    with contextlib.redirect_stdout(sys.stderr):
        megatron_parser.prepare(sys.argv[2])
        importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
        from megatron.core import utils
        from megatron.core.models.common.embeddings import rope_utils
        from packaging.version import Version

        utils._te_version = Version(megatron_parser.TRANSFORMER_ENGINE)
        rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or main
        optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
        optimizers.FusedAdam = megatron_parser.FusedAdam  # type: ignore[attr-defined]
        sys.modules[optimizers.__name__] = optimizers
        modules(nemo)
        copied = arguments(declared(nemo / "lightning/pytorch/strategies/megatron_strategy.py", "ParallelismConfig"))
        answers = [ask(text, copied) for text in scripts]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
