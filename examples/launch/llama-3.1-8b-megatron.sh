#!/bin/bash
# Llama 3.1 8B on two nodes of 8 H100 with Megatron-LM.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
TP=4   # within a node

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
)

TRAINING_ARGS=(
    --seq-length 8192
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --use-distributed-optimizer
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size 1
    --sequence-parallel
    --recompute-activations
    --lr 3e-4
    --train-iters 100000
)

torchrun --nnodes 2 --nproc-per-node $GPUS_PER_NODE --master-addr "$MASTER_ADDR" --node-rank "$NODE_RANK" \
    pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" --data-path "$DATA" --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model meta-llama/Llama-3.1-8B
