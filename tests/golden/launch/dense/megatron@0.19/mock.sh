#!/usr/bin/env bash
# llama-2-13b on 32 GPUs for megatron 0.19: tp 2, pp 2, dp 8, zero 1, micro-batch 1, recompute none.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.19.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# Before Blackwell, one queue keeps the order in which tensor- and context-parallel collectives and products
# are launched, without which they do not overlap; Megatron asserts it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 4 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 --context-parallel-size 1 --sequence-parallel --micro-batch-size 1 \
  --global-batch-size 128 --seq-length 4096 --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --bf16 --accumulate-allreduce-grads-in-fp32 --optimizer adam \
  --transformer-impl transformer_engine --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0 \
  --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 --kv-channels 128 \
  --max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu \
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 \
  --make-vocab-size-divisible-by 128 --mock-data --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 \
  --eval-iters 0 --eval-interval 1000 --log-interval 1 --log-throughput --log-memory-interval 1 \
  "$@"
