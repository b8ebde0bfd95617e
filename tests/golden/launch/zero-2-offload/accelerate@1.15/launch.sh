#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for accelerate 1.15: dp 8, zero 2, micro-batch 2, recompute full.
# Install accelerate 1.15, torch and transformers.
# train.py trains on random tokens; put your own data set into its `batches`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"


exec accelerate launch --config_file accelerate.yaml train.py \
  "$@"
