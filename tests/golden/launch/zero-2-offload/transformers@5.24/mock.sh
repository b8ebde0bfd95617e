#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for transformers 5.24: dp 8, zero 2, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Install transformers 5.24, torch and accelerate.
# This plan also needs deepspeed and flash-attn.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 8 train.py --mock-data --steps 10 \
  "$@"
