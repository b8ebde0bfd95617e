#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for pytorch 2.13: dp 8, zero 3, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# The script needs PyTorch 2.6 or later.
# transformers must be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 8 train.py --mock-data --steps 10 \
  "$@"
