"""A Qwen3 over sequences that two ranks share: ``UlyssesSPAttentionHF``, as its guide has it."""

import sys

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    UlyssesSPAttentionHF,
    UlyssesSPDataLoaderAdapter,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "tie_word_embeddings": False, "attn_implementation": "sdpa",
}  # fmt: skip


def main(device, steps, length):
    deepspeed.init_distributed("gloo" if device == "cpu" else "nccl")
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model, core_attn_implementation="sdpa", sequence_parallel_size=2,
        micro_batch_size=1, seq_length=length, seq_length_is_variable=True,
    )  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), mpu=mpu,
        config={
            "train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 1}, "sequence_parallel_size": 2,
        },
    )  # fmt: skip
    group, ways = mpu.get_sequence_parallel_group(), mpu.get_sequence_parallel_world_size()
    ids, places = torch.arange(length) % 256, torch.arange(length)
    data = [{"input_ids": ids, "labels": ids, "position_ids": places}] * 64
    loader = torch.utils.data.DataLoader(data, batch_size=1)
    loader = UlyssesSPDataLoaderAdapter(
        loader, sp_rank=mpu.get_sequence_parallel_rank(), sp_group=group, sp_world_size=ways,
        device=device,
    )  # fmt: skip
    for _, given in zip(range(steps), loader, strict=False):
        batch = {k: v.to(device) for k, v in given.items()}
        labels = batch.pop("shift_labels")
        logits = engine(**batch).logits
        loss = engine.module.loss_function(
            logits=logits, labels=None, shift_labels=labels, vocab_size=256
        )
        if device == "cpu":  # over gloo torch's gradients of gathered tensors fail
            engine.backward(loss)
            engine.step()
            continue
        losses = torch.distributed.nn.functional.all_gather(loss, group=group)
        tokens = (labels != -100).sum()
        counts = torch.distributed.nn.functional.all_gather(tokens, group=group)
        loss = sum(x * n for x, n in zip(losses, counts, strict=True)) / sum(counts)
        engine.backward(loss)
        engine.step()
    print(int(engine.train_batch_size()), batch["input_ids"].shape[1], len(loader), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
