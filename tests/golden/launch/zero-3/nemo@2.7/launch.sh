#!/usr/bin/env bash
# qwen2.5-7b on 16 GPUs for nemo 2.7: dp 16, zero 3, micro-batch 2, recompute full.
# nemo_toolkit 2.7 with its llm extra must be installed, which runs on Megatron Core 0.16.
# NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there
# (--framework megatron-bridge says the same plans).
# Add --data-path and --tokenizer; learning rate and schedule are yours to set in the script.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Megatron-FSDP refuses 1, since its collectives need a queue of their own.
export CUDA_DEVICE_MAX_CONNECTIONS=8

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" train.py \
  "$@"
