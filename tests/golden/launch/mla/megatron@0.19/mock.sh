#!/usr/bin/env bash
# deepseek on 2048 GPUs for megatron 0.19: pp 16, dp 128, ep 64, zero 1, micro-batch 1, recompute full.
# This variant trains on made-up tokens and prints the time of each step and the peak memory.
# MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v0.19.*.
set -euo pipefail
cd "${MEGATRON_LM:?set it to the folder of your checkout of Megatron-LM}"

# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node.
NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"
: "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"

exec torchrun --nnodes 256 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" \
  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 16 \
  --pipeline-model-parallel-layout 'Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL' \
  --context-parallel-size 1 --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 --micro-batch-size 1 \
  --global-batch-size 15360 --seq-length 4096 --use-distributed-optimizer --overlap-grad-reduce \
  --overlap-param-gather --recompute-granularity full --recompute-method block --recompute-num-layers 3 --bf16 \
  --accumulate-allreduce-grads-in-fp32 --optimizer adam --transformer-impl transformer_engine \
  --attention-backend fused --attention-dropout 0.0 --hidden-dropout 0.0 --num-layers 61 --hidden-size 7168 \
  --ffn-hidden-size 18432 --num-attention-heads 128 --max-position-embeddings 163840 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --vocab-size 129280 --make-vocab-size-divisible-by 128 \
  --mtp-num-layers 1 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 \
  --qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 \
  --moe-layer-freq '([0]*3+[1]*58)' --moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8 \
  --moe-router-group-topk 4 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep \
  --moe-grouped-gemm --mock-data --tokenizer-type NullTokenizer --train-iters 50 --lr 1e-5 --eval-iters 0 \
  --eval-interval 1000 --log-interval 1 --log-throughput --log-memory-interval 1 \
  "$@"
