"""Asks Megatron-Bridge's own `ConfigContainer` what it makes of exported files.

Run in a process of its own: `python bridge_container.py BRIDGE CORE` with the unpacked wheels in these folders, and on standard
input a list of `{script, plan, world_size, environment, capability}`. The script of a launch is run up to its configuration, to
which Bridge's `runtime_config_update` applies precision and overlaps, and which it validates. Standard output is a list of
`{sections, layout}` or `{error}`. Beside the stand-ins of `megatron_parser`, modules stand in that hold no value which is compared:
data, conversion of checkpoints, other kinds of model, OmegaConf.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import megatron_parser

STAND_INS = (
    "megatron.bridge.data.datasets", "megatron.bridge.data.builders", "megatron.bridge.data.sources", "megatron.bridge.models.t5_provider", "megatron.bridge.models.hybrid", "megatron.bridge.models.mamba",
    "megatron.bridge.models.megatron_mimo", "megatron.bridge.models.gpt", "megatron.bridge.models.conversion",
    "megatron.bridge.models.hf_pretrained", "megatron.bridge.training.tokenizers.tokenizer", "megatron.bridge.training.post_training",
    "modelopt", "nvidia_resiliency_ext", "omegaconf", "hydra", "torch.utils.tensorboard",
)  # fmt: skip
PACKAGES = (
    "megatron.bridge",
    "megatron.bridge.models",
    "megatron.bridge.training",
    "megatron.bridge.peft",
    "megatron.bridge.data",
)
"""Packages whose own `__init__` imports every model."""


class _Class(type):
    """A class with every name, as another one."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Class(name, (), {})


class _Names(types.ModuleType):
    """A module that has every name, as an empty class."""

    __version__ = "0.6.0"
    __all__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Class(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.names = list(STAND_INS)

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        stands = any(name == each or name.startswith(each + ".") for each in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if stands else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Names(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


FINDER = _Finder()


def prepare(bridge: str, core: str) -> None:
    """Puts both wheels on the path, which share the package `megatron`, and the stand-ins in place."""
    megatron_parser.prepare(core)
    sys.path.insert(0, bridge)
    sys.meta_path.insert(0, FINDER)
    importlib.import_module("megatron")
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [f"{bridge}/{name.replace('.', '/')}"]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)
    models = sys.modules["megatron.bridge.models"]
    for name in ("T5ModelProvider", "MambaModelProvider"):
        setattr(models, name, type(name, (), {}))
    models.GPTModelProvider = importlib.import_module("megatron.bridge.models.gpt_provider").GPTModelProvider


def ask(case: Mapping[str, Any]) -> dict[str, Any]:
    """What the container makes of one launch, or the error."""
    import torch
    from megatron.bridge.training import config as bridge

    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(case["world_size"]), **case["environment"]}
    torch.cuda.get_device_capability = lambda *_: (case["capability"], 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=case["capability"], minor=0)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            script: dict[str, Any] = {"__name__": "train", "__file__": "train.py"}
            exec(compile(case["script"], "train.py", "exec"), script)
            if "\npeft:" in case["plan"]:
                # Adapters' modules name its classes; whoever asked whether it is there was told before that it is not.
                FINDER.names.append("transformer_engine")
            config = script["configure"](yaml.safe_load(case["plan"]), argparse.Namespace(mock_data=True))
            if config.peft is not None:
                # Adapters ask for a base that exists; which one is the user's.
                config.checkpoint.pretrained_checkpoint = str(Path.cwd())
            bridge.runtime_config_update(config)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its answer
        return {"error": f"{type(error).__name__}: {error}"}
    sections = {
        section: {name: plain(value) for name, value in vars(getattr(config, section)).items()}
        for section in ("model", "ddp", "optimizer", "train", "dataset", "mixed_precision", "checkpoint", "rng", "peft")
        if getattr(config, section) is not None
    }
    if config.peft is not None:
        sections["peft"]["class"] = type(config.peft).__name__
    return {"sections": sections, "layout": megatron_parser.layout(config.model), "dp": config.data_parallel_size}


def plain(value: Any) -> Any:
    """A value as JSON can hold it; functions by their names."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    name = getattr(value, "__name__", None)
    return name if callable(value) and name else megatron_parser.plain(value)


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        prepare(*sys.argv[1:3])
        from megatron.core import utils
        from megatron.core.models.common.embeddings import rope_utils
        from packaging.version import Version

        utils._te_version = Version(megatron_parser.TRANSFORMER_ENGINE)
        rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or main
        # After all imports, which ask whether Transformer Engine is there.
        optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
        optimizers.FusedAdam = megatron_parser.FusedAdam
        sys.modules |= {optimizers.__name__: optimizers}
        answers = [ask(case) for case in cases]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
