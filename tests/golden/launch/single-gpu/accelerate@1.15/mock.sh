#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for accelerate 1.15: unsplit, zero 2, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# Install accelerate 1.15, torch and transformers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec accelerate launch --config_file accelerate.yaml train.py --mock-data --steps 10 \
  "$@"
