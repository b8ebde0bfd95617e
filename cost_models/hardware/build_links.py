"""Everything that prices collectives on a cluster, put together: tables inside nodes, and what was measured between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_models.calibration.document import CalibrationDocument, CollectiveFit
from cost_models.hardware.algorithms import is_measured_by
from cost_models.hardware.collectives import Links, NetworkCurves, collective_s
from cost_models.hardware.link_tables import (
    GRID_LOG2,
    fast_tables,
    on_grid,
    pcie_tables,
    reach_rows,
    reach_tables,
    strided_tables,
)
from cost_models.hardware.placement import Placement
from cost_models.operations import Op
from cost_models.specs.cluster import Cluster
from cost_models.terms import Tier


def build_links(cluster: Cluster, document: CalibrationDocument | None) -> Links:
    """Everything that prices collectives on a cluster: a document's curves where they apply, else nominal figures."""
    domain = max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    node = min(cluster.gpus_per_node, cluster.num_gpus)
    fast = pcie_tables if cluster.link_kind == "pcie" else fast_tables
    links = Links(
        cluster=cluster,
        domain=fast(cluster, document, ranks=max(domain, 2)),
        strided=strided_tables(cluster, document, ranks=max(domain, 2)),
        node=reach_tables(cluster, document, ranks=node) if domain < node else {},
        node_rows=reach_rows(node),
    )
    if document is None or document.kind != "measured":
        return links
    between: dict[Op, dict[tuple[int, int], CollectiveFit]] = {}
    for fit in document.collective_fits:
        group = (fit.ranks // fit.ranks_per_node, fit.ranks_per_node)
        if group[0] > 1 and is_measured_by(cluster, fit.op):
            groups = between.setdefault(fit.op, {})
            # The formula prices all sibling groups at once, so of one group size the most crowded measurement is the
            # comparable one.
            if group not in groups or fit.concurrent_groups > groups[group].concurrent_groups:
                groups[group] = fit
    curves = {op: _network_curves(op, list(fits.values()), links) for op, fits in between.items()}
    return replace(links, network=curves)


def _network_curves(op: Op, fits: Sequence[CollectiveFit], links: Links) -> NetworkCurves:
    """Ratios of measured to modelled seconds of one operation, by group and grid size."""
    sizes = np.exp2(GRID_LOG2)
    # A ratio to the formula carries over to sizes and groups that were not measured; seconds would not.
    ratios, covered = [], []
    for fit in fits:
        modelled = collective_s(op, sizes, placement=_placement_of(fit, links.cluster), links=links)
        ratios.append(np.log2(on_grid(fit) / modelled.seconds))
        low, high = np.log2(fit.size_bytes[0]), np.log2(fit.size_bytes[-1])
        covered.append((low - 0.5 <= GRID_LOG2) & (high + 0.5 >= GRID_LOG2))
    return NetworkCurves(
        islands_J=np.array([fit.ranks / fit.ranks_per_node for fit in fits]),
        per_island_J=np.array([float(fit.ranks_per_node) for fit in fits]),
        log2_ratio_JP=np.stack(ratios),
        covered_JP=np.stack(covered),
        tier=Tier.MEASURED,
    )


def _placement_of(fit: CollectiveFit, cluster: Cluster) -> Placement:
    """The measured group as a placement, repeated for every size of the grid."""
    domain = max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    inside = min(fit.ranks_per_node, domain)
    columns = {
        "ranks": fit.ranks, "per_domain": inside, "domains": fit.ranks / inside,
        "stride": fit.stride, "per_island": fit.ranks_per_node,
        "islands": fit.ranks / fit.ranks_per_node,
        "switches": fit.ranks / fit.ranks_per_node, "sockets": fit.ranks / fit.ranks_per_node,
        "leaves": 1.0,  # what the spine costs is part of what was measured
    }  # fmt: skip
    return Placement(**{name: np.full(len(GRID_LOG2), float(value)) for name, value in columns.items()})
