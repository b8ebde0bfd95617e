#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for nanotron 2025: unsplit, zero 0, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# NANOTRON is the folder of a checkout of nanotron, from which it must be installed, too: the newest wheel is
# of 2024.
set -euo pipefail
: "${NANOTRON:?set it to the folder of your checkout of nanotron}"
cd "$(dirname "${BASH_SOURCE[0]}")"

exec torchrun --standalone --nproc-per-node 1 "$NANOTRON/run_train.py" --config-file config_mock.yaml \
  "$@"
