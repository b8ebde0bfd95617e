#!/usr/bin/env bash
# llama-3.2-1b on 1 GPU for megatron 0.19: unsplit, zero 0, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.19.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

exec torchrun --standalone --nproc-per-node 1 pretrain_gpt.py --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 1 --context-parallel-size 1 --micro-batch-size 1 --global-batch-size 16 \
  --seq-length 2048 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --bf16 \
  --accumulate-allreduce-grads-in-fp32 --optimizer adam --transformer-impl transformer_engine \
  --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0 --num-layers 16 --hidden-size 2048 \
  --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 64 \
  --max-position-embeddings 131072 --position-embedding-type rope --normalization RMSNorm --swiglu \
  --disable-bias-linear --vocab-size 128256 --make-vocab-size-divisible-by 128 --mock-data \
  --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 --eval-iters 0 --eval-interval 1000 --log-interval 1 \
  --log-throughput --log-memory-interval 1 \
  "$@"
