#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for torchtitan 0.3: unsplit, zero 2, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# torchtitan 0.3 must be installed.
# Start it in the folder of these files, which Python imports plan_config from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Memory grows in place instead of in new segments, so that less of it is lost to fragmentation; the plan
# counts on it.
export PYTORCH_ALLOC_CONF=expandable_segments:True

exec torchrun --standalone --nproc-per-node 1 -m torchtitan.train --module plan_config --config plan_mock \
  "$@"
