#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for torchtitan 0.2: dp 8, zero 2, micro-batch 2, recompute full.
# torchtitan 0.2.2 must be installed.
# Start it in the folder of these files, which Python imports plan_model from.
# The dataset, its tokenizer (model.hf_assets_path), and the number of steps are yours to set.
# The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons,
# initial values and the schedule of the learning rate: set them to your model's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Memory grows in place instead of in new segments, so that less of it is lost to fragmentation; the plan
# counts on it.
export PYTORCH_ALLOC_CONF=expandable_segments:True

exec torchrun --standalone --nproc-per-node 8 -m torchtitan.train --job.config-file plan.toml \
  "$@"
