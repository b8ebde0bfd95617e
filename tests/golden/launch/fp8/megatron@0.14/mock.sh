#!/usr/bin/env bash
# qwen3-32b on 64 GPUs for megatron 0.14: tp 4, pp 2, dp 8, zero 1, micro-batch 1, recompute none.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.14.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products
# are launched, without which they do not overlap; Megatron asserts it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 8 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py --tensor-model-parallel-size 4 \
  --pipeline-model-parallel-size 2 --context-parallel-size 1 --sequence-parallel --micro-batch-size 1 \
  --global-batch-size 256 --seq-length 4096 --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --bf16 --fp8-format e4m3 --fp8-recipe blockwise --accumulate-allreduce-grads-in-fp32 \
  --optimizer adam --transformer-impl transformer_engine --attention-backend fused --attention-dropout 0.0 \
  --hidden-dropout 0.0 --num-layers 64 --hidden-size 5120 --ffn-hidden-size 25600 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --kv-channels 128 --max-position-embeddings 40960 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm \
  --untie-embeddings-and-output-weights --vocab-size 151935 --make-vocab-size-divisible-by 128 --mock-data \
  --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 --eval-iters 0 --eval-interval 1000 --log-interval 1 \
  --log-throughput \
  "$@"
