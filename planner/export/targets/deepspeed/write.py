"""A plan as DeepSpeed's JSON and a script that runs it."""

from __future__ import annotations

from typing import Any, Final

from planner.export.formats.documents import render_json
from planner.export.hf import scripts, train_file
from planner.export.hf.model_config import said_config as said_model
from planner.export.quantities import Quantities
from planner.export.spellings import put
from planner.export.target import Launch, LaunchFile
from planner.export.targets.deepspeed import catalogue as keys
from planner.export.targets.deepspeed.config import said_config, said_units

PIPELINED: Final = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmo2")
"""Families whose layers the script can take one by one."""
_INSTALL = (
    "Install deepspeed {version}, torch and transformers; FusedAdam is compiled at the first start, for which a CUDA toolkit of "
    "PyTorch's version must be installed (--torch-adam takes PyTorch's optimizer instead)."
)


def write(q: Quantities) -> Launch:
    """`ds_config.json`, the model's `config.json`, `train.json` and the script that reads them.

    Raises:
        FieldNotExpressibleError: a field of the plan has no word in them.
    """
    model = said_model(q)
    config = said_config(q, release=q.plan.job.training.framework_version)
    train = train_file.said_train(q)
    _say_pipeline(q, model, config, train)
    configurations = [LaunchFile(keys.FILE, render_json(config))]
    return scripts.launch_of(q, "deepspeed", model, configurations, train, install=_INSTALL.format(version=q.version))


def _say_pipeline(q: Quantities, model: dict[str, Any], config: dict[str, Any], train: dict[str, Any]) -> None:
    """Units of recomputed layers, and the split over stages."""
    units = said_units(q)
    if q.peek("pp") == 1:
        return
    if model["model_type"] not in PIPELINED:
        why = f"the script cuts models whose layers stand in `model.layers` ({', '.join(PIPELINED)})"
        raise q.refusal("pp", why=why, nearest={"pp": 1})
    if q.peek("training.attention") != "flash":
        why = "the layers of a pipeline get no mask, which eager attention needs"
        raise q.refusal("training.attention", why=why, nearest={"training.attention": "flash"})
    if q.peek("training.adapter") or q.peek("training.frozen"):
        raise q.refusal("pp", why="its pipelines take layers without adapters", nearest={"pp": 1})
    if q.peek("training.model_impl") != "transformers" or q.peek("training.cross_entropy") != "unfused":
        why = "Liger's kernels are put into whole models, not into the layers of a pipeline"
        raise q.refusal("training.model_impl", why=why, nearest={"training.model_impl": "transformers"})
    put(config, keys.PARTITION, keys.PARTITION_METHOD)
    put(config, keys.INTERVAL, units if train["gradient_checkpointing"] else 0)
