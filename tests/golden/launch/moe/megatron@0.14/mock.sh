#!/usr/bin/env bash
# mixtral-8x7b on 64 GPUs for megatron 0.14: pp 4, dp 16, ep 8, vpp 8, zero 1, micro-batch 1, recompute none.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.14.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# The experts' all-to-all runs beside computation only with queues enough.
export CUDA_DEVICE_MAX_CONNECTIONS=32

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 8 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 8 --context-parallel-size 1 \
  --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --micro-batch-size 1 --global-batch-size 256 \
  --seq-length 4096 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --overlap-moe-expert-parallel-comm --bf16 --accumulate-allreduce-grads-in-fp32 --optimizer adam \
  --transformer-impl transformer_engine --attention-backend fused --attention-dropout 0.0 --hidden-dropout 0.0 \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \
  --num-query-groups 8 --kv-channels 128 --max-position-embeddings 32768 --position-embedding-type rope \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --vocab-size 31999 --make-vocab-size-divisible-by 128 --num-experts 8 --moe-router-topk 2 \
  --moe-ffn-hidden-size 14336 --moe-token-dispatcher-type alltoall --moe-grouped-gemm --mock-data \
  --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 --eval-iters 0 --eval-interval 1000 --log-interval 1 \
  --log-throughput \
  "$@"
