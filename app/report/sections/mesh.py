"""The mesh of a plan: nodes with their stages, the groups of one rank, and a table of all kinds of groups with their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.report.figures.mesh import MOST_COLUMNS, node_figure, swatch
from app.report.report import PlanView, Report
from app.report.section import Section, section, unavailable
from cost_models.errors import CalibrationError
from cost_models.units import GB
from planner.export.launch_plan import LaunchPlan, launch_plan
from planner.mesh.mesh import mesh_document
from planner.mesh.rank_groups import RankGroups

Json = Mapping[str, Any]
TITLE = "Ranks, nodes and links"
CHOSEN = 0
"""The rank whose groups are marked: with the regular numbering of ranks every other rank's groups look alike."""
MARKED = ("tp", "cp", "ep", "dp", "pp")
MOST_NODES = 4
"""Nodes that are all drawn; of more, those that show the pattern."""
NAMES = {
    "tp": "tensor parallel (tp)",
    "cp": "context parallel (cp)",
    "dp": "data parallel (dp)",
    "pp": "pipeline (pp)",
    "dp_cp": "same dense parameters (dp × cp)",
    "zero_shard": "ZeRO shards of one copy",
    "zero_replica": "ZeRO replicas of one shard",
    "param_shard": "parameter shards of forward and backward",
    "etp": "tensor parallel in an expert (etp)",
    "ep": "expert parallel (ep)",
    "edp": "same experts (edp)",
    "expert_shard": "shards of the experts' state",
    "expert_replica": "replicas of an experts' shard",
}
_FAST = {
    "nvswitch": "NVLink through NVSwitch",
    "nvlink-mesh": "NVLink, a mesh",
    "nvlink-pairs": "NVLink bridge",
    "xgmi": "xGMI",
    "custom": "the node's fast link",
}
_REACH = {"switch": "PCIe, one switch", "socket": "PCIe, one socket", "sockets": "PCIe, across sockets"}


def mesh(report: Report, view: PlanView) -> Section:
    """Which ranks form which groups, on which nodes, and over which links."""
    try:
        plan = launch_plan(view.row, extra=report.calibrations, allow_files=report.allow_files)
    except CalibrationError as error:
        return unavailable("mesh", TITLE, error)
    document = mesh_document(plan.pooled, plan.row)
    kinds = {each["name"]: _groups(each) for each in document["dimensions"]}
    # Groups of one rank would mark the chosen rank alone, which its outline does already.
    shared = {name: kinds[name].group_of(CHOSEN) for name in MARKED if name in kinds and kinds[name].size > 1}
    told, also = _distinct(document["dimensions"])
    return section(
        "mesh",
        TITLE,
        summary=_summary(document),
        device_mesh=_device_mesh(document),
        columns=min(MOST_COLUMNS, max(run["gpus"] for run in document["nodes"])),
        nodes=_shown_nodes(document, shared, view),
        keys=[
            {"mark": swatch(f"mesh-{name}"), "told": f"{NAMES[name]}: ranks {ranks_told(members)}"}
            for name, members in shared.items()
        ],
        chosen=CHOSEN,
        rows=[row for each in told for row in _rows(each, kinds[each["name"]], plan, also[each["name"]])],
        alone=_listed([NAMES[name] for name, kind in kinds.items() if kind.size == 1]),
    )


def _distinct(dimensions: Sequence[Json]) -> tuple[list[Json], dict[str, list[str]]]:
    """The kinds of group of more than one rank, and by name the others that are formed by the same ranks and do the same."""
    told: list[Json] = []
    also: dict[str, list[str]] = {}
    for each in dimensions:
        # Shards of the state are most often held by all replicas, and experts are most often split as the rest is.
        same = [one for one in told if all(one[key] == each[key] for key in ("size", "stride", "links"))]
        if each["size"] > 1 and same:
            also[same[0]["name"]].append(NAMES[each["name"]])
        elif each["size"] > 1:
            told.append(each)
            also[each["name"]] = []
    return told, also


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def _groups(dimension: Json) -> RankGroups:
    return RankGroups(*(dimension[name] for name in ("name", "size", "stride", "count")))


def _summary(document: Json) -> str:
    nodes = sum(run["count"] for run in document["nodes"])
    world, stage = document["world"], document["stage_ranks"]
    told = f"{world:,} {'rank' if world == 1 else 'ranks'} on {nodes:,} {'node' if nodes == 1 else 'nodes'}"
    if stage < world:
        told += f", {stage:,} a stage"
    if document["idle_gpus"]:
        told += f"; {document['idle_gpus']:,} GPUs stay idle"
    return f"{told}. Ranks are numbered with tp fastest, then cp, dp and pp, and fill one node after the other."


