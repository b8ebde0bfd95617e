"""Asks Megatron-LM's own parser, `validate_args` and configuration class what they make of command lines.

Run in a process of its own: `python megatron_parser.py FOLDER` with the unpacked wheel of megatron-core in FOLDER, and on
standard input a list of `{words, world_size, environment, capability}`. Standard output is a list of `{args}` or `{error}`. The
wheels ask for Python 3.12, CUDA and Transformer Engine; what stands in for them here decides no value that is compared:
`typing.override`, the module triton, the capability of the GPU, and the version of Transformer Engine.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.machinery
import io
import json
import os
import sys
import types
import typing
import warnings
from typing import Any

TRANSFORMER_ENGINE = "2.12.0"
"""The release that checks of Transformer Engine's version find."""


class _Triton(types.ModuleType):
    """A module whose names are decorators that change nothing."""

    __version__ = "3.5.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **_named: given[0] if given and callable(given[0]) else (lambda function: function)


class FusedAdam:
    """Transformer Engine's optimizer, whose arguments `OptimizerConfig` asks for."""

    def __init__(
        self,
        master_weight_dtype: Any,
        exp_avg_dtype: Any,
        exp_avg_sq_dtype: Any,
        use_decoupled_grad: Any,
        store_param_remainders: Any,
    ) -> None:
        """Takes what it is asked for."""


class _Constant:
    def __init__(self, value: Any = None) -> None:
        self.value = value


def prepare(folder: str) -> None:
    """Puts the wheel on the path and the stand-ins in place."""
    import torch
    import torch._inductor.runtime.autotune_cache
    import torch._inductor.runtime.triton_compat
    import torch._inductor.utils
    import torch.utils._triton

    # Asked before the module stands in, so that PyTorch itself does not take it for Triton.
    torch.utils._triton.has_triton_package()
    torch.utils._triton.has_triton()
    for name in ("triton", "triton.language"):
        module = _Triton(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    sys.modules["triton"].language = sys.modules["triton.language"]
    sys.modules["triton.language"].constexpr = _Constant
    if not hasattr(typing, "override"):
        typing.override = lambda function: function
    sys.path.insert(0, folder)


def ask(line: typing.Mapping[str, Any]) -> dict[str, Any]:
    """What the parser makes of one command line: every argument, as JSON can hold it, or the error."""
    import torch
    from megatron.training import arguments

    kept = {name: os.environ.get(name) for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER")}  # fmt: skip
    for name in kept:
        os.environ.pop(name, None)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(line["world_size"]), **line.get("environment", {})}
    major = line.get("capability", 9)
    torch.cuda.get_device_capability = lambda *_: (major, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=major, minor=0)
    sys.argv = ["pretrain_gpt.py", *line["words"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            args = arguments.validate_args(arguments.parse_args())
            config = _config(args)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the framework raises is its answer
        last = said.getvalue().strip().splitlines()[-1:] if isinstance(error, SystemExit) else []
        return {"error": f"{type(error).__name__}: {error} {' '.join(last)}".strip()}
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    found = {name: plain(value) for name, value in vars(args).items()}
    return {"args": found, "layout": layout(config), "blocks": blocks(args)}


def _config(args: Any) -> Any:
    from megatron.training import arguments

    return arguments.core_transformer_config_from_args(args)


def layout(config: Any) -> list[int] | None:
    """The decoder layers of each virtual stage, in model order, by the framework's own class; None without a layout."""
    parsed = config.pipeline_model_parallel_layout
    if parsed is None:
        return None
    # Indexed by rank, then by chunk.
    table = parsed.layout
    chunks = len(table[0])
    return [sum(each.name == "decoder" for each in rank[chunk]) for chunk in range(chunks) for rank in table]


def blocks(args: Any) -> list[str] | None:
    """The blocks of each virtual stage of a hybrid, in model order, by the framework's own function; None without a pattern."""
    import torch

    if args.hybrid_layer_pattern is None:
        return None
    try:
        from megatron.core.models.hybrid import hybrid_layer_allocation as allocation
    except ImportError:
        from megatron.core.ssm import mamba_hybrid_layer_allocation as allocation
    # It logs what it chose, through process groups.
    allocation.log_on_each_pipeline_stage = lambda *_, **__: None
    pp, chunks = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    kept = torch.distributed.get_rank, torch.distributed.get_world_size
    # A rank stands for its process group, of which the function asks these two numbers and nothing else.
    torch.distributed.get_rank, torch.distributed.get_world_size = lambda rank: rank, lambda _: pp
    try:
        return [
            "".join(allocation.select_pipeline_segment(args.hybrid_layer_pattern, rank, chunk)[0])
            for chunk in (range(chunks) if chunks else [None])
            for rank in range(pp)
        ]
    finally:
        torch.distributed.get_rank, torch.distributed.get_world_size = kept


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def main() -> None:
    warnings.simplefilter("ignore")
    lines = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        prepare(sys.argv[1])
        from megatron.core import utils
        from megatron.core.models.common.embeddings import rope_utils
        from packaging.version import Version

        utils._te_version = Version(TRANSFORMER_ENGINE)
        # Transformer Engine's kernel, whose presence alone is asked for.
        rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or main
        answers = [ask(line) for line in lines]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
