#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for accelerate 1.15: dp 8, zero 2, micro-batch 2, recompute full.
# Install accelerate 1.15, torch and transformers.
# This plan also needs deepspeed and flash-attn.
# train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load
# your own weights there.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec accelerate launch --config_file accelerate.yaml train.py \
  "$@"
