#!/usr/bin/env bash
# qwen2.5-7b on 16 GPUs for megatron 0.19: dp 16, zero 3, micro-batch 2, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.19.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# Megatron-FSDP refuses 1, since its collectives need a queue of their own.
export CUDA_DEVICE_MAX_CONNECTIONS=8

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 2 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 1 --context-parallel-size 1 --micro-batch-size 2 --global-batch-size 128 \
  --seq-length 8192 --use-distributed-optimizer --use-megatron-fsdp \
  --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor --overlap-grad-reduce \
  --overlap-param-gather --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --bf16 \
  --accumulate-allreduce-grads-in-fp32 --megatron-fsdp-main-grads-dtype fp32 \
  --megatron-fsdp-grad-comm-dtype fp32 --optimizer adam --transformer-impl transformer_engine \
  --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0 --num-layers 28 --hidden-size 3584 \
  --ffn-hidden-size 18944 --num-attention-heads 28 --group-query-attention --num-query-groups 4 \
  --kv-channels 128 --max-position-embeddings 131072 --position-embedding-type rope --normalization RMSNorm \
  --swiglu --disable-bias-linear --add-qkv-bias --untie-embeddings-and-output-weights --vocab-size 152064 \
  --make-vocab-size-divisible-by 128 --mock-data --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 \
  --eval-iters 0 --eval-interval 1000 --log-interval 1 --log-throughput --log-memory-interval 1 \
  "$@"
