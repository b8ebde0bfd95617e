#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for nemo 2.7: unsplit, zero 0, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# nemo_toolkit 2.7 with its llm extra must be installed, which runs on Megatron Core 0.16.
# NVIDIA deprecated NeMo 2's language models with 25.11 in favour of Megatron-Bridge: new work belongs there
# (--framework megatron-bridge says the same plans).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 train.py --mock-data \
  "$@"
