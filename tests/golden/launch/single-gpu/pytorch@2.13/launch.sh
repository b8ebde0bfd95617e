#!/usr/bin/env bash
# llama-3.2-1b on 1 GPUs for pytorch 2.13: one GPU, zero 2, micro-batch 1, recompute full.
# The script needs PyTorch 2.6 or later.
# transformers must be installed.
# tokens.bin is yours: token ids of four bytes each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"


exec torchrun --standalone --nproc-per-node 1 train.py --tokens tokens.bin --steps 1000 \
  "$@"
