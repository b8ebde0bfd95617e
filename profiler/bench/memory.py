"""Facts about a device's memory: what the driver offers, what a context, a communicator and a neighbour take beside the
allocator's memory, and how much the allocator rounds up. Also the bandwidth between host and device.
"""

from __future__ import annotations

import os
from typing import Any

from profiler.bench.elementwise import bandwidth
from profiler.bench.host import build_layer
from profiler.rig import Rig
from profiler.tasks import Findings, Task, rounded

# Large enough that NCCL opens all channels and protocols, each with buffers of its own.
_PROBE_BYTES = 64 * 2**20
# Lengths that rise and fall, so that freed blocks rarely fit the next request, as with batches that are not padded.
_LENGTHS = (512, 640, 448, 768, 512, 704)


def tasks(rig: Rig) -> list[Task]:
    """The facts come first: communicators must be measured before any other task has made one."""
    result = [Task("memory/facts", 0, 8.0 if rig.place.world > 1 else 1.0, _facts, "memory facts")]
    if rig.on_gpu:
        result.append(Task("memory/host-link", 44, 2.0, _host_link, "host link"))
        result.append(Task("memory/allocator", 80, 2.0, _slack, "allocator"))
    return result


def _outside_bytes(rig: Rig) -> float:
    """Bytes in use on the device that are not the allocator's."""
    free, total = rig.torch.cuda.mem_get_info(rig.device)
    return float(total - free - rig.torch.cuda.memory_reserved(rig.device))


def _facts(rig: Rig) -> Findings:
    if not rig.on_gpu:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {"memory": [{"capacity_bytes": float(pages) / rig.place.local_world}]}
    torch = rig.torch
    # The libraries' workspaces and the kernels of a product and of attention belong to the context that every process has.
    warm = rig.random(4096, 4096)
    torch.matmul(warm, warm)
    torch.nn.functional.scaled_dot_product_attention(*(rig.random(1, 8, 512, 128) for _ in range(3)), is_causal=True)
    rig.stopwatch.synchronize()
    facts: dict[str, Any] = {"capacity_bytes": float(torch.cuda.mem_get_info(rig.device)[1])}
    # At least one byte, since the document refuses zero where a driver shows no difference.
    facts["context_bytes"] = max(rig.largest(_outside_bytes(rig)), 1.0)
    if rig.place.world > 1:
        facts |= _communicator(rig)
    return {"memory": [facts]}


def _communicator(rig: Rig) -> dict[str, float]:
    """Bytes of the first communicator once its operations ran, then of a send to a neighbour."""
    dist, torch = rig.torch.distributed, rig.torch
    world, count = rig.place.world, int(_PROBE_BYTES / 2)
    whole = torch.zeros(count - count % world, device=rig.device, dtype=rig.half)
    part = torch.zeros(len(whole) // world, device=rig.device, dtype=rig.half)
    before = _outside_bytes(rig)
    dist.all_reduce(whole)
    rig.all_gather(whole, part)
    rig.reduce_scatter(part, whole)
    rig.stopwatch.synchronize()
    used = _outside_bytes(rig)
    neighbours = sorted({(rig.place.rank + 1) % world, (rig.place.rank - 1) % world})
    # A pipeline stage sends to its neighbour and receives from it: activations one way, gradients the other.
    calls = [dist.P2POp(dist.isend, part, rank) for rank in neighbours]
    calls += [dist.P2POp(dist.irecv, torch.empty_like(part), rank) for rank in neighbours]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    rig.stopwatch.synchronize()
    facts = {
        "communicator_bytes": rig.largest(used - before),
        "p2p_neighbour_bytes": rig.largest((_outside_bytes(rig) - used) / len(neighbours)),
    }
    return {name: value for name, value in facts.items() if value > 0}


def _host_link(rig: Rig) -> Findings:
    """Copies from and to pinned memory, on every device at once, as an offloaded step makes them."""
    torch, size = rig.torch, 256 * 2**20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device=rig.device)
    down = rig.local(lambda _index: device.copy_(host, non_blocking=True))
    up = rig.local(lambda _index: host.copy_(device, non_blocking=True))
    found = [bandwidth("host_to_device", size, down), bandwidth("device_to_host", size, up)]
    return {"memory_bandwidth": [*found, _both_ways(rig, host, device, size)]}


def _both_ways(rig: Rig, host: Any, device: Any, size: int) -> dict[str, Any]:
    """A copy from pinned memory and one to it that begin together, on streams of their own, with other buffers than each other's."""
    torch = rig.torch
    other_host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    other_device = torch.empty(size, dtype=torch.uint8, device=rig.device)
    aside = torch.cuda.Stream()

    def copy(_index: int) -> None:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            other_host.copy_(other_device, non_blocking=True)
        device.copy_(host, non_blocking=True)
        # What comes next begins when both are over, so that every repeat holds one copy each way.
        torch.cuda.current_stream().wait_stream(aside)

    return bandwidth("host_both_ways", 2.0 * size, rig.local(copy))


def _slack(rig: Rig) -> Findings:
    """Peak of reserved over allocated memory in training steps whose length changes, as it does without padding."""
    torch = rig.torch
    rig.release()
    torch.cuda.reset_peak_memory_stats(rig.device)
    layers = [build_layer(rig) for _ in range(4)]
    for length in _LENGTHS:
        value = rig.random(4, length, rig.scale.layer_width)
        for layer in layers:
            value = layer(value)
        value.float().sum().backward()
    rig.stopwatch.synchronize()
    peak = torch.cuda.max_memory_reserved(rig.device) / torch.cuda.max_memory_allocated(rig.device)
    return {"memory": [{"allocator_slack_fraction": rounded(max(rig.largest(peak) - 1.0, 0.0), 3)}]}
