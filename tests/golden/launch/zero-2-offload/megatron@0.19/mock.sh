#!/usr/bin/env bash
# llama-2-13b on 8 GPUs for megatron 0.19: tp 2, dp 4, zero 1, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.19.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products
# are launched, without which they do not overlap; Megatron asserts it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

exec torchrun --standalone --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel --micro-batch-size 2 \
  --global-batch-size 64 --seq-length 4096 --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --optimizer-cpu-offload --optimizer-offload-fraction 1.0 --recompute-granularity full \
  --recompute-method uniform --recompute-num-layers 1 --bf16 --accumulate-allreduce-grads-in-fp32 \
  --use-precision-aware-optimizer --optimizer adam --transformer-impl transformer_engine \
  --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0 --num-layers 40 --hidden-size 5120 \
  --ffn-hidden-size 13824 --num-attention-heads 40 --kv-channels 128 --max-position-embeddings 4096 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --vocab-size 32000 --make-vocab-size-divisible-by 128 --mock-data \
  --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 --eval-iters 0 --eval-interval 1000 --log-interval 1 \
  --log-throughput --log-memory-interval 1 \
  "$@"
