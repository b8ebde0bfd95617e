"""Lets torchtitan itself read launches, and prints what it understood as a line of JSON for each.

    python ask_torchtitan.py PACKAGES VERSION FOLDER...

It runs in a process of its own, since two releases cannot be imported into one. PACKAGES is the folder that the pinned wheels were
unpacked into. Packages that torchtitan imports and nothing here runs (datasets, TensorBoard, triton) are replaced by stand-ins; of
0.2.2 the package's `__init__`, which would import torchao, is left out.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

STAND_INS = ("datasets", "tensorboard", "torch.utils.tensorboard", "triton", "torchao")


class _Names(type):
    """Every name of a stand-in class is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _class(name)


def _class(name):
    return _Names(
        name, (), {"__init__": lambda self, *args, **kwargs: None, "__new__": _decorated, "__call__": _given_back}
    )


def _given_back(_self, function=None, *_args, **_kwargs):
    return function


class _Anything(types.ModuleType):
    """A module in which every name is a class that does nothing, or a decorator that changes nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _class(name)


def _decorated(cls, *args, **kwargs):
    only = args[0] if len(args) == 1 and not kwargs and callable(args[0]) else None
    return only if isinstance(only, types.FunctionType) else object.__new__(cls)


def _asks_for(package):
    """Whether a module of a package imports something now: PyTorch asks for triton, and shall not take the stand-in for it."""
    frame = sys._getframe(1)
    while frame and (frame.f_globals.get("__name__") or "importlib").startswith(
        ("importlib", "_frozen_importlib", "__main__")
    ):
        frame = frame.f_back
    return bool(frame) and frame.f_globals["__name__"].startswith(package)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        wanted = any(name == each or name.startswith(each + ".") for each in STAND_INS)
        if wanted and not (name.startswith("triton") and _asks_for("torch.")):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def main() -> None:
    packages, version, *folders = sys.argv[1:]
    own = str(Path(packages) / f"torchtitan-{version}")
    sys.path[:0] = [own, packages]
    # Without torchao there is no converter to build: the configuration alone is read.
    missing = [each for each in STAND_INS if each != "torchao" or version.startswith("0.2")]
    globals()["STAND_INS"] = tuple(missing)

    sys.meta_path.insert(0, _StandIns())
    if version.startswith("0.2"):
        package = types.ModuleType("torchtitan")
        package.__path__ = [str(Path(own) / "torchtitan")]
        sys.modules["torchtitan"] = package
    for folder in folders:
        sys.stdout.write(json.dumps(_answer(version, folder)) + "\n")


def _answer(version, folder):
    os.chdir(folder)
    sys.path.insert(0, folder)
    for name in ("plan_model", "plan_steps", "plan_config"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    try:
        return {"ok": _toml() if version.startswith("0.2") else _python()}
    except BaseException as error:  # noqa: BLE001 - a refusal is whatever torchtitan raises, tyro's SystemExit included
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        sys.path.remove(folder)


def _toml():
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(
        ["--job.config-file", "plan.toml", "--training.dataset", "mock", "--training.steps", "10"]
    )
    from torchtitan.protocols import train_spec

    train_spec._extra_train_specs.clear()
    importlib.import_module(config.experimental.custom_import)
    spec = train_spec.get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    answer = {
        "config": dataclasses.asdict(config),
        "model": dataclasses.asdict(arguments),
        "family": spec.model_cls.__name__,
    }
    answer["stages"] = _stages_0_2(config, arguments)
    answer["converters"] = _converters_0_2(config)
    arguments.update_from_config(config)  # as the trainer does before it builds the model
    answer["parameters"], answer["width"] = _parameters(lambda: spec.model_cls(arguments))
    answer["batches"] = _first_batch(iter(spec.build_dataloader_fn(1, 0, None, config)))
    return answer


def _converters_0_2(config):
    """Classes of the converters, which the trainer looks up by their names."""
    for name in ("float8", "mx"):
        importlib.import_module(f"torchtitan.components.quantization.{name}")
    from torchtitan.protocols import model_converter

    return [model_converter._registry_model_converter_cls[name].__name__ for name in config.model.converters]


def _stages_0_2(config, arguments):
    from torchtitan.distributed import pipeline_parallel as pp

    given = config.parallelism
    if given.pipeline_parallel_degree == 1:
        return None
    if given.module_fqns_per_model_part is not None:
        return given.module_fqns_per_model_part
    less = given.pipeline_parallel_first_stage_less_layers, given.pipeline_parallel_last_stage_less_layers
    stages = -(-(arguments.n_layers + sum(less)) // given.pipeline_parallel_layers_per_stage)
    return pp.generate_llm_fqn_per_model_part(stages, arguments.n_layers, *less)


def _python():
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(["--module", "plan_config", "--config", "plan_mock"])
    given = config.parallelism
    answer = {
        "config": {
            name: dataclasses.asdict(getattr(config, name))
            for name in ("training", "parallelism", "compile", "metrics")
        },
        "checkpoint": type(config.activation_checkpoint).__qualname__,
        "loss": type(config.loss).__qualname__,
        "family": config.model_spec.name,
        "flavor": config.model_spec.flavor,
    }
    answer["stages"] = None
    if given.pipeline_parallel_degree > 1:
        from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part

        less = given.pipeline_parallel_first_stage_less_layers, given.pipeline_parallel_last_stage_less_layers
        layers = len(config.model_spec.model.layers)
        answer["stages"] = given.module_fqns_per_model_part or _generate_llm_fqn_per_model_part(
            -(-(layers + sum(less)) // given.pipeline_parallel_layers_per_stage), layers, *less
        )
    answer["parameters"], answer["width"] = _parameters(config.model_spec.model.build)
    answer["layers"] = len(config.model_spec.model.layers)
    loader = config.dataloader.build(dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=16, local_batch_size=2)
    config.tokenizer.build(tokenizer_path="")
    answer["batches"] = _first_batch(iter(loader))
    return answer


def _parameters(build):
    """Number of parameters of the model, and the shape of its head, from modules without memory."""
    import torch

    with torch.device("meta"):
        model = build()
    named = dict(model.named_parameters())
    head = next((each for name, each in named.items() if name in ("output.weight", "lm_head.weight")), None)
    return sum(each.numel() for each in named.values()), None if head is None else list(head.shape)


def _first_batch(batches):
    inputs, labels = next(batches)
    return {"input": list(inputs["input"].shape), "labels": list(labels.shape), "keys": sorted(inputs)}


if __name__ == "__main__":
    main()
