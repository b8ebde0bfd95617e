#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for nemo 2.7: tp 2, dp 4, zero 1, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# nemo_toolkit 2.7 with its llm extra must be installed, which runs on Megatron Core 0.16.
# NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there
# (--framework megatron-bridge says the same plans).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products
# are launched, without which they do not overlap; Megatron asserts it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun --standalone --nproc-per-node 8 train.py --mock-data \
  "$@"
