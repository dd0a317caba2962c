"""BERT under ZeRO-3: Ray Train, DeepSpeed, transformers, synthetic token ids."""

import argparse
import tempfile

import deepspeed
import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import BertConfig, BertForSequenceClassification


class Sentences(Dataset):
    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {
            "input_ids": torch.randint(0, self.vocabulary, (self.length,)),
            "attention_mask": torch.ones(self.length, dtype=torch.long),
            "labels": torch.randint(0, 2, ()),
        }


def train_loop(config):
    bert = BertConfig(**config["bert"])
    model = BertForSequenceClassification(bert)
    ds_config = {
        "train_micro_batch_size_per_gpu": config["batch_size"],
        "gradient_accumulation_steps": config["accumulation"],
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": config["stage"]},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": 0.01}},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=ds_config
    )
    context = ray.train.get_context()
    data = Sentences(config["samples"], config["length"], bert.vocab_size)
    sampler = DistributedSampler(data, context.get_world_size(), context.get_world_rank())
    loader = DataLoader(data, batch_size=config["batch_size"], sampler=sampler, num_workers=2)
    device = ray.train.torch.get_device()
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        for step, on_cpu in enumerate(loader):
            batch = {name: tensor.to(device) for name, tensor in on_cpu.items()}
            outputs = engine(**batch)
            engine.backward(outputs.loss)
            engine.step()
            if context.get_world_rank() == 0 and step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {outputs.loss.item():.3f}")
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder)
            torch.distributed.barrier()
            ray.train.report(
                {"epoch": epoch, "steps": engine.global_steps},
                checkpoint=Checkpoint.from_directory(folder),
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    result = TorchTrainer(
        train_loop,
        train_loop_config={
            "batch_size": args.batch_size, "accumulation": args.accumulation,
            "samples": args.samples, "length": args.length, "epochs": args.epochs,
            "stage": args.stage, "bert": {"num_hidden_layers": args.layers},
        },
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=RunConfig(name="bert"),
    ).fit()  # fmt: skip
    print(result.metrics)


if __name__ == "__main__":
    main()
