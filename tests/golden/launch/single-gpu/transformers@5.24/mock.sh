#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for transformers 5.24: unsplit, zero 2, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Install transformers 5.24, torch and accelerate.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 train.py --mock-data --steps 10 \
  "$@"
