#!/usr/bin/env bash
# qwen2.5-7b on 16 GPUs for nanotron 2025: tp 2, dp 8, zero 1, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# NANOTRON is the folder of a checkout of nanotron, from which it must be installed, too: the newest wheel is
# of 2024.
set -euo pipefail
: "${NANOTRON:?set it to the folder of your checkout of nanotron}"
cd "$(dirname "${BASH_SOURCE[0]}")"

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" "$NANOTRON/run_train.py" --config-file config_mock.yaml \
  "$@"
