"""Collectives of real DeepSpeed steps with Ulysses sequence parallelism, in order, per rank.

    python -m torch.distributed.run --nproc-per-node 2 ulysses_steps.py TARGET.json

and again with 4: ``UlyssesSPAttentionHF`` on the CPU with gloo, loss averaged over the sequence's
ranks as transformers' ``deepspeed_sp_compute_loss`` does;
``validation/data/deepspeed_cpu/ulysses.json`` is what it wrote.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from raysim.measure.training_rank import EAR, DeepSpeedTrainer, Phases

LLAMA = {
    "model_type": "llama", "vocab_size": 203, "hidden_size": 64, "intermediate_size": 118,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "attn_implementation": "sdpa",
}  # fmt: skip
ONE_HEAD = LLAMA | {"num_key_value_heads": 1}
"""Fewer heads of keys than ranks: they are repeated."""


def _case(name: str, ranks: int, sp: int, stage: int, model: Any = None, **more: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage, "reduce_bucket_size": 20_000,
            "stage3_param_persistence_threshold": 100, "stage3_prefetch_bucket_size": 20_000,
        },
        "sequence_parallel_size": sp,
    }  # fmt: skip
    return {
        "name": name, "engine": "deepspeed", "ranks": ranks, "model": model or LLAMA, "seq": 32,
        "config": config | more,
    }  # fmt: skip


BF16 = {"bf16": {"enabled": True}}
CASES = [
    *(_case(f"llama-ulysses-2-zero{s}-bf16", 2, 2, s, **BF16) for s in (1, 2, 3)),
    _case("llama-ulysses-2-zero0", 2, 2, 0),
    _case("llama-ulysses-2-zero3-bf16-wire", 2, 2, 3, **BF16,
          seq_parallel_communication_data_type="bf16"),
    _case("llama-ulysses-2-repeated-keys", 2, 2, 2, ONE_HEAD, **BF16),
    *(_case(f"llama-ulysses-2-dp-2-zero{s}-bf16", 4, 2, s, **BF16) for s in (1, 3)),
    _case("llama-ulysses-4-repeated-keys", 4, 4, 2, **BF16),
]  # fmt: skip


class UlyssesTrainer(DeepSpeedTrainer):
    """The engine with its groups, and each rank with its part of every sequence."""

    def __init__(self, case: Any) -> None:
        import deepspeed
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        deepspeed.init_distributed(dist_backend=dist.get_backend())
        self.case, self.config = case, dict(case["config"])
        self.accumulation = 1
        self.micro_batch = self.config["train_micro_batch_size_per_gpu"]
        self.linear = torch.nn.functional.linear
        self.sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        sp, model = self.config["sequence_parallel_size"], self._model()
        self.mpu = UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model, core_attn_implementation="sdpa",
            sequence_parallel_size=sp, micro_batch_size=self.micro_batch,
            seq_length=case["seq"], seq_length_is_variable=False,
        )  # fmt: skip
        own = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=own, config=self.config, mpu=self.mpu
        )
        length = case["seq"] // sp
        torch.manual_seed(dist.get_rank())
        shape = (self.micro_batch, length)
        self.ids = torch.randint(case["model"]["vocab_size"], shape)
        first = self.mpu.get_sequence_parallel_rank() * length
        self.positions = torch.arange(first, first + length).expand(shape).contiguous()

    def _model(self) -> Any:
        from raysim.measure.training_models import causal_lm

        self.device = "cpu"
        return causal_lm(self.case["model"])

    def loss(self) -> Any:
        """Of this rank's tokens, then of all: as transformers weights it."""
        out = self.engine(
            input_ids=self.ids, position_ids=self.positions, labels=self.ids,
            shift_labels=self.ids,
        )  # fmt: skip
        mean, count = out.loss, (self.ids != -100).view(-1).sum()
        means, counts = (self._of_all(x.detach()) for x in (mean, count))
        means[self.mpu.get_sequence_parallel_rank()] = mean
        tokens = torch.stack(counts)
        return (torch.stack(means) * tokens).sum() / tokens.sum()

    def _of_all(self, own: Any) -> list[Any]:
        """Without torch's gradient of it, which over a part of the ranks fails on gloo."""
        group = self.mpu.get_sequence_parallel_group()
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, own, group=group)
        return found

    def step(self) -> dict[str, float]:
        """Forward, backward, step."""
        phases = Phases()
        loss = phases.run("forward", self.loss)
        phases.run("backward", lambda: self.engine.backward(loss))
        phases.run("step", self.engine.step)
        return phases.done()

    def close(self) -> None:
        """Undo what is global."""
        from deepspeed.runtime.sequence_parallel import parallel_state_sp
        from deepspeed.utils import groups
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        super().close()
        ALL_ATTENTION_FUNCTIONS["sdpa"] = self.sdpa
        parallel_state_sp._release_sequence_parallel_groups()  # noqa: SLF001
        groups.mpu = None


def main() -> None:
    """Three steps of each case; the collectives of the last."""
    target = Path(sys.argv[1])
    torch.set_num_threads(1)
    EAR.listen()
    dist.init_process_group("gloo")
    old = json.loads(target.read_text())["cases"] if target.exists() else []
    found = []
    for case in (c for c in CASES if c["ranks"] == dist.get_world_size()):
        trainer = UlyssesTrainer(case)
        for _ in range(3):
            EAR.heard.clear()
            trainer.step()
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, EAR.runs())
        found.append(case | {"records": [{"collectives": heard} for heard in every]})
        trainer.close()
        del trainer
        gc.collect()
        if dist.get_rank() == 0:
            print(case["name"], every[0], flush=True)
    if dist.get_rank() == 0:
        import deepspeed
        import transformers

        made = {
            "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__,
            "deepspeed": deepspeed.__version__, "transformers": transformers.__version__,
            "made_by": "validation/programs/ulysses_steps.py",
        }  # fmt: skip
        target.write_text(json.dumps({"made": made, "cases": old + found}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
