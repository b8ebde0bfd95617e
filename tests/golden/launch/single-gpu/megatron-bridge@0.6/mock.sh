#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for megatron-bridge 0.6: unsplit, zero 0, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Megatron-Bridge 0.6 must be installed, which runs on Megatron Core 0.19.
# plan.yaml holds the plan in the keys of Bridge's ConfigContainer: the same keys override any recipe of
# Bridge.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 train.py --mock-data \
  "$@"
