#!/usr/bin/env bash
# llama-2-13b on 32 GPUs for accelerate 1.15: dp 32, zero 2, micro-batch 1, recompute full.
# Install accelerate 1.15, torch and transformers.
# train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load
# your own weights there.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec accelerate launch --config_file accelerate.yaml --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" \
  --main_process_port "${MASTER_PORT:-29500}" train.py \
  "$@"
