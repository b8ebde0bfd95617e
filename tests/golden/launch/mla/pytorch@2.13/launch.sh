#!/usr/bin/env bash
# deepseek on 2048 GPUs for pytorch 2.13: dp 2048, zero 3, micro-batch 1, recompute full.
# The script needs PyTorch 2.6 or later.
# transformers must be installed.
# tokens.bin is yours: token ids of four bytes each.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 256 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" train.py --tokens tokens.bin --steps 1000 \
  "$@"
