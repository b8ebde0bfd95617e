#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for deepspeed 0.19: dp 8, zero 2, micro-batch 2, recompute full.
# Install deepspeed 0.19, torch and transformers; FusedAdam is compiled at the first start, for which a CUDA
# toolkit of PyTorch's version must be installed (--torch-adam takes PyTorch's optimizer instead).
# This plan also needs flash-attn.
# train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load
# your own weights there.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 8 train.py \
  "$@"
