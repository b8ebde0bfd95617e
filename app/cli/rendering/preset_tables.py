"""Models, GPUs, clusters and frameworks for people: lists with the facts that matter, and one with all its facts and sources."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.cli.rendering.plan_table import console_width
from app.plan_cells import Json, parameter_count

NONE = "-"
"""What a preset does not have, such as the NVLink of a card without."""
_ROOMY = 100
"""Characters from which on columns stand further apart."""
Cells = Mapping[str, Callable[[Json], str]]


def print_overview(names: Mapping[str, Sequence[str]]) -> None:
    """All names by kind, and how to learn more."""
    out = _console()
    for kind, known in names.items():
        out.print(Text(f"{kind} ({len(known)})", style="bold"))
        out.print(Padding(Text("  ".join(known)), (0, 0, 1, 2)))
    out.print(
        "`meshwright presets KIND` lists a kind with its facts, and `meshwright presets KIND NAME` shows one in full."
    )


def print_list(kind: str, documents: Sequence[Json]) -> None:
    """One row for each preset of a kind."""
    out = _console()
    cells = _LISTS[kind]
    # On 80 columns the models' facts fit only with a single blank between them.
    table = _table(gap=2 if out.width >= _ROOMY else 0)
    for place, heading in enumerate(("name", *cells)):
        # A name that is cut cannot be copied into a request, so that other columns give way.
        side: JustifyMethod = "left" if place == 0 or kind == "frameworks" else "right"
        table.add_column(heading, justify=side, no_wrap=place == 0)
    for document in documents:
        table.add_row(Text(document["name"], no_wrap=True), *(Text(cell(document)) for cell in cells.values()))
    out.print(table)
    out.print(Text(_NOTES[kind], style="dim"))


def print_preset(kind: str, document: Json, origins: Mapping[str, Mapping[str, str]]) -> None:
    """Every field of one model, GPU or cluster with its unit, and where the numbers come from."""
    out = _console()
    out.print(Text(document["name"], style="bold"))
    table = _facts()
    for name, value in document["spec"].items():
        table.add_row(name, _value(value), Text(origins[name].get("unit", ""), style="dim"))
    # A model has one source for all its fields, which stands with the sources below.
    facts = {name: value for name, value in document["facts"].items() if name not in {"source", "date"}}
    if kind == "models":
        facts |= {"parameters": _parameters(document), "active parameters": _active(document)}
    for name, value in facts.items():
        table.add_row(name, _value(value), "")
    out.print(table)
    out.print(Text("Sources", style="bold"))
    fields: dict[tuple[str, str], list[str]] = {}
    for name, origin in origins.items():
        fields.setdefault((origin.get("source", "unknown"), origin.get("date", "")), []).append(name)
    for (source, date), named in fields.items():
        # A single source covers everything, which needs no list.
        which = f": {', '.join(named)}" if len(fields) > 1 else ""
        out.print(Padding(Text(f"{source}{f' ({date})' if date else ''}{which}"), (0, 0, 0, 2)))


def print_framework(document: Json) -> None:
    """Releases, every default, choices and rules of a framework."""
    out = _console()
    out.print(Text(f"{document['name']}, {document['default_version']} where no version is given", style="bold"))
    releases = ", ".join(f"{each['version']} ({each['released']})" for each in document["versions"])
    out.print(Padding(Text(f"Known releases: {releases}"), (0, 0, 1, 2)))
    for heading, key in (
        ("Defaults of the strategy", "strategy_defaults"),
        ("Defaults of the training", "training_defaults"),
        ("What it can be told", "choices"),
    ):
        out.print(Text(heading, style="bold"))
        table = _facts()
        for name, value in document[key].items():
            table.add_row(name, _conditional(value) if key == "training_defaults" else _value(value))
        out.print(table)
    multiple = document["vocabulary_multiple_per_tp"]
    out.print(Padding(Text(f"The vocabulary is padded to a multiple of {multiple} times tp."), (0, 0, 1, 2)))
    out.print(Text(f"Rules ({len(document['rules'])}; --json has their messages)", style="bold"))
    table = _facts()
    for rule in document["rules"]:
        span = " ".join(f"{word} {rule[word]}" for word in ("since", "until") if rule[word])
        table.add_row(rule["code"], span, Text(rule["source"], style="dim"))
    out.print(table)


def _console() -> Console:
    return Console(file=sys.stdout, width=console_width(), highlight=False)


def _table(*, gap: int) -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")


def _facts() -> Table:
    return Table(box=None, padding=(0, 2, 0, 2), show_header=False)


# --- cells ------------------------------------------------------------------------------------------------------------


def _counts(document: Json) -> Any:
    from cost_models.inputs.model import resolve_model
    from cost_models.layers.parameters import count_parameters

    return count_parameters(resolve_model({"preset": document["name"]}))


# A count is exact and quick, so that no figure of a file that might be out of date is shown.
def _parameters(document: Json) -> str:
    return parameter_count(_counts(document).total)


def _active(document: Json) -> str:
    return parameter_count(_counts(document).active)


def _heads(document: Json) -> str:
    """Attention heads, with the heads of keys and values where they are fewer."""
    heads, kv = document["spec"]["num_attention_heads"], document["spec"].get("num_key_value_heads")
    return f"{heads}/{kv}" if kv and kv != heads else str(heads)


def _experts(document: Json) -> str:
    moe = document["spec"].get("moe")
    return f"{moe['num_experts']} (top {moe['top_k']})" if moe else NONE


def _spec(name: str) -> Callable[[Json], str]:
    return lambda document: f"{value:,}" if (value := document["spec"].get(name)) else NONE


def _peak(precision: str) -> Callable[[Json], str]:
    return lambda document: f"{value:,.0f}" if (value := document["spec"]["peak_tflops"].get(precision)) else NONE


def _shape(document: Json) -> str:
    return f"{document['spec']['num_nodes']} x {document['spec']['gpus_per_node']}"


def _network(document: Json) -> str:
    spec = document["spec"]
    return f"{spec['network']['fabric']} {spec['nics_per_node']} x {spec['nic_gbit_per_s']:g} Gbit/s"


def _releases(document: Json) -> str:
    versions = [each["version"] for each in document["versions"]]
    return f"{versions[0]} to {versions[-1]}" if len(versions) > 1 else versions[0]


def _default(name: str) -> Callable[[Json], str]:
    return lambda document: _value(document["strategy_defaults"][name])


# Few and short enough to fit 80 columns beside the longest name: the facts that decide whether a name is the one that is meant.
_LISTS: Mapping[str, Cells] = {
    "models": {
        "total": _parameters,
        "active": _active,
        "layers": _spec("num_layers"),
        "hidden": _spec("hidden_size"),
        "heads": _heads,
        "experts": _experts,
        "context": _spec("max_position_embeddings"),
    },
    "gpus": {
        "memory GiB": _spec("memory_gib"),
        "bf16 TFLOP/s": _peak("bf16"),
        "fp8": _peak("fp8"),
        "memory GB/s": _spec("memory_bandwidth_gb_per_s"),
        "NVLink GB/s": _spec("nvlink_gb_per_s"),
    },
    "clusters": {
        "GPU": lambda document: str(document["spec"]["gpu"]),
        "nodes x GPUs": _shape,
        "in a node": lambda document: _value(document["spec"]["intra_node"]),
        "network of a node": _network,
    },
    "frameworks": {
        "version": lambda document: str(document["default_version"]),
        "known releases": _releases,
        "zero": _default("zero"),
        "sequence_parallel": _default("sequence_parallel"),
        "schedules": lambda document: _value(document["choices"]["schedule"]),
    },
}
_NOTES: Mapping[str, str] = {
    "models": "total and active: all parameters, and those that a token uses; heads: those of attention, and after the stroke those of "
    "keys and values where they are fewer.",
    "gpus": "TFLOP/s are dense peaks; GB/s of NVLink (or xGMI) are 1e9 bytes per second in one direction, all links of a GPU.",
    "clusters": "nodes: the default; --num-nodes says how many there are.",
    "frameworks": "version, zero and sequence_parallel: the defaults; `meshwright presets frameworks NAME` has all of them.",
}


def _value(value: Any) -> str:
    """A value as it would be written in a request, long lists of equal entries shortened."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(entry)}" for name, entry in value.items())
    if isinstance(value, list) and value and all(isinstance(entry, str | int) for entry in value):
        return _runs(value)
    return json.dumps(value)


def _runs(values: Sequence[Any]) -> str:
    """`full x 3, sliding` for a list in which the same entry stands several times in a row."""
    runs: list[tuple[Any, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return ", ".join(_value(value) if times == 1 else f"{_value(value)} x {times}" for value, times in runs)


def _conditional(value: Any) -> str:
    """A default that depends on the job, as `flash; math if precisions fp32`."""
    if not isinstance(value, list):
        return _value(value)
    return "; else ".join(_value(row["value"]) + (f" if {_value(row['when'])}" if row["when"] else "") for row in value)
