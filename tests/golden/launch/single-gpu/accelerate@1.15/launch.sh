#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for accelerate 1.15: unsplit, zero 2, micro-batch 1, recompute full.
# Install accelerate 1.15, torch and transformers.
# train.py trains random weights on random tokens: put your own data into `batches` of hf_model.py, and load
# your own weights there.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec accelerate launch --config_file accelerate.yaml train.py \
  "$@"
