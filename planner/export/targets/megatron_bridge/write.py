"""Writes a plan for Megatron-Bridge: overrides of its configuration in YAML, and a script that trains with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.frameworks.releases import precedes
from planner.export.formats.documents import render_yaml
from planner.export.quantities import Quantities
from planner.export.spellings import put
from planner.export.target import Launch, LaunchFile
from planner.export.targets.megatron.adapters import said_adapter
from planner.export.targets.megatron.attributes import attributes, spelled
from planner.export.targets.megatron.environment import environment
from planner.export.targets.megatron.front_end import check_positions, on_core
from planner.export.targets.megatron.write import MOCK_STEPS, checked, core_settings, steps
from planner.export.targets.megatron_bridge import keys
from planner.export.targets.megatron_bridge.program import script


def write(q: Quantities) -> Launch:
    """The launch of a plan of megatron.

    Raises:
        FieldNotExpressibleError: Bridge, or the Megatron Core that this release runs on, cannot be told a field.
    """
    document = overrides(q)
    return Launch(
        files=(
            LaunchFile(keys.PLAN, render_yaml(document)),
            LaunchFile(keys.SCRIPT, script()),
        ),
        command=(keys.SCRIPT,),
        mock_command=(keys.SCRIPT, "--mock-data"),
        variables=environment(q),
        notes=(
            f"Megatron-Bridge {q.version} must be installed, which runs on Megatron Core {keys.CORE[q.version]}.",
            f"{keys.PLAN} holds the plan in the keys of Bridge's ConfigContainer: the same keys override any recipe of Bridge.",
        ),
        own_data=("Add --data-path and --tokenizer, and overrides such as optimizer.lr=3e-4: data and schedule are yours to set.",),
    )  # fmt: skip


def overrides(q: Quantities) -> Mapping[str, Any]:
    """The plan in the sections of Bridge's `ConfigContainer`.

    Raises:
        FieldNotExpressibleError: there is no key for a field.
    """
    core = on_core(q, keys.CORE)
    check_positions(q)
    values = core_settings(core)
    # Every setting is one that the pinned Megatron Core has.
    list(checked(core, values))
    document: dict[str, Any] = {section: {} for section in keys.SECTIONS.values()}
    for part, name, value in spelled(attributes(values)):
        document[keys.SECTIONS[part]][name] = value
    # The container asserts that data and model agree.
    put(document, keys.DATA_LENGTH, values["seq_length"])
    put(document, keys.PAD_VOCABULARY, True)
    # Bridge asserts a number of steps, which a plan without a budget of tokens leaves open.
    put(document, keys.STEPS, steps(q) or MOCK_STEPS)
    if q.peek("training.cuda_graphs"):
        put(document, keys.TE_RNG, True)
        if not precedes(q.version, keys.LAYER_GRAPHS_BY_TE_SINCE):
            put(document, keys.GRAPHS, "transformer_engine")
    if q.peek("zero") >= 2:
        put(document, keys.FSDP, True)
    elif values.get("fp8_param_gather") and values["fp8_recipe"] == "mxfp8":
        # training/config.py, validate: MXFP8 parameters are gathered through the buffer of gradients.
        put(document, keys.REUSE, True)
    adapter = said_adapter(q)
    if adapter is not None:
        kind, arguments = adapter
        document[keys.ADAPTER] = {keys.TARGET: keys.ADAPTERS[kind], **arguments}
    return {section: content for section, content in document.items() if content}
