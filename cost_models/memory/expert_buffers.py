"""Bytes of the buffers that expert dispatchers allocate for themselves, outside of PyTorch's allocator. [M-14]"""

from __future__ import annotations

import numpy as np

from cost_models.hardware.groups import groups
from cost_models.job import Job
from cost_models.strategies.fields import FlexBackend, MoeDispatcher
from cost_models.strategies.strategy import Floats, Strategies

NVLINK_PEERS = 8.0
"""Ranks of one node that DeepEP's kernels address over NVLink (NUM_MAX_NVL_PEERS, csrc/config.hpp)."""
_CHANNELS = 10.0
"""Channels of a dispatch: half of the 20 multiprocessors that Megatron lends to the kernels (moe_deepep_num_sms)."""
_ROW_FACTS = 128 * (8 + 4 + 4) + 8.0
"""Bytes beside a token's row: 128 places each for expert indices, weights and scales, and where the token comes
from."""
_PER_OTHER_NODE = 3.0
"""Buffers of one rank's tokens that HybridEP keeps for each other node: one to send, one received, one partly
summed."""
_NETWORK_SLOTS = 128.0
"""Tokens that each network peer's queue holds; there are two queues per peer."""
_NVLINK_SLOTS = ((64.0, 288.0), (96.0, 480.0), (128.0, 560.0), (np.inf, 720.0))
"""Tokens that each NVLink peer's queue holds for groups of up to so many ranks; 256 inside a node
(Buffer.get_dispatch_config)."""


def flex_buffer_bytes(job: Job, strategies: Strategies) -> Floats:
    """Bytes of the flex dispatcher's own buffers on a rank, shape (N,); 0 with other dispatchers. [M-14]"""
    flex = (strategies.moe_dispatcher == MoeDispatcher.FLEX) & (strategies.ep * strategies.etp > 1)
    if job.model.moe is None or not flex.any():
        return np.zeros(len(strategies))
    hybrid = strategies.flex_backend == FlexBackend.HYBRIDEP
    found = np.where(hybrid, _hybridep_bytes(job, strategies), _deepep_bytes(job, strategies))
    return np.where(flex, found, 0.0)


def _deepep_bytes(job: Job, strategies: Strategies) -> Floats:
    """Bytes of DeepEP's queues towards the peers, for n ranks that share the experts, shape (N,).

        channels min(n, 8) slots (2h + facts)  +  2 channels n/8 128 (2h + facts)

    The second part exists only when the ranks span several nodes. An element takes two bytes, in fp8 too.
    """
    ranks = strategies.ep * strategies.etp
    row = 2.0 * job.model.hidden_size + _ROW_FACTS
    several = ranks > NVLINK_PEERS
    slots = np.select([ranks <= most for most, _ in _NVLINK_SLOTS], [count for _, count in _NVLINK_SLOTS])
    inside = _CHANNELS * np.minimum(ranks, NVLINK_PEERS) * np.where(several, slots, 256.0) * row
    across = np.where(several, 2.0 * _CHANNELS * ranks / NVLINK_PEERS * _NETWORK_SLOTS * row, 0.0)
    return np.asarray(inside + across)


def _hybridep_bytes(job: Job, strategies: Strategies) -> Floats:
    """Bytes of HybridEP's buffers on a rank, shape (N,).

        (n T + 3 (N - 1) T) (2h + 4 E/N)

    T tokens of a rank, n ranks on N nodes or NVLink domains. There is room for every token of all n ranks, should one rank get
    them all, and for three copies of a rank's tokens for each other node. Dispatch and combine share the room.

    Source: deepseek-ai/DeepEP, branch hybrid-ep, csrc/hybrid_ep/hybrid_ep.cu (allocate_buffer).
    """
    moe, group = job.model.moe, groups(strategies, job.cluster).etp_ep
    assert moe is not None
    tokens = strategies.rank_tokens(job.training.seq_length) / strategies.tp
    row = 2.0 * job.model.hidden_size + 4.0 * moe.num_experts / group.islands
    return np.asarray((group.ranks + _PER_OTHER_NODE * (group.islands - 1.0)) * tokens * row)
