#!/usr/bin/env bash
# llama-3.2-1b on 1 GPUs for deepspeed 0.19: one GPU, zero 0, micro-batch 1, recompute full.
# Install deepspeed 0.19, torch and transformers; FusedAdam is compiled at the first start, for which a CUDA toolkit of PyTorch's version must be installed (--torch-adam takes PyTorch's optimizer instead).
# train.py trains on random tokens; put your own data set into its `batches`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"


exec torchrun --standalone --nproc-per-node 1 train.py \
  "$@"
