"""The environment variables that a plan on Megatron Core needs on its GPUs, and why."""

from __future__ import annotations

from planner.export.quantities import Quantities
from planner.export.target import Variable

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The name that Megatron reads and every release of PyTorch takes."""
OFFLOAD_VERSION = "NVTE_CPU_OFFLOAD_V1"
_NO_LIMIT_SINCE = frozenset({"blackwell"})
"""Generations on which kernels start in the order of their streams' priorities, whatever the number of connections."""


def environment(q: Quantities) -> tuple[Variable, ...]:
    """The variables, in the order in which the launch line sets them."""
    return (*_connections(q), *_allocator(q), *_offloading(q))


def _connections(q: Quantities) -> tuple[Variable, ...]:
    # megatron/training/arguments.py, validate_args: the same order of cases.
    splits = q.peek("tp") > 1 or q.peek("cp") > 1
    older = q.plan.generation not in _NO_LIMIT_SINCE
    if q.peek("zero") >= 2:
        return (
            Variable(CONNECTIONS, "8", "Megatron-FSDP refuses 1, since its collectives need a queue of their own."),
        )
    if older and q.peek("overlap.moe_all_to_all"):
        why = "The experts' all-to-all runs beside computation only with queues enough."
        return (Variable(CONNECTIONS, "32", why),)
    if older and splits:
        why = (
            "Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products are "
            "launched, without which they do not overlap; Megatron asserts it."
        )
        return (Variable(CONNECTIONS, "1", why),)
    return ()


def _offloading(q: Quantities) -> tuple[Variable, ...]:
    if not q.peek("offload.activation_modules"):
        return ()
    why = "Transformer Engine from 2.10 on would send weights to the host along with activations; Megatron asserts it."
    return (Variable(OFFLOAD_VERSION, "1", why),)


def _allocator(q: Quantities) -> tuple[Variable, ...]:
    if not q.peek("training.expandable_segments"):
        return ()
    found = [
        Variable(ALLOCATOR, "expandable_segments:True", "The plan's memory counts on segments that grow in place.")
    ]
    if q.peek("training.cuda_graphs"):
        why = "NCCL must not register buffers of CUDA graphs whose memory the allocator may map anew."
        found.append(Variable("NCCL_GRAPH_REGISTER", "0", why))
    return tuple(found)
