#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for megatron-bridge 0.6: unsplit, zero 0, micro-batch 1, recompute full.
# Megatron-Bridge 0.6 must be installed, which runs on Megatron Core 0.19.
# plan.yaml holds the plan in the keys of Bridge's ConfigContainer: the same keys override any recipe of
# Bridge.
# Add --data-path and --tokenizer, and overrides such as optimizer.lr=3e-4: data and schedule are yours to
# set.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 train.py \
  "$@"
