#!/bin/bash
# Pre-training of Llama 3.1 70B with Megatron-LM on eight HGX H100 nodes.
set -eu

GPUS_PER_NODE=8
TP=8
PP=4
VP_LAYERS=5        # layers of a model chunk: four chunks per pipeline rank
MICRO=1
GLOBAL=256

MODEL_ARGS=(
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 131072
    --position-embedding-type rope --rotary-base 500000
    --swiglu --disable-bias-linear --normalization RMSNorm
    --untie-embeddings-and-output-weights
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage ${VP_LAYERS}
    --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather
)
TRAINING_ARGS=(
    --micro-batch-size $MICRO --global-batch-size $GLOBAL
    --bf16 --transformer-impl transformer_engine --use-flash-attn
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te
    --recompute-granularity selective
    --lr 1.5e-4 --min-lr 1.5e-5 --lr-decay-style cosine --clip-grad 1.0
    --train-iters 10000
)

torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$SLURM_NNODES" \
    --node_rank "$SLURM_NODEID" --master_addr "$MASTER_ADDR" \
    pretrain_gpt.py "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" \
    --data-path "$DATA" --tokenizer-type Llama3Tokenizer
