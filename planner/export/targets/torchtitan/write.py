"""Writes a plan for torchtitan: plan.toml and a module with its model up to 0.2, one Python configuration from 0.3 on."""

from __future__ import annotations

from importlib.resources import files

from planner.export.formats.documents import render_toml
from planner.export.quantities import Quantities
from planner.export.spellings import put
from planner.export.target import Launch, LaunchFile
from planner.export.targets.allocator import allocator_variables
from planner.export.targets.torchtitan import keys
from planner.export.targets.torchtitan.document import sections
from planner.export.targets.torchtitan.models import shape_of
from planner.export.targets.torchtitan.modules import flavour_module
from planner.export.targets.torchtitan.python_config import config_module

TOML = "plan.toml"
_PROGRAM = ("-m", "torchtitan.train")
_GROUPS_PROGRAM = ("-m", "torchtitan.experiments.ft.train")
"""The trainer of 0.2.2 that starts torchft's manager; the usual one reads nothing of the section fault_tolerance."""
_HERE = "Start it in the folder of these files, which Python imports {module} from."


def write(quantities: Quantities) -> Launch:
    """The launch of a plan of torchtitan.

    Raises:
        FieldNotExpressibleError: the release cannot be told a field.
    """
    document = sections(quantities)
    variables = allocator_variables(quantities)
    steps = f"{keys.STEPS}.py"
    if keys.is_python(quantities.version):
        module = LaunchFile(f"{keys.CONFIG}.py", config_module(quantities, document))
        return Launch(
            files=(module, LaunchFile(steps, _template("plan_steps_0_3.py.txt"))),
            command=(*_PROGRAM, "--module", keys.CONFIG, "--config", "plan"),
            mock_command=(*_PROGRAM, "--module", keys.CONFIG, "--config", "plan_mock"),
            variables=variables,
            notes=(
                "torchtitan 0.3 must be installed.", _HERE.format(module=keys.CONFIG),
            ),
            own_data=("The dataset, its tokenizer (hf_assets_path), and the number of steps are yours to set.",),
        )  # fmt: skip
    # Up to 0.2 a shape is no option of the parser: flavours are entries of a table in Python (models/llama3/__init__.py).
    flavour = flavour_module(quantities)
    put(document, "model.name", "plan")
    put(document, "model.flavor", "plan")
    put(document, "experimental.custom_import", keys.MODULE)
    put(document, "job.description", f"{shape_of(quantities).family} on {_gpus(quantities.plan.world_size)}")
    order = (
        "job",
        "model",
        "optimizer",
        "training",
        "parallelism",
        "activation_checkpoint",
        "compile",
        "quantize",
        keys.FAULT_TOLERANCE,
        "experimental",
    )
    ordered = {name: document[name] for name in order if name in document}
    config = (*(_PROGRAM if quantities.plan.groups == 1 else _GROUPS_PROGRAM), "--job.config-file", TOML)
    return Launch(
        files=(
            LaunchFile(TOML, render_toml(ordered)), LaunchFile(f"{keys.MODULE}.py", flavour),
            LaunchFile(steps, _template("plan_steps_0_2.py.txt")),
        ),
        command=config,
        mock_command=(*config, "--training.dataset", "mock", "--training.steps", "10"),
        variables=variables,
        notes=(
            "torchtitan 0.2.2 must be installed.", _HERE.format(module=keys.MODULE), *_groups(quantities),
        ),
        own_data=("The dataset, its tokenizer (model.hf_assets_path), and the number of steps are yours to set.",),
    )  # fmt: skip


def _groups(q: Quantities) -> tuple[str, ...]:
    """How to start groups of replicas that are launches of their own."""
    if q.plan.groups == 1:
        return ()
    last = q.plan.groups - 1
    needs = "with torchft installed, one torchft_lighthouse running, and TORCHFT_LIGHTHOUSE set to its address"
    return (
        f"Start it on each of the {q.plan.groups} islands with --fault_tolerance.replica_id=0 to {last}, {needs}.",
        "An exchange that takes longer than fault_tolerance.process_group_timeout_ms (10 s unless you set it) is given up.",
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _template(name: str) -> str:
    return (files(__package__) / "steps" / name).read_text()
