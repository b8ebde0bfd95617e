"""Groups of ranks that are worth measuring: of every size inside a node, several side by side, strided, and across nodes.

The document states of a group its ranks, its ranks per node, its stride, and how many such groups run at once; here its members
are named too. The planner's groups are regular in the same way: ranks `first + i * stride`, filled node by node.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """Groups of one shape that communicate at once, or a single group."""

    groups: tuple[tuple[int, ...], ...]
    ranks_per_node: int
    stride: int

    @property
    def ranks(self) -> int:
        return len(self.groups[0])

    @property
    def label(self) -> str:
        """Short name for keys and tables, such as `4x1.s1.c1`."""
        nodes = self.ranks // self.ranks_per_node
        return f"{self.ranks_per_node}x{nodes}.s{self.stride}.c{len(self.groups)}"


def placements(*, local_world: int, num_nodes: int) -> list[Placed]:
    """All groups to measure, the most telling first: the whole node, all nodes, then parts, siblings and strides.

    Sizes that divide the node are measured alone and with all their siblings; others, such as 3 of 4 ranks, alone.
    """
    whole = local_world
    result = [_inside(whole, 1, local_world)] if whole > 1 else []
    result += _across(local_world, num_nodes)
    divisors = [size for size in range(whole - 1, 1, -1) if whole % size == 0]
    result += [_inside(size, 1, local_world) for size in divisors]
    # In a training step all groups of a kind communicate at the same time and share links, so a group that is measured alone is
    # too fast. The single one is kept, because a plan may have only one.
    result += [_siblings(size, 1, local_world) for size in divisors]
    for size in divisors:
        # Data-parallel groups have the stride of the tensor-parallel size. The widest stride shows whether it matters at all, as it
        # does where GPUs share a PCIe switch.
        stride = whole // size
        if stride > 1:
            result.append(_inside(size, stride, local_world))
            result.append(_siblings(size, stride, local_world))
    result += [_inside(size, 1, local_world) for size in range(2, whole) if whole % size]
    return list(dict.fromkeys(result))


def _inside(size: int, stride: int, local_world: int) -> Placed:
    assert (size - 1) * stride < local_world
    return Placed((tuple(range(0, size * stride, stride)),), size, stride)


def _siblings(size: int, stride: int, local_world: int) -> Placed:
    """All groups of one node at once: blocks of size * stride ranks, with `stride` interleaved groups in each."""
    block = size * stride
    groups = tuple(
        tuple(range(first + offset, first + block, stride))
        for first in range(0, local_world, block)
        for offset in range(stride)
    )
    return Placed(groups, size, stride)


def _across(local_world: int, num_nodes: int) -> list[Placed]:
    """Groups with k members on each of all nodes: alone, and with all their siblings sharing the NICs."""
    if num_nodes < 2:
        return []
    world = local_world * num_nodes
    result = [Placed((tuple(range(world)),), local_world, 1)]
    # Two nodes show the network without congestion, all of them as training uses it; between the two the cost model interpolates.
    counts = sorted({2, num_nodes})
    for members in range(1, local_world):
        if local_world % members:
            continue
        for nodes in counts:
            groups = tuple(
                tuple(node * local_world + first + i for node in range(nodes) for i in range(members))
                for first in range(0, local_world, members)
            )
            stride = local_world if members == 1 else 1
            result.append(Placed(groups, members, stride))
            result.append(Placed(groups[:1], members, stride))
    if num_nodes > 2:
        result.append(Placed((tuple(range(2 * local_world)),), local_world, 1))
    return result
