#!/usr/bin/env bash
# llama-3.2-1b on 1 GPUs for nanotron 2025: one GPU, zero 0, micro-batch 1, recompute full.
# run_train.py is in nanotron's repository, which must be installed from there: the newest wheel is of 2024.
# The dataset, the tokenizer, the learning rate and the number of steps are yours to set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"


exec torchrun --standalone --nproc-per-node 1 run_train.py --config-file config.yaml \
  "$@"
