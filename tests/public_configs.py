"""Configurations that are public, as facts: settings by key, rendered again in the syntax of the framework that reads them.

`golden/public_configs.json` holds no text of theirs: a repository, a path, a revision, and the settings that a reader has to get out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

FILE = Path(__file__).with_name("golden") / "public_configs.json"
KINDS = ("megatron", "deepspeed", "accelerate", "torchtitan", "nanotron", "transformers")
LAUNCHER = ("nproc_per_node", "nnodes", "num_processes", "num_gpus")
"""Settings of what starts a program."""
_SECTIONS = {
    "training": "TrainingConfig", "parallelism": "ParallelismConfig", "activation_checkpoint": "ActivationCheckpointConfig",
    "compile": "CompileConfig",
}  # fmt: skip


@dataclass(frozen=True)
class PublicConfig:
    """One of them."""

    kind: str
    repository: str
    path: str
    revision: str
    """A commit, or the release that a package was taken from."""
    settings: Mapping[str, Any]
    style: str = ""
    """How it writes its settings, where a syntax has several ways."""

    @property
    def name(self) -> str:
        """The name of its file."""
        suffix = PurePosixPath(self.path).suffix
        return PurePosixPath(self.path).name if suffix else "run.sh"


def public_configs() -> list[PublicConfig]:
    """All of them."""
    return [PublicConfig(**each) for each in json.loads(FILE.read_text())]


def rendered(config: PublicConfig) -> str:
    """A file with its settings."""
    if config.kind == "megatron":
        return _STYLES.get(config.style, _plain)(config)
    if config.name.endswith(".json"):
        return json.dumps(nested(config.settings), indent=2) + "\n"
    if config.name.endswith((".yaml", ".yml")):
        return yaml.safe_dump(nested(config.settings), sort_keys=False)
    if config.name.endswith(".toml"):
        return _toml(config)
    if config.name.endswith(".py"):
        return _python(config)
    return _trainer(config)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted keys as sections."""
    document: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return document


def _toml(config: PublicConfig) -> str:
    lines: list[str] = []
    for section, values in nested(config.settings).items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _python(config: PublicConfig) -> str:
    parts = [
        f"        {section}={_SECTIONS[section]}({', '.join(f'{key}={value!r}' for key, value in values.items())}),\n"
        for section, values in nested(config.settings).items()
    ]
    return f"from torchtitan.trainer import Trainer\n\n\ndef run() -> Trainer.Config:\n    return Trainer.Config(\n{''.join(parts)}    )\n"


def _trainer(config: PublicConfig) -> str:
    program = {key: value for key, value in config.settings.items() if key not in LAUNCHER}
    started = "".join(f" --{key} {config.settings[key]}" for key in LAUNCHER if key in config.settings)
    launcher = (
        "accelerate launch"
        if "num_processes" in config.settings
        else "deepspeed"
        if "num_gpus" in config.settings
        else "torchrun"
    )
    return (
        _BASH
        + " \\\n    ".join(
            [f"{launcher}{started} train.py", *(f"--{key} {_word(value)}" for key, value in program.items())]
        )
        + "\n"
    )


_BASH = "#!/bin/bash\n\n"


def _word(value: Any) -> str:
    return str(value) if not isinstance(value, list) else " ".join(value)


def _options(config: PublicConfig, *, value: Callable[[str, Any], str] = lambda _key, value: _word(value)) -> list[str]:
    return [
        f"--{key}" + ("" if given is True else f" {value(key, given)}")
        for key, given in config.settings.items()
        if key not in LAUNCHER and given is not False
    ]


def _torchrun(config: PublicConfig, *, program: str = "pretrain_gpt.py") -> str:
    return " ".join(
        ["torchrun", *(f"--{key} {config.settings[key]}" for key in LAUNCHER if key in config.settings), program]
    )


def _plain(config: PublicConfig) -> str:
    return _BASH + " \\\n    ".join([_torchrun(config), *_options(config)]) + "\n"


