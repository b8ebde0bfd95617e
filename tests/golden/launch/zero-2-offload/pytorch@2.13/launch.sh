#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for pytorch 2.13: dp 8, zero 3, micro-batch 2, recompute full.
# The script needs PyTorch 2.6 or later.
# transformers must be installed.
# tokens.bin is yours: token ids of four bytes each.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 8 train.py --tokens tokens.bin --steps 1000 \
  "$@"
