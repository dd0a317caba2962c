"""A small Llama under accelerate's Accelerator, as its examples train."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM, get_linear_schedule_with_warmup


class Tokens(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        ids = torch.randint(0, 512, (128,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


accelerator = Accelerator()
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
schedule = get_linear_schedule_with_warmup(optimizer, 4, 64)
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(Tokens(), batch_size=4, shuffle=True), schedule
)
for batch in loader:
    with accelerator.accumulate(model):
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
model.eval()
for batch in loader:
    with torch.no_grad():
        outputs = model(**batch)
    found = accelerator.gather_for_metrics(outputs.logits.argmax(-1))
assert found.shape == (4 * accelerator.num_processes, 128), found.shape
accelerator.save_state(sys.argv[2])
accelerator.load_state(sys.argv[2])
accelerator.print(accelerator.distributed_type.value, accelerator.device, len(loader))
