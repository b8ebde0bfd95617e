#!/usr/bin/env bash
# llama-3.1-8b on 64 GPUs for torchtitan 0.2: tp 4, cp 8, dp 2, zero 3, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# torchtitan 0.2.2 must be installed.
# Start it in the folder of these files, which Python imports plan_model from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Memory grows in place instead of in new segments, so that less of it is lost to fragmentation; the plan
# counts on it.
export PYTORCH_ALLOC_CONF=expandable_segments:True

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 8 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" -m torchtitan.train --job.config-file plan.toml --training.dataset mock \
  --training.steps 10 \
  "$@"
