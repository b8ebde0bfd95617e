"""The free constants of the memory model: few, physical, each with value, unit, meaning, plausible range and source.

Bytes that follow from tensor shapes are formulas in the other modules. Here is only what had to be read off machines; what was
read off one framework's runs, or taken from its defaults, is in that framework's file. Sources are short names; EQUATIONS.md,
section M, says what they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cost_models.units import GIB

MIB: Final = float(2**20)


@dataclass(frozen=True, slots=True)
class Constant:
    """One number with its meaning and origin."""

    name: str
    value: float
    unit: str
    meaning: str
    low: float
    high: float
    """Plausible range; outside it the number would have no physical reading."""
    source: str


_TABLE = (
    Constant("cublas_workspace_hopper", 64 * MIB, "bytes", "two 32 MiB GEMM workspaces, forward and autograd thread",
             32 * MIB, 128 * MIB, "PyTorch CUDABlas.cpp default for compute capability 9+; resident bytes of own_tt"),
    Constant("cublas_workspace_older", 16.25 * MIB, "bytes", "two workspaces of 2 x 4 MiB + 8 x 16 KiB",
             8 * MIB, 64 * MIB, "PyTorch CUDABlas.cpp, default :4096:2:16:8 before Hopper"),
    Constant("cuda_context", 0.63 * GIB, "bytes", "CUDA context with the loaded kernels",
             0.3 * GIB, 1.2 * GIB, "own_tt device minus reserved; only its sum with the first communicator is identified"),
    Constant("communicator", 0.95 * GIB, "bytes", "buffers of one NCCL communicator that was used",
             0.1 * GIB, 1.5 * GIB, "own_tt device minus reserved, 4 x H100, NVLS off, NCCL 2.28"),
    Constant("p2p_neighbour", 0.40 * GIB, "bytes", "buffers towards one pipeline neighbour",
             0.05 * GIB, 0.8 * GIB, "own_tt pipelines: 0.43 the first, 0.375 the second"),
    Constant("process_spread", 0.35, "fraction", "80 % interval of context and communicators, either way",
             0.1, 0.6, "own_tt against other machines' readings; NCCL's channels and NVLS differ by build"),
    Constant("context_2022", 4.5 * GIB, "bytes", "context and communicators together, A100 and software of 2022",
             2.0 * GIB, 6.0 * GIB, "bigscience device readings, fitted together with the reserved factor"),
    Constant("allocator_slack", 0.10, "fraction", "reserved beyond the usual where sizes change each step, over what changes",
             0.04, 0.30, "the agent's steps of changing length: 0.074 to 0.118; data/measured_h100/allocator.md: 0.04 to 0.20"),
    Constant("host_buffer_factor", 1.5, "ratio", "host memory that a node needs over the state counted in it",
             1.1, 1.6, "DeepSpeed's own estimators, additional_buffer_factor; see M-16"),
    Constant("host_process", 3e9, "bytes", "host memory of one training process beside its tensors",
             2e9, 6e9, "vLLM pull request 48436: 35 and 67 GB resident with 32 and 64 GB of pinned buffers"),
)  # fmt: skip

CONSTANTS: Final = {constant.name: constant for constant in _TABLE}
"""Every constant by name."""


def constant(name: str) -> float:
    """Value of the named constant, in the constant's own unit."""
    return CONSTANTS[name].value
