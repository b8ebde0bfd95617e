"""Options of Megatron-LM that change neither the time of a step nor its memory as they are modelled, by their whole names.

Data, tokenizers, learning rates, checkpoints, logs, scales of losses and of positions; validation and checkpoints lie between
steps. Source: the parsers of 0.17.0, 0.18.0 and 0.19.2 (megatron/training/arguments.py), and four older names.
"""

from __future__ import annotations

_NAMES = """
adam-beta1 adam-beta2 adam-eps adlr-autoresume adlr-autoresume-interval async-save attention-softmax-in-fp32 auto-detect-ckpt-format
check-for-large-grads check-for-spiky-loss ckpt-assume-constant-structure ckpt-convert-format ckpt-convert-save
ckpt-convert-update-legacy-dist-opt-format ckpt-fully-parallel-load ckpt-fully-parallel-load-exchange-algo
ckpt-fully-parallel-load-process-group ckpt-fully-parallel-save ckpt-fully-parallel-save-process-group ckpt-step clip-grad
config-logger-dir data-args-path data-cache-path data-impl data-parallel-random-init data-path dataloader-type decoupled-lr
decoupled-min-lr disable-manual-gc-eval disable-straggler-on-startup dist-ckpt-format dist-ckpt-optim-fully-reshardable
dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness dist-ckpt-workers distributed-backend distributed-timeout-minutes
distributed-timeout-seconds-after-init embedding-init-method-std enable-one-logger end-weight-decay eod-mask-loss eval-global-batch-size
eval-interval eval-iters eval-micro-batch-size exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal
exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training finetune full-validation hysteresis
init-method-std init-method-xavier-uniform initial-loss-scale iterations-to-skip lazy-mpu-init legacy-tokenizer load
load-main-params-from-ckpt local-rank log-device-memory-used log-energy log-interval log-loss-scale-to-tensorboard
log-max-attention-logit log-memory-interval log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-progress log-straggler
log-throughput log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level loss-scale
loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-init lr-warmup-iters lr-warmup-samples
lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style manual-gc manual-gc-interval memory-snapshot-path merge-file
mid-level-dataset-surplus min-loss-scale min-lr mock-data moe-aux-loss-coeff moe-per-layer-logging moe-router-bias-update-rate
moe-router-force-load-balancing moe-router-load-balancing-type moe-router-pre-softmax moe-router-topk-scaling-factor moe-z-loss-coeff
mscale mscale-all-dim mtp-loss-scaling-factor no-barrier-with-level-1-timing no-ckpt-fully-parallel-save
no-create-attention-mask-in-dataloader no-data-sharding no-initialization no-load-optim no-load-rng no-log-loss-scale-to-tensorboard
no-manual-gc-eval no-mmap-bin-files no-one-logger no-save-optim no-save-rng no-weight-decay-cond-type
no-yarn-correction-range-round-to-int non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo
non-persistent-local-ckpt-dir non-persistent-save-interval norm-epsilon null-tokenizer-eod-id null-tokenizer-pad-id
num-dataset-builder-threads num-workers one-logger-async one-logger-project one-logger-run-name override-opt-param-scheduler
override-opt_param-scheduler persistent-save-interval pretrained-checkpoint profile profile-ranks profile-step-end profile-step-start
record-memory-history rerun-mode reset-position-ids rope-scaling-factor rope-type rotary-base rotary-interleaved
rotary-scaling-factor rotary-seq-len-interpolation-factor save save-dgrads-interval save-interval save-params-interval
save-retain-interval save-tokens-per-expert-interval save-wgrads-interval seed skip-train split start-eval-at-iter start-weight-decay
straggler-ctrlr-port straggler-minmax-count tensorboard-dir tensorboard-log-interval tensorboard-queue-size test-data-path
tiktoken-num-special-tokens tiktoken-pattern tiktoken-special-tokens timing-log-level timing-log-option
tokenizer-hf-include-special-tokens tokenizer-hf-no-include-special-tokens tokenizer-hf-no-use-fast tokenizer-hf-use-fast
tokenizer-metadata tokenizer-model tokenizer-sentencepiece-legacy tokenizer-special-tokens tokenizer-type train-data-path train-iters
train-samples train-sync-interval trust-remote-code use-checkpoint-opt-param-scheduler use-checkpoint-opt_param-scheduler
use-cpu-initialization use-dist-ckpt use-mcore-models use-persistent-ckpt-worker use-pytorch-profiler use-rope-scaling valid-data-path
vocab-extra-ids vocab-file wandb-entity wandb-exp-name wandb-project wandb-save-dir weight-decay weight-decay-incr-style yarn-beta-fast
yarn-beta-slow yarn-correction-range-round-to-int yarn-original-max-position-embeddings
"""
OF_NO_PLAN = frozenset(f"--{name}" for name in _NAMES.split())
