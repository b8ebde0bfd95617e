#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for torchtitan 0.3: dp 8, zero 2, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# torchtitan 0.3 must be installed.
# Start it in the folder of these files, which Python imports plan_config from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Memory grows in place instead of in new segments, so that less of it is lost to fragmentation; the plan
# counts on it.
export PYTORCH_ALLOC_CONF=expandable_segments:True

exec torchrun --standalone --nproc-per-node 8 -m torchtitan.train --module plan_config --config plan_mock \
  "$@"
