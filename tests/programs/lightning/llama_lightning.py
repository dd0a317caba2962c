"""A causal language model of transformers in a LightningModule; flags are the Trainer's."""

import argparse

import lightning as pl
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length, vocab_size):
        self.length, self.vocab_size = length, vocab_size

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocab_size, (self.length,))
        return {"input_ids": ids, "labels": ids}


class LanguageModel(pl.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.config, self.model = config, None

    def configure_model(self):
        if self.model is None:
            self.model = AutoModelForCausalLM.from_config(self.config)

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--devices", type=int, default=8)
    args = parser.parse_args()
    config = AutoConfig.from_pretrained(".")
    strategy = args.strategy
    if strategy == "fsdp":
        strategy = FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer})
    elif strategy.endswith(".json"):
        strategy = DeepSpeedStrategy(config=strategy)
    trainer = pl.Trainer(
        accelerator="gpu", devices=args.devices, strategy=strategy, precision=args.precision,
        accumulate_grad_batches=args.accumulate, gradient_clip_val=args.clip, max_steps=4,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    tokens = torch.utils.data.DataLoader(Tokens(128, config.vocab_size), batch_size=4)
    trainer.fit(LanguageModel(config), tokens)


if __name__ == "__main__":
    main()
