#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for accelerate 1.15: dp 8, zero 2, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Install accelerate 1.15, torch and transformers.
# This plan also needs deepspeed and flash-attn.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec accelerate launch --config_file accelerate.yaml train.py --mock-data --steps 10 \
  "$@"
