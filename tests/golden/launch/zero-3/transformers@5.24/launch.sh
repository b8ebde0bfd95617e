#!/usr/bin/env bash
# qwen2.5-7b on 16 GPUs for transformers 5.24: dp 16, zero 3, micro-batch 2, recompute full.
# Install transformers 5.24, torch and accelerate.
# This plan also needs deepspeed and flash-attn.
# train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load
# your own weights there.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" train.py \
  "$@"