def _arrays(config: PublicConfig) -> str:
    half = len(_options(config)) // 2
    arrays = [
        f"{name}=(\n    # what {name.lower()} are\n" + "".join(f"    {each}\n" for each in part) + ")\n\n"
        for name, part in (("MODEL_ARGS", _options(config)[:half]), ("MORE_ARGS", _options(config)[half:]))
    ]
    return _BASH + "".join(arrays) + _torchrun(config) + ' \\\n    "${MODEL_ARGS[@]}" \\\n    ${MORE_ARGS[@]}\n'


def _pairs(config: PublicConfig) -> str:
    return (
        _BASH
        + "ARGS=()\n"
        + "".join(f'ARGS+=("{each}")\n' for each in _options(config))
        + _torchrun(config)
        + " ${ARGS[@]}\n"
    )


def _text(config: PublicConfig) -> str:
    return (
        _BASH + 'OPTIONS="\n    ' + " \\\n    ".join(_options(config)) + '\n"\n\n' + _torchrun(config) + " $OPTIONS\n"
    )


def _assigned(form: str) -> Callable[[PublicConfig], str]:
    def write(config: PublicConfig) -> str:
        names = {key: key.upper().replace("-", "_") for key in config.settings}
        assigned = [
            form.format(name=names[key], value=_word(value)) + "\n"
            for key, value in config.settings.items()
            if not isinstance(value, bool) and key not in LAUNCHER
        ]
        options = _options(config, value=lambda key, _value: f"${{{names[key]}}}")
        return _BASH + "".join(assigned) + " \\\n    ".join([_torchrun(config), *options]) + "\n"

    return write


def _srun(config: PublicConfig) -> str:
    ranks = " ".join(f"--{key} {config.settings[key]}" for key in LAUNCHER if key in config.settings)
    launcher = f'export LAUNCHER="python -u -m torch.distributed.run {ranks} --max_restarts 0"\n'
    command = 'export CMD=" \\\n    pretrain_gpt.py \\\n    ' + " \\\n    ".join(_options(config)) + '\n    "\n'
    return (
        _BASH + launcher + command + 'srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee main.log\n'
    )


def _underscores(config: PublicConfig) -> str:
    return _plain(config).replace("-parallel-size", "_parallel_size").replace("-batch-size", "_batch_size")


def _mpirun(config: PublicConfig) -> str:
    ranks = config.settings.get("nproc_per_node", 1) * config.settings.get("nnodes", 1)
    program = " \\\n    ".join(["python pretrain_gpt.py", *_options(config)])
    return _BASH + f"mpirun --allow-run-as-root -np {ranks} -x NCCL_DEBUG=WARN \\\n    {program}\n"


def _case(config: PublicConfig) -> str:
    size = config.settings["tensor-model-parallel-size"]
    text = _text(config).replace(f"--tensor-model-parallel-size {size}", "--tensor-model-parallel-size ${TP}")
    return text.replace(
        _BASH,
        f'{_BASH}SIZE="8B"\ncase "${{SIZE}}" in\n  "1B")\n    TP=99\n    ;;\n  "8B")\n    TP={size}\n    ;;\nesac\n',
    )


def _command(config: PublicConfig) -> str:
    return (
        _BASH
        + 'run_cmd="'
        + " \\\n    ".join([_torchrun(config), *_options(config)])
        + '"\necho ${run_cmd}\neval ${run_cmd}\n'
    )


_STYLES: Mapping[str, Callable[[PublicConfig], str]] = {
    "plain": _plain, "arrays": _arrays, "pairs": _pairs, "text": _text, "variables": _assigned("{name}={value}"),
    "defaults": _assigned("{name}=${{{name}:-{value}}}"), "colon": _assigned(': "${{{name}:={value}}}"'), "srun": _srun,
    "tests": _assigned('if [ -z "${name}" ]; then\n  {name}={value}\nfi'), "underscores": _underscores, "mpirun": _mpirun, "case": _case,
    "command": _command,
}  # fmt: skip