def _device_mesh(document: Json) -> str:
    axes = document["device_mesh"]
    if axes is None:
        return ""
    return "DeviceMesh, outermost axis first: " + ", ".join(f"{name} {size}" for name, size in axes.items()) + "."


def _shown_nodes(document: Json, shared: Mapping[str, Sequence[int]], view: PlanView) -> list[dict[str, Any]]:
    """The figures of as many nodes as show the pattern, and what is left out between them."""
    runs = document["nodes"]
    total = sum(run["count"] for run in runs)
    shown: list[tuple[Json, int]] = []
    if total <= MOST_NODES:
        shown = [(run, place) for run in runs for place in range(run["count"])]
    else:
        # Two nodes of the first run show how ranks go on; of many runs the first two and the last one show how stages do.
        kept = runs if len(runs) <= 3 else [*runs[:2], runs[-1]]
        shown = [(run, place) for run in kept for place in range(min(run["count"], 3 if len(kept) == 1 else 2))]
    found: list[dict[str, Any]] = []
    for position, (run, place) in enumerate(shown):
        node = run["first_node"] + place
        following = shown[position + 1] if position + 1 < len(shown) else None
        until = total if following is None else following[0]["first_node"] + following[1]
        caption = _caption(run, node)
        drawn = node_figure(
            run["stages"],
            first_rank=run["first_rank"] + place * run["gpus"],
            shared=shared,
            chosen=CHOSEN,
            name=f"{view.name('mesh')}-node-{node}",
            caption=caption,
        )
        # Nodes between this one and the next that is drawn, which may belong to other stages.
        between = until - node - 1
        found.append({"figure": drawn, "between": _between(between, run, place)})
    return found


def _caption(run: Json, node: int) -> str:
    stages = sorted({stage for stage in run["stages"] if stage >= 0})
    told = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]}"
    pool = f" · pool {run['pool']}" if run["pool"] else ""
    return f"node {node} · {told}{pool}"


def _between(count: int, run: Json, place: int) -> str:
    """What stands for the nodes that are not drawn behind a drawn one."""
    if count <= 0:
        return ""
    nodes = "node" if count == 1 else "nodes"
    alike = count <= run["count"] - place - 1
    return f"… {count:,} more {nodes}" + (" alike" if alike else " of this and the next stages")


def ranks_told(members: Sequence[int]) -> str:
    """Ranks in few words: "0 to 7", "0, 8, 16 … 120"."""
    if len(members) == 1:
        return str(members[0])
    if members[1] - members[0] == 1 and len(members) > 2:
        return f"{members[0]:,} to {members[-1]:,}"
    if len(members) <= 4:
        return ", ".join(f"{rank:,}" for rank in members)
    return f"{', '.join(f'{rank:,}' for rank in members[:3])} … {members[-1]:,}"


def _rows(dimension: Json, groups: RankGroups, plan: LaunchPlan, also: Sequence[str]) -> list[dict[str, Any]]:
    """One row for a kind of group, or one for each pool that it lies on."""
    return [
        {
            "name": _listed([NAMES[dimension["name"]], *also]),
            "id": dimension["name"],
            "pool": link["pool"],
            "size": dimension["size"],
            # On pools both are those of the pool's own groups.
            "count": link["count"],
            "first": ranks_told(groups.group_of(link["first_rank"])),
            "stride": dimension["stride"],
            "nodes": _range(link["nodes"]),
            "link": _link_told(link, plan),
            "rate": f"{link['bus_bytes_per_s'] / GB:,.1f}",
            "op": link["op"].replace("_", "-"),
            "tier": link["tier"],
        }
        for link in dimension["links"]
    ]


def _range(pair: Sequence[int]) -> str:
    return f"{pair[0]:,}" if pair[0] == pair[1] else f"{pair[0]:,} to {pair[1]:,}"


def _link_told(link: Json, plan: LaunchPlan) -> str:
    if link["link"] == "pcie":
        return _REACH[link["reach"]]
    if link["link"] == "fast":
        domain = " of one domain" if link["nodes"][1] > 1 else ""
        return f"{_FAST[link['interconnect']]}{domain}"
    job = plan.pooled.jobs[plan.pooled.names.index(link["pool"]) if link["pool"] else 0]
    nics = job.cluster.network.nics_per_node
    sharing, members = link["groups_per_node"], _range(link["members_per_node"])
    groups = "group shares" if sharing == 1 else "groups share"
    cards = "NIC" if nics == 1 else f"{nics} NICs"
    return f"network; {members} of a group on a node, {sharing} {groups} its {cards}"
