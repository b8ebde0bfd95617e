#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for deepspeed 0.19: unsplit, zero 0, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Install deepspeed 0.19, torch and transformers; FusedAdam is compiled at the first start, for which a CUDA
# toolkit of PyTorch's version must be installed (--torch-adam takes PyTorch's optimizer instead).
# This plan also needs flash-attn.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 train.py --mock-data --steps 10 \
  "$@"
