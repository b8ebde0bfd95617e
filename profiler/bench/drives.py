"""A node's drives: how fast all of its ranks together write large files and read them back, as offloaded state is swapped.

It is measured only in a folder that the user names, because a benchmark cannot know which one lies on drives of the node, and because
it writes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from profiler.bench.elementwise import bandwidth
from profiler.rig import Rig
from profiler.tasks import Findings, NotSupportedError, Task

_FILE_BYTES = 2**30
_TRIED_BYTES = 2**24
"""Size where everything runs on the processor, to try the agent out."""
_PIECE_BYTES = 2**24
"""What one call writes or reads; DeepSpeed's swapper has pieces of this order in flight (aio.block_size 1 MiB, 8 to 32 of them)."""


def tasks(rig: Rig, folder: Path | None) -> list[Task]:
    """Nothing without a folder."""
    if folder is None:
        return []
    return [Task("drives", 46, 10.0 if rig.on_gpu else 0.5, lambda rig: _run(rig, folder), "drives")]


def _run(rig: Rig, folder: Path) -> Findings:
    """Seconds of the slowest rank, while every rank of the node writes a file of its own and reads it again."""
    size = _FILE_BYTES if rig.on_gpu else _TRIED_BYTES
    path = folder / f".meshwright-drives-{os.getpid()}"
    ranks = rig.place.local_world
    try:
        rig.align()
        writing = rig.slowest(rig.stopwatch.host_seconds(lambda _index: _write(path, size), calls=1, blocks=3))
        rig.align()
        reading = rig.slowest(rig.stopwatch.host_seconds(lambda _index: _read(path, size), calls=1, blocks=3))
    except OSError as error:
        raise NotSupportedError(f"{folder} cannot be written to: {error.strerror}") from error
    finally:
        path.unlink(missing_ok=True)
    return {
        "memory_bandwidth": [
            bandwidth("nvme_read", float(ranks * size), reading),
            bandwidth("nvme_write", float(ranks * size), writing),
        ]
    }


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """The file past the host's cache where its file system can do that, else through it."""
    direct = getattr(os, "O_DIRECT", 0)
    try:
        file = os.open(path, flags | direct, 0o600)
    except OSError:
        # A file system in memory knows no such thing, and neither do some over a network.
        file = os.open(path, flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _write(path: Path, size: int) -> None:
    # A mapping of its own begins on a page, as transfers past the cache need it.
    with _opened(path, os.O_WRONLY | os.O_CREAT) as file, mmap.mmap(-1, _PIECE_BYTES) as piece:
        for at in range(0, size, _PIECE_BYTES):
            os.pwritev(file, [piece], at)
        os.fsync(file)


def _read(path: Path, size: int) -> None:
    with _opened(path, os.O_RDONLY) as file, mmap.mmap(-1, _PIECE_BYTES) as piece:
        # What the cache still holds of it would be read at the speed of memory.
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
        for at in range(0, size, _PIECE_BYTES):
            os.preadv(file, [piece], at)
