#!/usr/bin/env bash
# llama-3.2-1b on 1 GPUs for transformers 5.24: one GPU, zero 2, micro-batch 1, recompute full.
# Install transformers 5.24, torch and accelerate.
# train.py trains on random tokens; put your own data set into its `batches`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"


exec torchrun --standalone --nproc-per-node 1 train.py \
  "$@"
