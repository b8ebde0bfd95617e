"""The free constants of the memory model: few, physical, each with value, unit, plausible range, meaning and source.

Bytes that follow from tensor shapes are formulas in the other modules. Here is only what had to be read off machines; what was
read off one framework's runs, or taken from its defaults, is in that framework's file. Sources are short names; EQUATIONS.md,
section M, says what they stand for.
"""

from __future__ import annotations

from cost_models.constants import Constant
from cost_models.units import GIB, MIB

CUBLAS_WORKSPACE_HOPPER_BYTES = Constant(
    64 * MIB, "bytes", 32 * MIB, 128 * MIB,
    "two 32 MiB GEMM workspaces, of the forward and of the autograd thread: PyTorch CUDABlas.cpp default for compute capability "
    "9+; resident bytes of own_tt",
)  # fmt: skip
CUBLAS_WORKSPACE_OLDER_BYTES = Constant(
    16.25 * MIB, "bytes", 8 * MIB, 64 * MIB,
    "two workspaces of 2 x 4 MiB + 8 x 16 KiB: PyTorch CUDABlas.cpp, default :4096:2:16:8 before Hopper",
)  # fmt: skip
CUDA_CONTEXT_BYTES = Constant(
    0.63 * GIB, "bytes", 0.3 * GIB, 1.2 * GIB,
    "CUDA context with the loaded kernels: own_tt device minus reserved; only its sum with the first communicator is identified",
)  # fmt: skip
COMMUNICATOR_BYTES = Constant(
    0.95 * GIB, "bytes", 0.1 * GIB, 1.5 * GIB,
    "buffers of one NCCL communicator that was used: own_tt device minus reserved, 4 x H100, NVLS off, NCCL 2.28",
)  # fmt: skip
P2P_NEIGHBOUR_BYTES = Constant(
    0.40 * GIB, "bytes", 0.05 * GIB, 0.8 * GIB,
    "buffers towards one pipeline neighbour: own_tt pipelines, 0.43 the first, 0.375 the second",
)  # fmt: skip
PROCESS_SPREAD = Constant(
    0.35, "1", 0.1, 0.6,
    "80 % interval of context and communicators, either way: own_tt against other machines' readings; NCCL's channels and NVLS "
    "differ by build",
)  # fmt: skip
PROCESS_2022_BYTES = Constant(
    4.5 * GIB, "bytes", 2.0 * GIB, 6.0 * GIB,
    "context and communicators together, A100 and software of 2022: bigscience device readings, fitted together with the "
    "reserved factor",
)  # fmt: skip
ALLOCATOR_SLACK = Constant(
    0.10, "1", 0.04, 0.30,
    "reserved beyond the usual where sizes change each step, over what changes: the agent's steps of changing length, 0.074 to "
    "0.118; data/measured_h100/allocator.md, 0.04 to 0.20",
)  # fmt: skip
HOST_BUFFER_RATIO = Constant(
    1.5, "1", 1.1, 1.6,
    "host memory that a node needs over the state counted in it: DeepSpeed's own estimators, additional_buffer_factor; see M-16",
)  # fmt: skip
HOST_PROCESS_BYTES = Constant(
    3e9, "bytes", 2e9, 6e9,
    "host memory of one training process beside its tensors: vLLM pull request 48436, 35 and 67 GB resident with 32 and 64 GB of "
    "pinned buffers",
)  # fmt: skip
