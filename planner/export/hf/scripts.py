"""The training scripts that are written beside the configurations: programs kept as text, the same for every plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from cost_models.frameworks.optimizers import updates_dtensors
from cost_models.layers.parameters import count_parameters
from cost_models.specs.training import BYTES_PER
from cost_models.units import GIB
from planner.export.formats.documents import render_json
from planner.export.hf import adapter_file, train_file
from planner.export.hf.model_file import MODEL_CONFIG
from planner.export.quantities import Quantities
from planner.export.target import Launch, LaunchFile, Runner

MOCK: Final = ("train.py", "--mock-data", "--steps", "10")
OWN_DATA: Final = "train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load your own weights there."


def script(target: str) -> tuple[LaunchFile, ...]:
    """The target's `train.py`, and `hf_model.py`, which makes the model and measures steps."""
    shared = files("planner.export.hf").joinpath("templates/hf_model.py.txt").read_text()
    own = files(f"planner.export.targets.{target}").joinpath("templates/train.py.txt").read_text()
    return LaunchFile("hf_model.py", shared), LaunchFile("train.py", own)


def _also_needed(q: Quantities, target: str, base: str) -> tuple[str, ...]:
    """The sentence on the packages that this plan needs beside those of every plan, if there are any."""
    kernel = q.peek("training.attention_kernel") if q.peek("training.attention") == "flash" else None
    liger = q.peek("training.model_impl") == "liger" or q.peek("training.cross_entropy") in ("linear", "fused")
    optimizer, of_shards = q.peek("training.optimizer"), updates_dtensors(q.plan.job.training, int(q.peek("zero")))
    needed = {
        "deepspeed": q.plan.job.training.framework == "deepspeed" and target != "deepspeed",
        "flash-attn": kernel == "fa2",
        "FlashAttention 3 (flash_attn_interface, built from its repository)": kernel == "fa3",
        "liger-kernel": liger,
        "peft": q.peek("training.adapter") is not None,
        "bitsandbytes": base != "none" or optimizer == "lion" or (optimizer == "adam-8bit" and not of_shards),
        "torchao": optimizer == "adam-4bit" or (optimizer == "adam-8bit" and of_shards),
    }
    names = [name for name, is_needed in needed.items() if is_needed]
    return (f"This plan also needs {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}.",) if names else ()


def _in_host_memory(q: Quantities) -> tuple[str, ...]:
    """The sentence on the whole models that a node holds before FSDP2 shards them, where it does.

    Only adapters need their base's weights when they are made; other models are left unwritten until their shards are drawn
    (`is_filled` of the script).
    """
    training, node = q.plan.job.training, q.plan.nodes[0]
    if training.framework != "fsdp" or q.peek("zero") == 0 or training.adapter is None:
        return ()
    # Beside adapters the base is stored in the type that is computed in.
    each_bytes = count_parameters(q.plan.job.model).total * BYTES_PER[training.compute_dtype]
    told = "Every process makes the whole base in host memory before FSDP2 shards it"
    needed = f"{node.ranks_per_node} x {each_bytes / GIB:,.1f} GiB on a node"
    had = q.plan.job.cluster.host_memory_bytes
    if had is None or node.ranks_per_node * each_bytes < had:
        return (f"{told}: {needed}.",)
    return (f"{told}: {needed}, more than its {had / GIB:,.0f} GiB.",)


def launch_of(
    q: Quantities,
    target: str,
    model: Mapping[str, Any],
    configurations: Sequence[LaunchFile],
    train: Mapping[str, Any],
    *,
    install: str,
    runner: Runner = "torchrun",
    runner_options: tuple[str, ...] = (),
) -> Launch:
    """The launch around a target's own configurations: the model, the adapter, `train.json` and the script that reads them.

    Args:
        model: the model as transformers' configuration.
        train: what the script does in code, without the base's quantisation.
        install: the sentence that says what to install.

    Raises:
        FieldNotExpressibleError: the adapter has a field that peft lacks.
    """
    adapter, base = adapter_file.said_adapter(q, model)
    quantized = {} if base == "none" else {adapter_file.QUANTIZED: base}
    inside = [
        *configurations,
        LaunchFile(MODEL_CONFIG, render_json(model)),
        LaunchFile(train_file.FILE, render_json({**train, **quantized})),
        *([LaunchFile(adapter_file.FILE, render_json(adapter))] if adapter else []),
        *script(target),
    ]
    return Launch(
        files=tuple(inside),
        command=("train.py",),
        mock_command=MOCK,
        variables=train_file.variables(q),
        runner=runner,
        runner_options=runner_options,
        notes=(install, *_also_needed(q, target, base), *_in_host_memory(q)),
        own_data=(OWN_DATA,),
    )
