#!/usr/bin/env bash
# llama-3.1-8b on 64 GPUs for nemo 2.7: tp 2, dp 32, zero 1, micro-batch 1, recompute none.
# nemo_toolkit 2.7 with its llm extra must be installed, which runs on Megatron Core 0.16.
# NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there
# (--framework megatron-bridge says the same plans).
# Add --data-path and --tokenizer; learning rate and schedule are yours to set in the script.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products
# are launched, without which they do not overlap; Megatron asserts it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 8 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" train.py \
  "$@"
